"""What people are promised of ShortLinks on the platform as it runs (T2, M1, M5, L2).

Each promise on its own, faults and all: tests/real/test_operator*.py, on scratch clusters.
"""

import asyncio
import json
import secrets
from typing import Any

import pytest

from local.regions.cluster import NAMESPACE
from local.regions.layout import CHECKOUT
from tests.drills.site import REGIONS, User, kubectl
from tests.real.test_links import everywhere

EXAMPLES = CHECKOUT / "examples" / "links"
HOME = REGIONS[0].name


async def ask(region: str, *words: str, namespace: str = "default", given: str = "") -> str:
    return await asyncio.to_thread(
        kubectl, region, *words, namespace=namespace, given=given, within=90.0
    )


async def apply(region: str, name: str) -> None:
    manifest = {
        "apiVersion": "shortlink.platform/v1alpha1",
        "kind": "ShortLink",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"target": f"https://real.example/{name}"},
    }
    await ask(region, "apply", "-f", "-", given=json.dumps(manifest))


async def delete(region: str, name: str) -> None:
    await ask(region, "delete", "shortlink", name, "--timeout=60s")


async def ready(region: str, *which: str, namespace: str = "default") -> list[dict[str, Any]]:
    """These objects, once all of them are."""
    wait = ("wait", "shortlinks", *which, "--for=condition=Ready", "--timeout=60s")
    await ask(region, *wait, namespace=namespace)
    names = [word for word in which if not word.startswith("-")]
    found = await ask(region, "get", "shortlinks", "-o", "json", namespace=namespace)
    items = json.loads(found)["items"]
    return [each for each in items if not names or each["metadata"]["name"] in names]


@pytest.mark.timeout(300)
async def test_applied_links_redirect_everywhere_until_they_are_deleted_T2_M1_L2(
    users: list[User],
) -> None:
    await ask(HOME, "apply", "-f", str(EXAMPLES), namespace="campaigns")
    made = await ready(HOME, "--all", namespace="campaigns")
    assert {each["spec"]["deletionPolicy"] for each in made} == {"Delete", "Retain"}
    for each in made:
        assert each["status"]["url"].endswith(f"/{each['status']['code']}")
        await everywhere(users, each["status"]["code"], each["spec"]["target"])
    await ask(HOME, "delete", "-f", str(EXAMPLES), "--timeout=60s", namespace="campaigns")
    for each in made:
        retained = each["spec"]["deletionPolicy"] == "Retain"
        after = each["spec"]["target"] if retained else 410
        await everywhere(users, each["status"]["code"], after)


@pytest.mark.timeout(300)
async def test_the_same_object_in_all_clusters_is_one_link_with_one_home_T2(
    users: list[User],
) -> None:
    """Where it is deleted that is not its home, the link goes on."""
    name = f"real-{secrets.token_hex(6)}"
    names = [region.name for region in REGIONS]
    await asyncio.gather(*(apply(region, name) for region in names))
    stand = [(await ready(region, name))[0]["status"] for region in names]
    (home,) = {status["home"] for status in stand}
    (code,) = {status["code"] for status in stand}
    for region, status in zip(names, stand, strict=True):
        assert status["conditions"][0]["reason"] == ("Ready" if region == home else "Mirrored")
    await everywhere(users, code, f"https://real.example/{name}")
    for region in set(names) - {home}:
        await delete(region, name)
    await everywhere(users, code, f"https://real.example/{name}")
    why = ("python3.11", "-m", "shortlink", "why", code)
    facts = await ask(home, "exec", "deploy/operator", "--", *why, namespace=NAMESPACE)
    for word in (f"default/{name}", *names):
        assert word in facts
    await delete(home, name)
    await everywhere(users, code, 410)


async def test_the_api_leaves_an_objects_link_to_its_object_T2(users: list[User]) -> None:
    name = f"real-{secrets.token_hex(6)}"
    await apply(HOME, name)
    (made,) = await ready(HOME, name)
    for method, body in (("PATCH", {"long_url": "https://real.example/other"}), ("DELETE", None)):
        answer = await users[1].api(method, f"/{made['status']['code']}", body)
        assert answer.status == 409, str(answer)
        assert f"default/{name}" in str(answer.body)
    await delete(HOME, name)
