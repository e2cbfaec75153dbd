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
PORTS = {"redirect": 8082, "api": 8081, "operator": 8082}
"""Where each service's pods answer for their metrics."""

READ = {"get", "list", "watch"}
WRITE = {"create", "update", "patch", "delete", "deletecollection"}

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
        is_operator = pod["metadata"]["labels"]["app.kubernetes.io/name"] == "operator"
        assert pod["spec"]["automountServiceAccountToken"] is is_operator
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            own = container["securityContext"]
            assert (whole | own)["runAsNonRoot"] is True
            assert (whole | own)["runAsUser"] != 0
            assert own["readOnlyRootFilesystem"] is True
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}


OPERATOR = "system:serviceaccount:shortlink:operator"
MAY = [
    ("list", "shortlinks.shortlink.platform", "--all-namespaces"),
    ("patch", "shortlinks.shortlink.platform", "--subresource=status", "-n", "default"),
    ("patch", "linkpolicies.shortlink.platform", "--subresource=status"),
    ("create", "events.events.k8s.io", "-n", "default"),
    ("update", "leases.coordination.k8s.io/operator"),
    ("get", "configmaps/operator-switches"),
]
MAY_NOT = [
    ("get", "secrets"),
    ("get", "configmaps/settings"),
    ("update", "leases.coordination.k8s.io/another"),
    ("update", "leases.coordination.k8s.io/operator", "-n", "default"),
    ("create", "shortlinks.shortlink.platform", "-n", "default"),
    ("delete", "shortlinks.shortlink.platform", "-n", "default"),
    ("patch", "linkpolicies.shortlink.platform"),
    ("list", "namespaces"),
    ("list", "customresourcedefinitions.apiextensions.k8s.io"),
]


def may(region: str, who: str, *words: str) -> bool:
    try:
        said = kubectl(region, "auth", "can-i", *words, f"--as={who}")
    except RuntimeError as refused:
        said = str(refused)  # kubectl ends with 1 for a `no`
    return said.strip() == "yes"


def test_the_operator_may_do_what_it_does_and_no_more_P1() -> None:
    region = NAMES[0]
    assert [words for words in MAY if not may(region, OPERATOR, *words)] == []
    assert [words for words in MAY_NOT if may(region, OPERATOR, *words)] == []
    for account in ("redirect", "api"):
        nobody = f"system:serviceaccount:shortlink:{account}"
        assert [words for words in MAY if may(region, nobody, *words)] == []


@pytest.mark.parametrize(
    ("role", "verbs"),
    [("view", READ), ("edit", READ | WRITE), ("admin", READ | WRITE)],
)
def test_kubernetes_own_roles_have_the_links_P1(role: str, verbs: set[str]) -> None:
    rules = json.loads(kubectl(NAMES[0], "get", "clusterrole", role, "-o", "json"))["rules"]
    ours = [rule for rule in rules if "shortlink.platform" in rule["apiGroups"]]
    given = {
        (resource, verb)
        for rule in ours
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert given == {("shortlinks", verb) for verb in verbs} | {
        ("linkpolicies", verb) for verb in READ
    }


@pytest.mark.parametrize("region", NAMES)
@pytest.mark.parametrize("service", PORTS)
def test_each_pod_answers_for_its_metrics_O1(region: str, service: str) -> None:
    for pod in pods(region, service):
        name = f"{pod['metadata']['name']}:{PORTS[service]}"
        said = kubectl(
            region, "get", "--raw", f"/api/v1/namespaces/shortlink/pods/{name}/proxy/metrics"
        )
        assert "\nshortlink_" in said


async def test_the_operator_publishes_what_happened_to_a_link_N1(users: list[User]) -> None:
    made = await users[0].create(f"https://real.example/{secrets.token_hex(8)}")
    assert made.status == 201, str(made)
    code = made.body["code"]
    assert (await users[0].api("DELETE", f"/{code}")).status == 204
    wanted = {f"{code}.1.1.created", f"{code}.1.2.tombstoned"}

    async def published() -> bool:
        words = ("logs", "-l", "app.kubernetes.io/name=operator", "--since=5m", "--tail=-1")
        logs = await asyncio.gather(
            *(asyncio.to_thread(kubectl, region, *words) for region in NAMES)
        )
        return all(any(event in log for log in logs) for event in wanted)

    await until(published, f"the operators' logs to tell {wanted}", seconds=90, every=1)


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
