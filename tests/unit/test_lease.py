"""Who leads: at most one believes so at any moment, and somebody does before long."""

import asyncio
import copy
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import pytest

from shortlink.clock import Clock, HandClock
from shortlink_operator import lease as election
from shortlink_operator.cluster import Cluster, Conflict, Missing, Refused, Unreachable
from shortlink_operator.lease import BELIEF, DURATION, EVERY, Deposed, Lease
from tests.samples import NOW

Json = dict[str, Any]

PATH = "/apis/coordination.k8s.io/v1/namespaces/shortlink/leases/operator"
SOON = EVERY + 1
"""Seconds in which one who may have the Lease has it."""


class Hours:
    """A hand-set clock, and sleepers whom it wakes one after the other."""

    def __init__(self) -> None:
        self.hand = HandClock(NOW)
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.hand.clock.steady() + round(seconds * 1000), waking))
        await waking

    async def go(self, seconds: float) -> None:
        """Let time pass, with all that happens in it."""
        end = self.hand.clock.steady() + round(seconds * 1000)
        await settle()
        while due := [each for each in self._sleepers if each[0] <= end]:
            first = min(due, key=lambda each: each[0])
            self._sleepers.remove(first)
            self.hand.advance(max(0, first[0] - self.hand.clock.steady()))
            if not first[1].done():
                first[1].set_result(None)
            await settle()
        self.hand.advance(max(0, end - self.hand.clock.steady()))


async def settle() -> None:
    """Let everybody do what can be done without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


class ApiServer:
    """Keeps one Lease."""

    def __init__(self) -> None:
        self.kept: Json | None = None
        self.writes = 0

    def keep(self, body: Json) -> Json:
        self.writes += 1
        meta = {**body["metadata"], "resourceVersion": str(self.writes)}
        self.kept = copy.deepcopy({**body, "metadata": meta})
        return copy.deepcopy(self.kept)

    def edit(self, **spec: object) -> None:
        """A change by somebody's hand."""
        assert self.kept is not None
        self.keep({**self.kept, "spec": {**self.kept["spec"], **spec}})

    @property
    def spec(self) -> Json:
        assert self.kept is not None
        spec: Json = self.kept["spec"]
        return spec


class Line:
    """One operator's Cluster. `trouble` is raised instead of every answer, `lost` instead of the
    answers to writes, which are done; when `hung` there are no answers at all.
    """

    def __init__(self, server: ApiServer) -> None:
        self.trouble: Exception | None = None
        self.lost: Exception | None = None
        self.hung = False
        self._server = server

    async def get(self, path: str) -> Json:
        assert path == PATH
        await self._answer()
        if self._server.kept is None:
            raise Missing("none")
        return copy.deepcopy(self._server.kept)

    async def create(self, path: str, body: Json) -> Json:
        assert path == PATH.rpartition("/")[0]
        await self._answer()
        if self._server.kept is not None:
            raise Conflict("there")
        return self._keep(body)

    async def replace(self, path: str, body: Json) -> Json:
        assert path == PATH
        await self._answer()
        kept = self._server.kept
        if kept is None:
            raise Missing("none")
        if body["metadata"]["resourceVersion"] != kept["metadata"]["resourceVersion"]:
            raise Conflict("changed")
        return self._keep(body)

    async def _answer(self) -> None:
        await asyncio.sleep(0)  # others come in between
        if self.hung:
            await asyncio.Event().wait()
        if self.trouble is not None:
            raise self.trouble

    def _keep(self, body: Json) -> Json:
        written = self._server.keep(body)
        if self.lost is not None:
            raise self.lost
        return written


