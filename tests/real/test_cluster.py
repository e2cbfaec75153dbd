"""The operator's client of the API server, on a real one, and with faults in between."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from shortlink_operator.cluster import (
    Cluster,
    ClusterError,
    Conflict,
    Failed,
    Missing,
    Refused,
    Unreachable,
    object_path,
    objects,
    open_cluster,
    opened,
    pod_login,
)
from shortlink_operator.kinds import API_VERSION, KIND
from tests.apiserver import ScratchCluster
from tests.drills.site import until
from tests.proxy import Proxy

TEAM = "cluster-team"
MAPS = f"/api/v1/namespaces/{TEAM}/configmaps"
READS = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]
WRITES = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}]


@pytest.fixture(scope="module", autouse=True)
def team(scratch: ScratchCluster) -> None:
    scratch.apply_crds()
    scratch.kubectl("create", "namespace", TEAM)


@pytest.fixture
async def cluster(scratch: ScratchCluster) -> AsyncIterator[Cluster]:
    async with open_cluster(scratch.kubeconfig) as found:
        yield found


@pytest.fixture
def proxy(scratch: ScratchCluster) -> Iterator[Proxy]:
    with Proxy(scratch) as made:
        yield made


@pytest.fixture
async def far(proxy: Proxy) -> AsyncIterator[Cluster]:
    """The cluster behind the proxy."""
    async with open_cluster(proxy.kubeconfig, deadline=2.0) as found:
        yield found

    async def closed() -> bool:
        ours = psutil.Process().net_connections()
        return not any(each.raddr[1:] == (proxy.port,) for each in ours)

    await until(closed, "the connections to end, which TLS does by and by")


async def a_map(cluster: Cluster) -> str:
    """A new ConfigMap; its path."""
    name = f"map-{random.randrange(10**9)}"
    await cluster.create(MAPS, {"metadata": {"name": name}, "data": {"a": "1"}})
    return f"{MAPS}/{name}"


async def test_objects_are_made_changed_and_replaced_by_who_saw_them_last_T2(
    cluster: Cluster,
) -> None:
    path = await a_map(cluster)
    seen = await cluster.get(path)

    patched = await cluster.patch(path, {"data": {"a": None, "b": "2"}})
    assert patched["data"] == {"b": "2"}
    with pytest.raises(Conflict, match="has been modified"):
        await cluster.replace(path, seen)
    version = {"resourceVersion": seen["metadata"]["resourceVersion"]}
    with pytest.raises(Conflict, match="has been modified"):
        await cluster.patch(path, {"metadata": version, "data": {"b": "3"}})
    with pytest.raises(Conflict, match="already exists"):
        await cluster.create(MAPS, {"metadata": {"name": seen["metadata"]["name"]}})
    replaced = await cluster.replace(path, {**patched, "data": {"c": "4"}})

    assert replaced["data"] == {"c": "4"}
    assert await cluster.get(path) == replaced


async def test_a_subresource_is_written_apart_T2(cluster: Cluster) -> None:
    told: list[tuple[str, str, str]] = []
    cluster.told = lambda *words: told.append(words)
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "promo"},
        "spec": {"target": "https://example.com/"},
    }
    await cluster.create(objects("shortlinks", TEAM), body)
    path = object_path("shortlinks", TEAM, "promo")
    status = {"observedGeneration": 1, "conditions": []}

    patched = await cluster.patch(
        path, {"status": status, "spec": {"target": "https://other.example/"}}, subresource="status"
    )

    assert patched["status"] == status
    assert patched["spec"]["target"] == "https://example.com/"
    assert [each async for page in cluster.pages(objects("shortlinks")) for each in page]
    assert told == [
        ("create", "shortlinks", "ok"),
        ("patch", "shortlinks/status", "ok"),
        ("get", "shortlinks", "ok"),
    ]


async def test_a_list_is_read_whole_a_page_at_a_time_T2(cluster: Cluster) -> None:
    made = {await a_map(cluster) for _ in range(7)}

    pages = [page async for page in cluster.pages(MAPS, limit=3)]

    found = [f"{MAPS}/{each['metadata']['name']}" for page in pages for each in page]
    assert made <= set(found)
    assert len(found) == len(set(found))
    assert {len(page) for page in pages[:-1]} == {3}


async def test_what_is_not_there_is_told_T2(cluster: Cluster) -> None:
    with pytest.raises(Missing, match='configmaps "none" not found'):
        await cluster.get(f"{MAPS}/none")
    with pytest.raises(Missing, match=r'shortlinks\.shortlink\.platform "none" not found'):
        await cluster.get(object_path("shortlinks", TEAM, "none"))


async def test_a_kind_that_is_not_served_is_no_object_that_is_gone_T2(cluster: Cluster) -> None:
    other = object_path("shortlinks", TEAM, "none").replace(API_VERSION, "shortlink.platform/v9")
    for path in ("/apis/no.such/v1/kinds/none", object_path("others", TEAM, "none"), other):
        with pytest.raises(Unreachable, match=f"{path}: 404: .*does not serve this kind"):
            await cluster.get(path)


async def test_an_object_that_is_not_allowed_names_its_field_T2(cluster: Cluster) -> None:
    with pytest.raises(Refused, match=r"metadata\.name: Invalid value") as refused:
        await cluster.create(MAPS, {"metadata": {"name": "_"}})
    assert refused.value.permission == ""


async def test_a_permission_taken_away_is_named_and_counts_again_once_given_T2(
    scratch: ScratchCluster, cluster: Cluster
) -> None:
    path = await a_map(cluster)
    async with open_cluster(scratch.kubeconfig_for(WRITES, "team-writer")) as writer:
        await allowed(writer, path)
        scratch.kubeconfig_for(READS, "team-writer")

        refused = await refused_at_last(writer, path)

        assert refused.permission == "patch configmaps"
        assert 'cannot patch resource "configmaps"' in str(refused)
        scratch.kubeconfig_for(WRITES, "team-writer")
        await allowed(writer, path)


async def allowed(cluster: Cluster, path: str) -> None:
    """Patch until it is done: roles reach the authorizer a moment after their write."""
    async with asyncio.timeout(10):
        while True:
            try:
                await cluster.patch(path, {"data": {"a": "2"}})
                return
            except Refused:
                await asyncio.sleep(0.05)


async def refused_at_last(cluster: Cluster, path: str) -> Refused:
    async with asyncio.timeout(10):
        while True:
            try:
                await cluster.patch(path, {"data": {"a": "2"}})
            except Refused as refused:
                return refused
            await asyncio.sleep(0.05)


async def test_a_login_that_is_not_accepted_is_told_T2(
    scratch: ScratchCluster, tmp_path: Path
) -> None:
    config = json.loads(scratch.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    file = tmp_path / "config"
    file.write_text(json.dumps(config))

    async with open_cluster(file) as nobody:
        with pytest.raises(Refused, match="token or certificate that we have is not accepted"):
            await nobody.get(MAPS)


async def test_a_server_of_another_authority_is_not_spoken_to_T2(
    scratch: ScratchCluster, tmp_path: Path
) -> None:
    config = json.loads(scratch.kubeconfig.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority-data"]  # then the system's
    file = tmp_path / "config"
    file.write_text(json.dumps(config))

    async with open_cluster(file) as stranger:
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await stranger.get(MAPS)


async def test_a_pods_token_counts_as_soon_as_it_is_renewed_T2(
    scratch: ScratchCluster, tmp_path: Path
) -> None:
    token = token_of(scratch.kubeconfig_for(READS, "team-reader"))
    (tmp_path / "ca.crt").write_bytes((scratch.folder / "ca.crt").read_bytes())
    (tmp_path / "namespace").write_text("shortlink\n")
    (tmp_path / "token").write_text("run out")
    host, _, port = scratch.url.removeprefix("https://").partition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    async with opened(pod_login(environ, tmp_path)) as pod:
        assert pod.login.namespace == "shortlink"
        with pytest.raises(Refused, match="not accepted"):
            await pod.get(MAPS)
        (tmp_path / "token").write_text(f"{token}\n")
        await pod.get(MAPS)
        (tmp_path / "token").unlink()
        with pytest.raises(Unreachable, match=r"No such file.*token"):
            await pod.get(MAPS)


def token_of(kubeconfig: Path) -> str:
    token: str = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
    return token


async def test_an_api_server_that_went_and_came_back_is_used_again_F9(
    scratch: ScratchCluster, cluster: Cluster
) -> None:
    path = await a_map(cluster)
    await asyncio.to_thread(scratch.stop)
    try:
        with pytest.raises(Unreachable, match=r"Cannot connect|reset|disconnected"):
            await cluster.get(path)
    finally:
        await asyncio.to_thread(scratch.start)

    assert (await cluster.get(path))["data"] == {"a": "1"}


async def test_a_black_hole_is_waited_for_no_longer_than_the_deadline_F9(
    proxy: Proxy, far: Cluster
) -> None:
    path = await a_map(far)
    proxy.swallow()
    asked = [far.get(path) for _ in range(40)]  # more than there are connections

    answers = await asyncio.gather(*asked, return_exceptions=True)

    assert {str(each) for each in answers} == {
        f"GET {path}: no answer in time from {far.login.server}"
    }
    assert {type(each) for each in answers} == {Unreachable}
    proxy.mend()
    assert (await far.get(path))["data"] == {"a": "1"}


async def test_a_connection_that_is_cut_is_unreachable_and_the_next_is_fine_F9(
    proxy: Proxy, far: Cluster
) -> None:
    path = await a_map(far)
    proxy.swallow()
    asked = asyncio.create_task(far.get(path))

    async def reached() -> bool:
        return proxy.asked[-1] == f"GET {path}"

    await until(reached, "the proxy to be asked")
    proxy.refuse()
    with pytest.raises(Unreachable) as cut:
        await asked
    assert "no answer in time" not in str(cut.value)
    proxy.mend()

    assert (await far.get(path))["data"] == {"a": "1"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Refused),
        (401, Refused),
        (403, Refused),
        (404, Missing),
        (408, Unreachable),
        (409, Conflict),
        (410, Unreachable),
        (422, Refused),
        (429, Unreachable),
        (500, Failed),
        (503, Unreachable),
        (504, Unreachable),
    ],
)
async def test_each_status_is_one_kind_of_error_T2(
    proxy: Proxy, far: Cluster, status: int, kind: type[ClusterError]
) -> None:
    proxy.answer(status, "^GET .*configmaps")
    told: list[tuple[str, str, str]] = []
    far.told = lambda *words: told.append(words)

    with pytest.raises(kind, match=f"GET {MAPS}: {status}: the proxy answers {status}"):
        await far.get(MAPS)
    answered = far.answered
    proxy.mend()
    await far.get(MAPS)

    assert told == [("get", "configmaps", kind.__name__.lower()), ("get", "configmaps", "ok")]
    assert (answered > 0) == (status < 500)
    assert far.answered > answered


async def test_a_list_that_took_too_long_is_begun_again_by_its_reader_F9(
    proxy: Proxy, far: Cluster
) -> None:
    for _ in range(4):
        await a_map(far)
    proxy.answer(410, r"continue=\w")

    with pytest.raises(Unreachable, match="410"):
        async for _ in far.pages(MAPS, limit=2):
            pass
