"""The operator's process: it leads only with the Lease, and is honest about how it goes."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from prometheus_client import CollectorRegistry

from shortlink.clock import HandClock
from shortlink.links.model import Event
from shortlink.loops import DEADLINE
from shortlink.serving.parts import Parts
from shortlink.settings import OperatorSettings
from shortlink.store.port import StoreUnavailable
from shortlink_operator import leading
from shortlink_operator.cluster import (
    Cluster,
    Conflict,
    Login,
    Missing,
    Refused,
    Unreachable,
    object_path,
)
from shortlink_operator.kinds import API_VERSION
from shortlink_operator.lease import BELIEF
from shortlink_operator.process import Operator
from shortlink_operator.queue import STUCK_SECONDS
from tests.fake_cluster import Body, FakeCluster
from tests.fakes import MemoryStore
from tests.samples import TARGET, a_create
from tests.unit.test_serving import ask, get
from tests.world import World

SPEC = {"target": TARGET, "code": "promo"}
LEASE = "/apis/coordination.k8s.io/v1/namespaces/shortlink/leases"
POLICY = object_path("linkpolicies", None, "default")
OWN = OperatorSettings(
    "here", "https://s.example", frozenset({"s.example"}), Path(), "operator-0", None, 300
)


class ApiServer:
    """Objects, a Lease, a LinkPolicy if any. `saw` is the watch's, of who leads now."""

    def __init__(self) -> None:
        self.login = Login("https://127.0.0.1:1", "shortlink")
        self.told: Any = None
        self.answered = 0
        self.links = FakeCluster(lambda kind, body: self.saw(kind, body))
        self.lease: Body | None = None
        self.policy: Body | None = None
        self._version = 0

    def saw(self, kind: str, body: Body) -> None:
        if Watch.now is not None:
            Watch.now("shortlinks", kind, body)

    def holder(self) -> str | None:
        return None if self.lease is None else self.lease["spec"]["holderIdentity"]

    async def get(self, path: str) -> Body:
        if "/shortlinks/" in path:
            return await self.links.get(path)
        if path.startswith(LEASE) and self.lease is not None:
            return self.lease
        if path == POLICY and self.policy is not None:
            return self.policy
        raise Missing(path)

    async def pages(self, path: str, limit: int = 500) -> AsyncIterator[list[Body]]:
        async for page in self.links.pages(path, limit):
            yield page

    async def patch(self, path: str, body: Mapping[str, Any], *, subresource: str = "") -> Body:
        if path == POLICY:
            return dict(body)
        return await self.links.patch(path, body, subresource=subresource)

    async def create(self, path: str, body: Mapping[str, Any]) -> Body:
        return self._keep(body) if path == LEASE else await self.links.create(path, body)

    async def replace(self, _path: str, body: Mapping[str, Any]) -> Body:
        assert self.lease is not None
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("the lease is another's")
        return self._keep(body)

    def take_lease(self) -> None:
        """Another operator has it."""
        assert self.lease is not None
        self._keep({**self.lease, "spec": {**self.lease["spec"], "holderIdentity": "another"}})

    def free_lease(self) -> None:
        assert self.lease is not None
        self._keep({**self.lease, "spec": {**self.lease["spec"], "holderIdentity": None}})

    def _keep(self, body: Mapping[str, Any]) -> Body:
        self._version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._version)}
        self.lease = {**body, "metadata": metadata}
        return self.lease


class Watch:
    """In the place of Kopf's."""

    now: Any = None

    def __init__(self, _cluster: object, saw: Any, _begun: object) -> None:
        self._saw = saw

    async def run(self) -> None:
        Watch.now = self._saw
        try:
            await asyncio.Event().wait()
        finally:
            Watch.now = None

    async def listed(self) -> None:
        """Nothing was there."""