class World:
    """One API server, one clock, and operators; some of them `run`, with all that they do."""

    def __init__(self) -> None:
        self.hours = Hours()
        self.server = ApiServer()
        self.lines: dict[str, Line] = {}
        self.leases: dict[str, Lease] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def lease(self, name: str, skew: int = 0, rate: float = 1.0) -> Lease:
        """An operator on a host whose clock is `skew` ms ahead, and runs at `rate`."""
        hand = self.hours.hand.clock
        clock = Clock(lambda: hand.wall() + skew, lambda: round(hand.steady() * rate))
        self.lines[name] = Line(self.server)
        cluster = cast(Cluster, self.lines[name])
        self.leases[name] = Lease(
            cluster, "shortlink", "operator", name, clock, self.hours.sleep, lambda: 0.0
        )
        return self.leases[name]

    def run(self, name: str, skew: int = 0, rate: float = 1.0) -> Lease:
        """An operator that takes part for ever."""
        lease = self.lease(name, skew, rate)

        async def life() -> None:
            while True:
                await lease.acquire()
                await lease.keep()

        self.tasks[name] = asyncio.create_task(life(), name=name)
        return lease

    @property
    def leads(self) -> list[str]:
        """Who believes that it leads."""
        return [name for name, each in self.leases.items() if each.held]

    async def watch(self, seconds: float) -> list[list[str]]:
        """Who believed so, four times a second."""
        seen = []
        for _ in range(round(seconds * 4)):
            await self.hours.go(0.25)
            seen.append(self.leads)
        return seen

    async def end(self, names: Iterable[str]) -> None:
        """Kill operators."""
        tasks = [self.tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.end(list(made.tasks))


async def test_a_lease_that_is_not_there_is_made_T2(world: World) -> None:
    lease = world.lease("a")
    with pytest.raises(Deposed):
        lease.check()

    await lease.acquire()

    lease.check()
    assert world.server.spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": DURATION,
        "acquireTime": "2027-01-15T08:00:00.000000Z",
        "renewTime": "2027-01-15T08:00:00.000000Z",
        "leaseTransitions": 0,
    }


async def test_of_contenders_at_the_same_instant_one_leads_T2(world: World) -> None:
    for name in ("a", "b", "c"):
        world.run(name)

    seen = await world.watch(60)

    assert seen == [seen[0]] * 240
    assert len(seen[0]) == 1


async def test_of_contenders_for_a_lease_run_out_one_leads_F9(world: World) -> None:
    await world.lease("dead").acquire()
    for name in ("a", "b", "c"):
        world.run(name)
    await world.hours.go(DURATION + SOON)

    seen = await world.watch(60)

    assert seen == [seen[0]] * 240
    assert len(seen[0]) == 1


async def test_a_leader_renews_and_is_never_waited_out_T2(world: World) -> None:
    world.run("a")
    await world.hours.go(SOON)
    world.run("b")
    acquired = world.server.spec["acquireTime"]

    seen = await world.watch(300)

    assert seen == [["a"]] * 1200
    assert world.server.spec["acquireTime"] == acquired
    assert world.server.spec["renewTime"] > acquired
    assert world.server.writes <= (300 + SOON) / EVERY + 1  # idle, it costs these writes alone


async def test_a_released_lease_is_taken_at_once_T2(world: World) -> None:
    leader = world.lease("a")
    await leader.acquire()
    world.run("b")
    await world.hours.go(1)
    assert world.leads == ["a"]

    await leader.release()
    with pytest.raises(Deposed):
        leader.check()
    await world.hours.go(SOON)

    assert world.leads == ["b"]
    assert world.server.spec["leaseTransitions"] == 1


async def test_releasing_leaves_the_lease_of_another_alone_T2(world: World) -> None:
    standby = world.lease("b")
    world.run("a")
    await world.hours.go(SOON)
    writes = world.server.writes

    await standby.release()

    assert world.server.writes == writes
    assert world.server.spec["holderIdentity"] == "a"


@pytest.mark.parametrize("trouble", [Unreachable("down"), Conflict("changed")])
async def test_a_release_that_fails_ends_belief_all_the_same_F9(
    world: World, trouble: Exception
) -> None:
    leader = world.lease("a")
    await leader.acquire()
    world.lines["a"].trouble = trouble

    await leader.release()

    assert not leader.held


