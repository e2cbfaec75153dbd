"""The watch, with Kopf as it is, on a real API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shortlink_operator.cluster import Cluster, object_path, objects, open_cluster
from shortlink_operator.watch import LISTED, STOP_SECONDS, Watch
from tests.apiserver import ScratchCluster
from tests.drills.demo_process import wait_for
from tests.operator_rig import Objects, OperatorProcess
from tests.proxy import Proxy

SECONDS = 60.0
_numbers = count(1)


class Heard:
    """What a watch told: type and name. `until` waits for one."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.begun = 0
        self.beginning = asyncio.Event()
        self._more = asyncio.Event()

    def saw(self, plural: str, type_: str, body: dict[str, Any]) -> None:
        assert body["kind"] == {"shortlinks": "ShortLink", "linkpolicies": "LinkPolicy"}[plural]
        self.events.append((type_, body["metadata"]["name"]))
        self._more.set()

    def begin(self) -> None:
        self.begun += 1
        self.beginning.set()
        self.beginning = asyncio.Event()

    async def until(self, name: str, *types: str) -> None:
        wanted = {(each, name) for each in types or ("ADDED", LISTED)}
        async with asyncio.timeout(SECONDS):
            while not wanted & set(self.events):
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def watching(cluster: Cluster, heard: Heard) -> AsyncIterator[None]:
    task = asyncio.create_task(Watch(cluster, heard.saw, heard.begin).run())
    try:
        yield
    finally:
        task.cancel()
        async with asyncio.timeout(STOP_SECONDS):
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def cluster(scratch: ScratchCluster) -> AsyncIterator[Cluster]:
    await asyncio.to_thread(scratch.apply_crds)
    async with open_cluster(scratch.kubeconfig) as opened:
        yield opened


@pytest.fixture
def namespace(scratch: ScratchCluster) -> str:
    name = f"watch-{next(_numbers)}"
    scratch.kubectl("create", "namespace", name)
    return name


async def apply(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    body = {
        "apiVersion": "shortlink.platform/v1alpha1",
        "kind": "ShortLink",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"target": "https://example.com/"},
    }
    return await cluster.create(objects("shortlinks", namespace), body)


async def test_T2_a_watch_can_be_begun_again_and_ends_only_what_is_its_own(
    cluster: Cluster, namespace: str
) -> None:
    heard = Heard()
    async with watching(cluster, heard):
        await apply(cluster, namespace, "a")
        await heard.until("a")
        mine = asyncio.create_task(asyncio.Event().wait())  # begun while Kopf runs
    assert not mine.done()
    await apply(cluster, namespace, "b")
    async with watching(cluster, heard):
        await heard.until("b", LISTED)
        await apply(cluster, namespace, "c")
        await heard.until("c")
        await cluster.patch(
            object_path("shortlinks", namespace, "c"), {"metadata": {"labels": {"x": "y"}}}
        )
        await heard.until("c", "MODIFIED")
    assert heard.begun == 2
    others = asyncio.all_tasks() - {asyncio.current_task(), mine}
    assert {task.get_name() for task in others if not task.done()} == set()
    mine.cancel()


async def test_T2_a_watch_writes_nothing_to_what_it_sees(cluster: Cluster, namespace: str) -> None:
    heard = Heard()
    made = await apply(cluster, namespace, "a")
    async with watching(cluster, heard):
        await heard.until("a", LISTED)
        await apply(cluster, namespace, "b")
        await heard.until("b")
    assert await cluster.get(object_path("shortlinks", namespace, "a")) == made
    events = await cluster.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    assert events["items"] == []


async def test_T2_a_watch_waits_for_its_kinds_and_outlives_their_end(
    scratch: ScratchCluster, cluster: Cluster
) -> None:
    heard = Heard()
    gone = ("shortlinks", "linkpolicies")

    def take_away() -> None:
        for plural in gone:
            scratch.kubectl("delete", "crd", f"{plural}.shortlink.platform")

    await asyncio.to_thread(take_away)
    async with watching(cluster, heard):
        await asyncio.to_thread(scratch.apply_crds)
        await asyncio.to_thread(scratch.kubectl, "create", "namespace", "watch-kinds")
        await apply(cluster, "watch-kinds", "a")
        await heard.until("a")
        await asyncio.to_thread(take_away)
        await heard.until("a", "DELETED")
        await asyncio.to_thread(scratch.apply_crds)
        await apply(cluster, "watch-kinds", "b")
        await heard.until("b")


async def test_T2_a_watch_goes_on_when_the_api_server_is_back(
    scratch: ScratchCluster, cluster: Cluster, namespace: str
) -> None:
    heard = Heard()
    async with watching(cluster, heard):
        await apply(cluster, namespace, "up")
        await heard.until("up")
        await asyncio.to_thread(scratch.stop)
        await asyncio.to_thread(scratch.start)
        await apply(cluster, namespace, "again")
        await heard.until("again")


@pytest.mark.usefixtures("cluster")
def test_O4_what_is_applied_changed_and_deleted_is_in_the_audit_log_once(
    scratch: ScratchCluster, namespace: str, tmp_path: Path
) -> None:
    key, audit = f"{namespace}/promo", tmp_path / "audit.jsonl"

    def told() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        return [line for line in lines if line["owner"] == namespace]

    operator = OperatorProcess(tmp_path, scratch.kubeconfig)
    with closing(Objects(scratch)) as objects, operator:
        operator.start()
        objects.create(key, {"target": "https://example.com/"})
        code = objects.ready(key)["status"]["code"]
        objects.edit(key, target="https://example.com/b")
        objects.ready(key)
        objects.delete(key)
        objects.gone(key)
        wait_for(lambda: len(told()) >= 3, f"three events in {audit}: {told()}", SECONDS)
        assert operator.stop() == 0
    lines = told()
    assert [line["kind"] for line in lines] == ["created", "edited", "tombstoned"]
    assert {line["code"] for line in lines} == {code}
    assert len({line["id"] for line in lines}) == 3


async def test_T2_a_watch_that_fails_is_begun_anew_and_leaves_nothing_behind(
    scratch: ScratchCluster, cluster: Cluster, namespace: str
) -> None:
    heard = Heard()
    with await asyncio.to_thread(Proxy, scratch) as proxy:
        async with open_cluster(proxy.kubeconfig) as through, watching(through, heard):
            await apply(cluster, namespace, "before")
            await heard.until("before")
            proxy.answer(500, "GET .*/shortlinks.*watch", in_stream=True)
            proxy.cut()
            async with asyncio.timeout(SECONDS):
                while heard.begun < 2:
                    await heard.beginning.wait()
            proxy.mend()
            await apply(cluster, namespace, "after")
            await heard.until("after")
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert len([name for name in names if name.startswith("watcher for")]) == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}
