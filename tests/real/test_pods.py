"""The platform's pods, as the API servers of the regions know them (P1, O1, N1, F12)."""

import asyncio
import json
import secrets
from collections.abc import Sequence
from typing import Any

import pytest

from tests.drills.rollouts import STATUS, UNDO, broken_image, rolled_out
from tests.drills.site import REGIONS, User, kubectl, until

NAMES = [region.name for region in REGIONS]
PORTS = {"redirect": 8082, "api": 8081, "worker": 8082}
"""Where each service's pods answer for their metrics."""

pytestmark = pytest.mark.usefixtures("site")


def pods(region: str, *services: str) -> list[dict[str, Any]]:
    """The running pods of these services, or of all; none that is about to end."""
    wanted = services or tuple(PORTS)
    selector = f"app.kubernetes.io/name in ({', '.join(wanted)})"
    listed = json.loads(kubectl(region, "get", "pods", "-l", selector, "-o", "json"))
    found: list[dict[str, Any]] = [
        pod
        for pod in listed["items"]
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    assert found
    return found


@pytest.mark.parametrize("region", NAMES)
def test_no_pod_is_root_or_can_write_its_image_P1(region: str) -> None:
    for pod in pods(region):
        whole = pod["spec"]["securityContext"]
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            own = container["securityContext"]
            assert (whole | own)["runAsNonRoot"] is True
            assert (whole | own)["runAsUser"] != 0
            assert own["readOnlyRootFilesystem"] is True
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("region", NAMES)
@pytest.mark.parametrize("service", PORTS)
def test_each_pod_answers_for_its_metrics_O1(region: str, service: str) -> None:
    for pod in pods(region, service):
        name = f"{pod['metadata']['name']}:{PORTS[service]}"
        said = kubectl(
            region, "get", "--raw", f"/api/v1/namespaces/shortlink/pods/{name}/proxy/metrics"
        )
        assert "\nshortlink_" in said


async def test_the_worker_publishes_what_happened_to_a_link_N1(users: list[User]) -> None:
    made = await users[0].create(f"https://real.example/{secrets.token_hex(8)}")
    assert made.status == 201, str(made)
    code = made.body["code"]
    assert (await users[0].api("DELETE", f"/{code}")).status == 204
    wanted = {f"{code}.1.1.created", f"{code}.1.2.tombstoned"}

    async def published() -> bool:
        words = ("logs", "-l", "app.kubernetes.io/name=worker", "--since=5m", "--tail=-1")
        logs = await asyncio.gather(
            *(asyncio.to_thread(kubectl, region, *words) for region in NAMES)
        )
        return all(any(event in log for log in logs) for event in wanted)

    await until(published, f"the workers' logs to tell {wanted}", seconds=90, every=1)


async def visit_all(user: User, code: str, target: str, stop: asyncio.Event) -> Sequence[str]:
    """Visit the link on new and kept connections until told to stop; what was wrong."""
    wrong, fresh = [], False
    while not stop.is_set():
        answer = await user.visit(code, fresh=fresh)
        fresh = not fresh
        if answer.location != target:
            wrong.append(str(answer))
        await asyncio.sleep(0.02)
    return wrong


@pytest.mark.timeout(300)  # pods start slowly where much else runs
async def test_a_broken_image_fails_no_redirect_and_is_undone_F12(users: list[User]) -> None:
    user, target = users[0], f"https://real.example/{secrets.token_hex(8)}"
    made = await user.create(target)
    assert made.status == 201, str(made)
    stop = asyncio.Event()
    visits = asyncio.create_task(visit_all(user, made.body["code"], target, stop))
    region = user.region.name

    async def fails() -> bool:
        found = await asyncio.to_thread(kubectl, region, "get", "pods", "-o", "json")
        return "ErrImagePull" in found or "ImagePullBackOff" in found

    await asyncio.to_thread(broken_image, region)
    try:
        await until(fails, "the broken image to fail", seconds=60, every=0.5)
        assert not await asyncio.to_thread(rolled_out, region)
    finally:
        try:
            await asyncio.to_thread(kubectl, region, *UNDO)
            await asyncio.to_thread(kubectl, region, *STATUS)
        finally:
            stop.set()
            wrong = await visits
    assert wrong == []