async def test_a_dead_holders_lease_is_taken_after_its_duration_F9(world: World) -> None:
    await world.lease("dead").acquire()
    world.run("b")

    seen = await world.watch(DURATION - 1)
    await world.hours.go(1 + SOON)

    assert ["b"] not in seen
    assert world.leads == ["b"]
    assert world.server.spec["leaseTransitions"] == 1


async def test_the_duration_that_its_holder_wrote_counts_T2(world: World) -> None:
    await world.lease("dead").acquire()
    world.server.edit(leaseDurationSeconds=60)
    world.run("b")

    seen = await world.watch(59)
    await world.hours.go(1 + SOON)

    assert ["b"] not in seen
    assert world.leads == ["b"]


@pytest.mark.parametrize("skew", [-3_600_000, 3_600_000])
async def test_the_clocks_of_two_hosts_are_never_compared_F10(world: World, skew: int) -> None:
    world.run("a", skew)
    await world.hours.go(SOON)
    world.run("b")
    assert await world.watch(60) == [["a"]] * 240
    await world.end(["a"])

    seen = await world.watch(DURATION - EVERY)
    await world.hours.go(EVERY + SOON)

    assert ["b"] not in seen
    assert "b" in world.leads


@pytest.mark.parametrize("rate", [0.8, 1.0, 1.2])
async def test_belief_ends_before_another_may_lead_F11(world: World, rate: float) -> None:
    world.run("a", rate=rate)
    await world.hours.go(SOON)
    world.run("b")
    await world.hours.go(7)
    world.lines["a"].trouble = Unreachable("cut off")

    seen = await world.watch(DURATION + SOON)

    assert ["a", "b"] not in seen
    assert [] in seen
    assert seen[-1] == ["b"]


@pytest.mark.parametrize("trouble", [Unreachable("down"), Refused("403: cannot update leases")])
async def test_a_leader_outlives_a_short_trouble_F9(world: World, trouble: Exception) -> None:
    lease = world.run("a")
    await world.hours.go(SOON)
    world.lines["a"].trouble = trouble

    seen = await world.watch(BELIEF - EVERY - 1)
    assert seen == [["a"]] * len(seen)
    assert lease.trouble == str(trouble)
    world.lines["a"].trouble = None
    seen = await world.watch(60)

    assert seen == [["a"]] * len(seen)
    assert lease.trouble == ""


@pytest.mark.parametrize("trouble", [Unreachable("down"), Refused("403: cannot update leases")])
async def test_a_leader_that_can_not_renew_ends_and_begins_again_F9(
    world: World, trouble: Exception
) -> None:
    lease = world.lease("a")
    await lease.acquire()
    world.lines["a"].trouble = trouble
    kept = asyncio.create_task(lease.keep())

    await world.hours.go(BELIEF + EVERY)

    await kept
    assert not lease.held
    world.run("a")
    await world.hours.go(SOON)
    assert world.leads == ["a"]


async def test_an_api_server_that_hangs_does_not_hold_the_leader_up_F9(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "_REQUEST", 0.001)
    lease = world.lease("a")
    await lease.acquire()
    world.lines["a"].hung = True
    kept = asyncio.create_task(lease.keep())

    while not kept.done():
        await world.hours.go(0.1)
        await asyncio.sleep(0.001)  # real time, for the real deadline

    assert not lease.held
    assert lease.trouble == "the API server did not answer in time"


