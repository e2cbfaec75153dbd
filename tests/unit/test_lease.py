"""Who leads: at most one believes so at any moment, and somebody does before long."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shortlink_operator import lease as election
from shortlink_operator.cluster import Conflict, Refused, Unreachable
from shortlink_operator.lease import BELIEF, DURATION, EVERY, Deposed
from tests.unit.lease_world import Json, World, settle

SOON = EVERY + 1
"""Seconds in which one who may have the Lease has it."""


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


async def test_a_lease_given_by_hand_to_nobody_for_ever_is_taken_T2(world: World) -> None:
    world.run("a")
    await world.hours.go(SOON)
    most = 2**31 - 1
    world.server.edit(holderIdentity="x", leaseDurationSeconds=most, leaseTransitions=most)

    await world.hours.go(60 + SOON)

    assert world.leads == ["a"]
    assert world.server.spec["leaseTransitions"] == most  # the API server takes no more


async def test_a_lease_shortened_by_hand_is_not_taken_while_its_holder_may_believe_T2(
    world: World,
) -> None:
    world.run("a")
    await world.hours.go(SOON)
    world.run("b")
    await world.hours.go(SOON)
    world.lines["a"].trouble = Unreachable("cut off")
    world.server.edit(leaseDurationSeconds=1)

    seen = await world.watch(DURATION + SOON)

    assert ["a", "b"] not in seen
    assert seen[-1] == ["b"]


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