class Rig:
    """An operator on a store in memory. `gate` holds its sink, `down` fails its store, and what
    it sleeps between renewals and looks at the Lease is over when `rest` is set."""

    def __init__(self) -> None:
        self.world = World()
        self.api = ApiServer()
        self.hand: HandClock = self.world.clock
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.down = False
        self.held: asyncio.Event | None = None
        self.looking = asyncio.Event()
        self._sleepers: list[asyncio.Future[None]] = []
        self.operator = Operator(
            Parts(MemoryStore(self.world.kept, self._store), None, CollectorRegistry()),
            cast(Cluster, self.api),
            OWN,
            self.hand.clock,
            self._sink,
            sleep=self._sleep,
        )

    async def until(self, what: Any) -> None:
        """Wait for it."""
        async with asyncio.timeout(30):
            while not what():  # noqa: ASYNC110 - of many things, and time stands still
                await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let everybody do what can be done without time passing."""
        for _ in range(200):
            await asyncio.sleep(0)

    def wake(self) -> None:
        """All that is slept is over."""
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    async def page(self, path: str) -> tuple[int, str]:
        return await ask(self.operator.ops, get(path))

    async def _store(self, method: str, done: bool) -> None:
        if self.held is not None and method == "claim" and not done:
            self.looking.set()
            await self.held.wait()
        if self.down:
            raise StoreUnavailable("links.db is locked")

    async def _sink(self, events: Sequence[Event]) -> None:
        self.entered.set()
        await self.gate.wait()

    async def _sleep(self, _seconds: float) -> None:
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        await sleeper


@pytest.fixture(autouse=True)
def no_kopf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "Watch", Watch)


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator["asyncio.Task[None]"]:
    """It runs, and leads."""
    await rig.operator.ops.start("127.0.0.1", 0)
    task = asyncio.create_task(rig.operator.run())
    try:
        await rig.until(lambda: Watch.now is not None or task.done())
        yield task
    finally:
        rig.gate.set()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        rig.operator.ops.close()


def is_ready(rig: Rig, key: str) -> bool:
    status = rig.api.links.objects[key].get("status") or {}
    return [each["status"] for each in status.get("conditions", ())] == ["True"]


async def test_T2_it_looks_after_objects_and_lets_the_lease_go_when_it_is_stopped() -> None:
    rig = Rig()
    async with running(rig) as task:
        rig.api.links.apply("ann/promo", SPEC)
        await rig.until(lambda: is_ready(rig, "ann/promo"))
        holder = rig.api.holder()
        assert holder is not None
        assert holder.startswith("operator-0-")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert rig.api.holder() is None


async def test_T2_a_look_that_is_under_way_ends_before_the_lease_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leading, "END_SECONDS", 3600)  # its end, not a deadline, is what counts
    rig = Rig()
    rig.held = asyncio.Event()
    async with running(rig) as task:
        rig.api.links.apply("ann/promo", SPEC)
        await rig.looking.wait()
        task.cancel()
        await rig.settle()
        assert rig.api.holder() is not None
        rig.held.set()
        with suppress(asyncio.CancelledError):
            await task
        assert is_ready(rig, "ann/promo")
        assert rig.api.holder() is None


async def test_T2_who_lost_the_lease_does_nothing_until_it_has_it_again() -> None:
    rig = Rig()
    async with running(rig):
        rig.api.take_lease()
        rig.wake()
        await rig.until(lambda: rig.operator._leadership is None)
        assert Watch.now is None
        assert (await rig.page("/readyz"))[1] == "standing by\n"
        assert "shortlink_operator_leader 0.0" in (await rig.page("/metrics"))[1]
        rig.api.links.apply("ann/promo", SPEC)
        written = list(rig.api.links.writes)
        rig.wake()
        await rig.settle()
        assert rig.api.links.writes == written == []
        rig.api.free_lease()
        rig.wake()
        await rig.until(lambda: Watch.now is not None)
        await rig.until(lambda: is_ready(rig, "ann/promo"))  # a sweep finds it
        series = (await rig.page("/metrics"))[1]
        assert "shortlink_operator_leader 1.0" in series
        assert series.count('shortlink_loop_rounds_total{loop="relay"}') == 1


async def test_T2_who_may_not_believe_in_the_lease_writes_nothing_and_asks_for_it_again() -> None:
    """As after a time in which the process stood still."""
    rig = Rig()
    async with running(rig):
        first = rig.operator._leadership
        rig.hand.advance(BELIEF * 1000)
        rig.api.links.apply("ann/promo", SPEC)
        await rig.until(lambda: rig.operator._leadership is not first)
        assert rig.api.links.writes == []
        await rig.until(lambda: is_ready(rig, "ann/promo"))


async def test_T2_who_loses_the_lease_before_it_is_prepared_asks_for_it_again() -> None:
    rig = Rig()
    slow = [int(BELIEF * 1000)]

    async def get(path: str) -> Body:
        if "linkpolicies" in path and slow:
            rig.hand.advance(slow.pop())
        return await ApiServer.get(rig.api, path)

    rig.api.get = get  # type: ignore[method-assign]
    rig.api.links.apply("ann/promo", SPEC)
    async with running(rig) as task:
        await rig.until(lambda: task.done() or is_ready(rig, "ann/promo"))
        assert not task.done()
        assert not slow


async def test_T2_who_leads_again_reads_the_policy_before_it_changes_anything() -> None:
    rig = Rig()

    async def refuse(path: str) -> Body:
        if "linkpolicies" in path:
            raise Refused(f"GET {path}: 403: no")
        return await ApiServer.get(rig.api, path)

    async with running(rig):
        rig.api.take_lease()
        rig.wake()
        await rig.until(lambda: rig.operator._leadership is None)
        rig.api.get = refuse  # type: ignore[method-assign]
        rig.api.links.apply("ann/promo", SPEC)
        rig.api.free_lease()
        rig.wake()
        await rig.until(lambda: "status" in rig.api.links.objects["ann/promo"])
        (condition,) = rig.api.links.objects["ann/promo"]["status"]["conditions"]
        assert condition["reason"] == "PolicyInvalid"


async def test_T2_a_look_that_fails_once_the_lease_is_lost_is_not_told() -> None:
    rig = Rig()
    stopped = [True]

    async def patch(path: str, body: Mapping[str, Any], *, subresource: str = "") -> Body:
        if stopped:
            rig.hand.advance(BELIEF * 1000)
            stopped.clear()
            raise Unreachable("no answer in time")
        return await ApiServer.patch(rig.api, path, body, subresource=subresource)

    rig.api.patch = patch  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as logs:
        async with running(rig):
            first = rig.operator._leadership
            rig.api.links.apply("ann/promo", SPEC)
            await rig.until(lambda: rig.operator._leadership is not first)
            await rig.until(lambda: is_ready(rig, "ann/promo"))
    assert [line for line in logs if "not handled" in line["event"]] == []


async def test_O1_a_leader_whose_loop_hangs_is_not_alive_until_it_moves_again() -> None:
    rig = Rig()
    await rig.world.management().create(a_create())
    async with running(rig):
        await rig.entered.wait()
        assert await rig.page("/healthz") == (200, "alive\n")
        rig.hand.advance(int(DEADLINE * 1000) + 1000)
        assert "hung: relay" in (await rig.page("/healthz"))[1]
        assert (await rig.page("/healthz"))[0] == 503
        rig.gate.set()
        await rig.until(lambda: not rig.world.kept.pending)
        assert "relay" not in (await rig.page("/healthz"))[1]
        assert "shortlink_events_published_total 1.0" in (await rig.page("/metrics"))[1]


async def test_O1_a_leader_whose_looks_do_not_end_is_not_alive() -> None:
    rig = Rig()
    rig.held = asyncio.Event()
    async with running(rig):
        rig.api.links.apply("ann/promo", SPEC)
        await rig.looking.wait()
        rig.hand.advance(int(STUCK_SECONDS * 1000) + 1)
        assert "hung: queue" in (await rig.page("/healthz"))[1]
        rig.held.set()


async def test_O1_a_process_whose_event_loop_is_late_is_not_alive_until_it_is_in_time() -> None:
    rig = Rig()
    async with running(rig):
        rig.hand.advance(6001)
        assert await rig.page("/healthz") == (503, "the event loop is late\n")
        rig.wake()
        await rig.settle()
        assert (await rig.page("/healthz"))[0] == 200


async def test_O1_without_its_store_it_is_alive_but_not_ready() -> None:
    rig = Rig()
    async with running(rig):
        assert await rig.page("/readyz") == (200, "leading\n")
        rig.down = True
        assert (await rig.page("/readyz"))[0] == 503
        assert (await rig.page("/healthz"))[0] == 200


async def test_O1_without_its_api_server_it_is_alive_but_not_ready() -> None:
    rig = Rig()
    async with running(rig):
        rig.hand.advance(30_001)
        rig.wake()
        await rig.settle()
        assert await rig.page("/readyz") == (503, "not ready: the API server does not answer\n")
        assert (await rig.page("/healthz"))[0] == 200
        rig.api.answered = rig.hand.clock.steady()
        assert (await rig.page("/readyz"))[0] == 200


async def test_O1_who_waits_for_a_long_sweep_is_taken_to_hang_only_when_the_sweep_does() -> None:
    rig = Rig()
    page = asyncio.Semaphore(0)

    async def pages(path: str, limit: int = 500) -> AsyncIterator[list[Body]]:
        for _ in range(3):
            await page.acquire()
            yield []

    rig.api.pages = pages  # type: ignore[method-assign]
    async with running(rig):
        leadership = rig.operator._leadership
        assert leadership is not None
        await rig.settle()
        rig.api.policy = {
            "apiVersion": API_VERSION,
            "kind": "LinkPolicy",
            "metadata": {"name": "default", "generation": 1, "resourceVersion": "1"},
            "spec": {"grace": "48h"},
        }
        policy = asyncio.create_task(leadership._policy())
        await rig.settle()
        for _ in range(2):
            rig.hand.advance(int(DEADLINE * 1000) - 1000)
            page.release()
            await rig.settle()
            told = leadership.trouble()
            assert not [each for each in told if "policy" in each or "objects" in each]
        assert not policy.done()
        rig.hand.advance(int(DEADLINE * 1000) + 11_000)
        assert "hung: policy" in leadership.trouble()
        for _ in range(4):
            page.release()
        await policy


async def test_T2_orphans_are_looked_for_once_all_objects_are_known() -> None:
    rig = Rig()
    rig.down = True
    async with running(rig):
        leadership = rig.operator._leadership
        assert leadership is not None
        for _ in range(8):
            rig.hand.advance(int(DEADLINE * 1000))
            with suppress(StoreUnavailable):
                await leadership._objects()
        assert "hung: orphans" not in leadership.trouble()
        assert 'shortlink_loop_rounds_total{loop="orphans"} 0.0' in (await rig.page("/metrics"))[1]
        rig.down = False
        await leadership._objects()
        await rig.settle()
        assert 'shortlink_loop_rounds_total{loop="orphans"} 1.0' in (await rig.page("/metrics"))[1]


async def test_O1_a_watch_that_misses_what_sweeps_find_is_not_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    async with running(rig):
        leadership = rig.operator._leadership
        assert leadership is not None
        await rig.until(lambda: leadership.loops._loops[0].rounds)  # else it would find out itself
        monkeypatch.setattr(leadership._drift, "deaf", True)
        assert await rig.page("/healthz") == (
            503,
            "the watch does not report what sweeps find\n",
        )


async def test_O4_what_it_publishes_is_in_its_log() -> None:
    rig = Rig()
    rig.gate.set()
    await rig.world.management().create(a_create())
    with structlog.testing.capture_logs() as logs:
        async with running(rig):
            await rig.until(lambda: not rig.world.kept.pending)
    (told,) = [entry for entry in logs if entry["event"] == "link event"]
    assert (told["kind"], told["code"]) == ("created", "promo")
    assert told["at"].endswith("Z")


async def test_O1_its_series_tell_of_its_objects_and_its_queue() -> None:
    rig = Rig()
    async with running(rig):
        rig.api.links.apply("ann/promo", SPEC)
        rig.api.links.apply("ann/loop", SPEC | {"target": "https://s.example/x", "code": "loop"})
        await rig.until(lambda: is_ready(rig, "ann/promo"))
        await rig.until(lambda: "status" in rig.api.links.objects["ann/loop"])
        series = (await rig.page("/metrics"))[1]
        for line in (
            'shortlink_operator_objects{reason="Ready"} 1.0',
            'shortlink_operator_queue_keys{state="running"} 0.0',
            'shortlink_operator_paused{what="sweeper"} 0.0',
            "shortlink_operator_orphans 0.0",
            "shortlink_operator_overdue_seconds 0.0",
            'shortlink_loop_rounds_total{loop="objects"} 1.0',
        ):
            assert line in series
        assert 'shortlink_operator_watch_events_total{kind="shortlinks"}' in series


async def test_a_permission_that_is_missing_is_told_and_the_rest_goes_on() -> None:
    rig = Rig()

    async def refuse(path: str) -> Body:
        if "configmaps" in path:
            raise Refused(f"GET {path}: 403: no")
        return await ApiServer.get(rig.api, path)

    rig.api.get = refuse  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as logs:
        async with running(rig):
            rig.api.links.apply("ann/promo", SPEC)
            await rig.until(lambda: is_ready(rig, "ann/promo"))
            await rig.until(lambda: [each for each in logs if "403" in str(each.get("error"))])
            assert (await rig.page("/healthz"))[0] == 200