async def test_belief_counts_from_the_start_of_a_renewal_F9(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = world.lease("a")
    replace = world.lines["a"].replace

    async def slowly(path: str, body: Json) -> Json:
        world.hours.hand.advance(6000)
        return await replace(path, body)

    monkeypatch.setattr(world.lines["a"], "replace", slowly)
    await lease.acquire()
    kept = asyncio.create_task(lease.keep())
    await world.hours.go(EVERY)
    assert world.server.writes == 2  # the renewal is answered

    world.hours.hand.advance((BELIEF - 6) * 1000 - 1)
    assert world.leads == ["a"]
    world.hours.hand.advance(1)
    assert world.leads == []
    await world.hours.go(EVERY)
    await kept


async def test_a_renewal_whose_answer_was_lost_is_found_again_F9(world: World) -> None:
    world.run("a")
    await world.hours.go(1)
    world.run("b")
    world.lines["a"].lost = Unreachable("no answer in time")
    await world.hours.go(EVERY)
    world.lines["a"].lost = None

    seen = await world.watch(60)

    assert seen == [["a"]] * 240
    assert world.server.spec["leaseTransitions"] == 0


async def test_a_lease_taken_with_its_answer_lost_is_ours_F9(world: World) -> None:
    lease = world.run("a")
    world.lines["a"].lost = Unreachable("no answer in time")
    await settle()
    assert not lease.held
    world.lines["a"].lost = None

    await world.hours.go(2 * SOON)

    assert lease.held


async def test_a_stopped_process_does_not_believe_when_it_goes_on_F9(world: World) -> None:
    lease = world.lease("a")
    await lease.acquire()
    kept = asyncio.create_task(lease.keep())
    await world.hours.go(1)

    world.hours.hand.advance(BELIEF * 1000)  # all stand still, the steady clock does not

    with pytest.raises(Deposed):
        lease.check()
    writes = world.server.writes
    await world.hours.go(EVERY)
    await kept
    assert world.server.writes == writes


async def test_a_leader_whose_lease_another_has_ends_at_its_next_renewal_T2(world: World) -> None:
    lease = world.lease("a")
    await lease.acquire()
    kept = asyncio.create_task(lease.keep())
    world.server.edit(holderIdentity="somebody")

    await world.hours.go(EVERY)

    await kept
    assert not lease.held
    assert world.server.spec["holderIdentity"] == "somebody"


async def test_a_lease_edited_by_hand_stays_with_its_holder_T2(world: World) -> None:
    lease = world.run("a")
    await world.hours.go(1)
    world.server.edit(preferredHolder="whoever")

    seen = await world.watch(60)

    assert seen == [["a"]] * 240
    assert lease.held
    assert world.server.spec["preferredHolder"] == "whoever"


async def test_a_deleted_lease_is_made_again_by_its_holder_T2(world: World) -> None:
    lease = world.lease("a")
    await lease.acquire()
    kept = asyncio.create_task(lease.keep())
    world.run("b")
    await world.hours.go(1)
    world.server.kept = None

    seen = await world.watch(60)

    assert seen == [["a"]] * 240
    assert world.server.spec["holderIdentity"] == "a"
    assert not kept.done()  # its work went on
    kept.cancel()


async def test_a_deleted_lease_is_not_taken_while_its_holder_may_believe_T2(world: World) -> None:
    world.run("a")
    await world.hours.go(1)
    world.run("b")
    await world.hours.go(1)
    world.lines["a"].trouble = Unreachable("cut off")
    world.server.kept = None

    seen = await world.watch(DURATION + SOON)

    assert ["a", "b"] not in seen
    assert seen[-1] == ["b"]


async def test_a_lease_without_anything_in_it_is_nobodys_T2(world: World) -> None:
    world.server.keep({"metadata": {"name": "operator", "namespace": "shortlink"}})

    await world.lease("a").acquire()

    assert world.leads == ["a"]


async def test_trouble_with_the_lease_is_told_and_waited_out_ever_longer_F9(world: World) -> None:
    lease = world.lease("a")
    acquired = asyncio.create_task(lease.acquire())
    asked = 0

    async def refuse(path: str) -> Json:
        nonlocal asked
        asked += 1
        raise Refused("403: cannot get leases")

    get = world.lines["a"].get
    world.lines["a"].get = refuse  # type: ignore[method-assign]
    await world.hours.go(600)
    assert 20 <= asked <= 25  # up to 30 s apart
    assert lease.trouble == "403: cannot get leases"

    world.lines["a"].get = get  # type: ignore[method-assign]
    await world.hours.go(30)

    await acquired
    assert lease.trouble == ""
