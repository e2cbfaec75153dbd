"""Sweeper: rows go on as the clock says, whatever crashes and however many sweep (L1, L4, L5)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import structlog

from shortlink.links.lifecycle import Command, Delete, Disable, Edit, Restore
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import DAY, HOUR, MINUTE, SECOND, STALE_BOUND, YEAR, Policy
from shortlink.store.port import Due, StoreUnavailable
from shortlink_operator.sweep import SETTLE, Sweeper
from tests.fakes import Crash, FailsAt, Gate
from tests.samples import ANN, NOW, POLICY, ROOT, a_create, a_link
from tests.world import Told, World

LIFE = ["created", "expiring", "tombstoned", "quarantined", "freed"]


async def a_world(policy: Policy = POLICY, **changes: Any) -> World:
    """With Ann's alias `promo`, which expires in 10 days."""
    world = World(policy)
    await world.management().create(a_create(**{"expires_at": NOW + 10 * DAY} | changes))
    return world


async def sweep(world: World, gate: Gate | None = None) -> Sweeper:
    sweeper = Sweeper(world.management(gate), settle=0)
    await sweeper.run()
    return sweeper


async def state_after(world: World, span: int) -> State:
    world.clock.advance(span)
    await sweep(world)
    return world.link("promo").state


async def test_L1_a_link_goes_its_way_to_the_instant() -> None:
    world = await a_world()
    assert await state_after(world, 9 * DAY - 1) is State.ACTIVE
    assert world.told("promo") == LIFE[:1]
    assert await state_after(world, 1) is State.ACTIVE
    assert world.told("promo") == LIFE[:2]
    assert await state_after(world, DAY - 1) is State.ACTIVE
    assert await state_after(world, 1) is State.TOMBSTONED
    assert await state_after(world, POLICY.grace - 1) is State.TOMBSTONED
    assert await state_after(world, 1) is State.QUARANTINED
    assert await state_after(world, YEAR - POLICY.grace - 1) is State.QUARANTINED
    assert await state_after(world, 1) is State.FREE
    assert world.told("promo") == LIFE
    assert world.kept.due == set()
    assert world.link("promo").tombstoned_at == NOW + 10 * DAY


async def test_L4_a_year_late_the_sweeper_catches_up_but_frees_only_past_all_caches() -> None:
    world = await a_world()
    assert await state_after(world, 2 * YEAR) is State.QUARANTINED
    assert await state_after(world, STALE_BOUND - 1) is State.QUARANTINED
    assert await state_after(world, 1) is State.FREE
    assert world.told("promo") == [kind for kind in LIFE if kind != "expiring"]


async def test_L4_sweeping_again_at_once_does_nothing() -> None:
    world = await a_world()
    for span in (9 * DAY, DAY, POLICY.grace, YEAR):
        world.clock.advance(span)
        await sweep(world)
        before = (world.link("promo"), list(world.kept.told), set(world.kept.due))
        await sweep(world)
        assert (world.link("promo"), world.kept.told, world.kept.due) == before


STAGES = [9 * DAY, 10 * DAY, 10 * DAY + POLICY.grace, 10 * DAY + YEAR]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [Crash(), StoreUnavailable("lost")])
@pytest.mark.parametrize("stage", range(len(STAGES)))
async def test_L4_a_crash_at_any_store_call_loses_no_work_and_repeats_no_event(
    stage: int, error: BaseException, after: bool
) -> None:
    number = 0
    while True:
        number += 1
        world = await a_world()
        for at in STAGES[:stage]:
            world.clock.advance(NOW + at - world.clock.at)
            await sweep(world)
        world.clock.advance(NOW + STAGES[stage] - world.clock.at)
        gate = FailsAt(number, after, error)
        try:
            await sweep(world, gate)
        except type(error):
            await sweep(world)
        world.check()
        assert world.told("promo") == LIFE[: stage + 2]
        assert [at for at, _ in world.kept.due if at <= world.clock.at] == []
        if len(gate.calls) < number:
            break
    assert number > 3


@pytest.mark.parametrize("stage", range(len(STAGES)))
async def test_L4_two_sweepers_at_once_do_no_more_than_one(stage: int) -> None:
    """Before each call in turn the first pauses while the second does everything."""
    for pause in range(1, 12):
        world = await a_world()
        for at in STAGES[:stage]:
            world.clock.advance(NOW + at - world.clock.at)
            await sweep(world)
        world.clock.advance(NOW + STAGES[stage] - world.clock.at)
        left = pause

        async def meanwhile(_method: str, done: bool, _world: World = world) -> None:
            nonlocal left
            if not done:
                left -= 1
                if left == 0:
                    await sweep(_world)

        await sweep(world, meanwhile)
        world.check()
        assert world.told("promo") == LIFE[: stage + 2]


@pytest.mark.parametrize("pause", [2, 3, 4])  # before each read of the row, and before the write
@pytest.mark.parametrize(
    ("change", "state", "told"),
    [
        (Edit(by=ANN, expires_at=NOW + 20 * DAY), State.ACTIVE, ["edited", "expiring"]),
        (Edit(by=ANN, expires_at=None), State.ACTIVE, ["edited"]),
        (Delete(ANN), State.TOMBSTONED, ["tombstoned"]),
        (Disable(ROOT, "spam"), State.TOMBSTONED, ["disabled", "tombstoned"]),
    ],
)
async def test_L5_a_change_made_in_time_holds_against_a_sweeper_with_a_stale_copy(
    change: Command, state: State, told: list[str], pause: int
) -> None:
    """The owner's change was decided a moment before the expiry at which the sweeper began."""
    world = await a_world()
    world.clock.advance(10 * DAY)
    left = pause

    async def owner(_method: str, done: bool) -> None:
        nonlocal left
        if not done:
            left -= 1
            if left == 0:
                world.clock.at -= 1
                await world.management().apply("promo", change)
                world.clock.at += 1

    await sweep(world, owner)
    assert left <= 0
    assert world.link("promo").state is state
    assert world.told("promo")[1:] == [kind for kind in told if kind != "expiring"]
    world.clock.advance(9 * DAY)
    await sweep(world)
    assert world.told("promo")[1:] == told


async def test_L5_an_extended_link_outlives_its_old_hints() -> None:
    world = await a_world()
    world.clock.advance(10 * DAY - 1)
    await world.management().apply("promo", Edit(by=ANN, expires_at=NOW + 11 * DAY))
    assert await state_after(world, 1) is State.ACTIVE
    assert await state_after(world, DAY - 1) is State.ACTIVE
    assert await state_after(world, 1) is State.TOMBSTONED


async def test_L1_a_link_extended_within_its_last_day_is_announced_again() -> None:
    world = await a_world()
    await state_after(world, 9 * DAY)
    await world.management().apply("promo", Edit(by=ANN, expires_at=NOW + 12 * DAY))
    await state_after(world, DAY)
    assert world.told("promo") == ["created", "expiring", "edited"]
    await state_after(world, DAY)
    assert world.told("promo") == ["created", "expiring", "edited", "expiring"]


async def test_L1_a_link_that_is_to_expire_within_a_day_is_announced_at_once() -> None:
    world = await a_world(expires_at=NOW + HOUR)
    await sweep(world)
    assert world.told("promo") == ["created", "expiring"]


async def test_L2_a_restored_link_is_swept_anew() -> None:
    world = await a_world()
    await world.management().apply("promo", Delete(ANN))
    world.clock.advance(DAY)
    await world.management().apply("promo", Restore(by=ANN))
    assert await state_after(world, POLICY.grace - DAY) is State.TOMBSTONED
    assert world.link("promo").cause == "expired"


async def test_L3_a_code_is_looked_at_daily_while_reclaiming_is_off_and_freed_once_it_is_on() -> (
    None
):
    world = await a_world(replace(POLICY, reclaim=False))
    for span in (10 * DAY, POLICY.grace, 2 * YEAR, DAY, DAY):
        world.clock.advance(span)
        await sweep(world)
        world.clock.advance(MINUTE)
        await sweep(world)
        assert len([at for at, _ in world.kept.due if at > world.clock.at]) >= 1
    assert world.link("promo").state is State.QUARANTINED
    world.policy = POLICY
    assert await state_after(world, DAY) is State.FREE


async def test_L3_a_grace_made_longer_holds_for_tombstones_that_are_there() -> None:
    world = await a_world()
    await world.management().apply("promo", Delete(ANN))
    world.policy = replace(POLICY, grace=60 * DAY)
    assert await state_after(world, 30 * DAY) is State.TOMBSTONED
    assert await state_after(world, 30 * DAY) is State.QUARANTINED


async def test_L4_a_backlog_larger_than_a_batch_is_dealt_with_in_one_run() -> None:
    world = World()
    management = world.management()
    for n in range(450):
        await management.create(a_create(code=f"promo{n}", token=str(n), expires_at=NOW + n + 1))
    world.clock.advance(DAY)
    await sweep(world)
    assert {link.state for link in world.kept.links.values()} == {State.TOMBSTONED}


async def test_L4_a_hint_without_a_link_is_dropped_once_no_write_can_be_under_way() -> None:
    world = World()
    world.kept.due.add((NOW, "nothing"))
    world.clock.advance(MINUTE - 1)
    await sweep(world)
    assert world.kept.due == {(NOW, "nothing")}
    world.clock.advance(1)
    await sweep(world)
    assert world.kept.due == set()


@pytest.mark.parametrize("before", [None, NOW + 11 * MINUTE, NOW + 5 * DAY])
async def test_L1_a_sweeper_that_sees_a_hint_before_its_row_loses_neither(
    before: int | None,
) -> None:
    world = await a_world(expires_at=before)
    await sweep(world)
    world.clock.advance(10 * MINUTE)
    old = world.link("promo")
    new_expiry = world.clock.at + HOUR
    new = await world.management().apply("promo", Edit(by=ANN, expires_at=new_expiry))
    world.keep(old)
    for _ in range(3):
        await sweep(world)
    world.keep(new)
    await sweep(world)
    told = [event.id for event in world.kept.told if event.kind == "expiring"]
    assert told[-1] == f"promo.1.{new_expiry}.expiring"
    assert await state_after(world, HOUR) is State.TOMBSTONED
    world.check_events()


async def test_L1_a_sweeper_that_sees_a_hint_before_its_birth_loses_neither() -> None:
    world = await a_world(expires_at=NOW + HOUR)
    born = world.kept.links.pop("promo")
    await sweep(world)
    world.keep(born)
    await sweep(world)
    assert world.told("promo") == LIFE[:2]
    assert await state_after(world, HOUR) is State.TOMBSTONED


async def test_L4_a_row_that_cannot_be_read_stops_no_other_and_is_tried_hourly() -> None:
    world = await a_world()
    broken = Link(
        **{
            name: getattr(world.link("promo"), name)
            for name in Link.__dataclass_fields__
            if name not in ("code", "state")
        },
        code="broken",
        state=State.TOMBSTONED,  # without the time of its tombstone
    )
    world.keep(broken)
    world.kept.due.add((NOW, "broken"))
    world.clock.advance(10 * DAY)
    with structlog.testing.capture_logs() as logs:
        await sweep(world)
    assert world.link("promo").state is State.TOMBSTONED
    assert [(line["event"], line["code"]) for line in logs] == [("link can't be swept", "broken")]
    assert Due(world.clock.at + HOUR, "broken") in [Due(*one) for one in world.kept.due]
    assert world.link("broken") == broken


async def test_K4_the_sweepers_changes_are_told_to_the_caches() -> None:
    world = await a_world()
    told = Told()
    world.clock.advance(10 * DAY)
    await Sweeper(world.management(changed=[told]), settle=0).run()
    assert told == [world.link("promo")]


# The clock


class Sweeping:
    """A sweeper that lives on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.start()

    def start(self) -> None:
        self._sweeper = Sweeper(self.world.management())

    async def pass_by(self, span: int, step: int = MINUTE) -> None:
        """Let `span` go by, with a sweep at its beginning and after each `step`."""
        await self._sweeper.run()
        for _ in range(span // step):
            self.world.clock.advance(step)
            await self._sweeper.run()


async def test_L4_rows_move_only_once_the_clock_was_even_for_an_hour_after_the_start() -> None:
    world = await a_world()
    world.clock.advance(10 * DAY)
    sweeping = Sweeping(world)
    await sweeping.pass_by(SETTLE - 1, SETTLE - 1)
    assert world.told("promo") == ["created"]
    sweeping.start()  # a new process begins anew
    await sweeping.pass_by(SETTLE - 1, SETTLE - 1)
    assert world.told("promo") == ["created"]
    await sweeping.pass_by(1, 1)
    assert world.link("promo").state is State.TOMBSTONED


async def test_L4_a_clock_that_is_years_ahead_for_a_while_ends_no_link_and_frees_no_code() -> None:
    """It would else expire and free everything within seconds, for good."""
    world = await a_world()
    world.keep(
        a_link(
            code="gone",
            state=State.QUARANTINED,
            tombstoned_at=NOW - 40 * DAY,
            changed_at=NOW - 10 * DAY,
            cause=Cause.DELETED,
        )
    )
    world.kept.due.add((NOW - 40 * DAY + YEAR, "gone"))
    before = dict(world.kept.links)
    sweeping = Sweeping(world)
    await sweeping.pass_by(2 * SETTLE)
    with structlog.testing.capture_logs() as logs:
        world.clock.at += 6 * YEAR
        await sweeping.pass_by(50 * MINUTE)
        world.clock.at -= 6 * YEAR
        await sweeping.pass_by(2 * SETTLE)
    assert world.kept.links == before
    assert world.told("promo") == ["created"]
    jumps = [line["milliseconds"] for line in logs if line["event"].startswith("clock jumped")]
    assert jumps == [6 * YEAR, -6 * YEAR]
    assert await state_after(world, 10 * DAY) is State.TOMBSTONED  # its hint is still there


@pytest.mark.parametrize("start", [True, False])
async def test_L4_a_jump_ahead_that_comes_with_a_start_is_waited_out_too(start: bool) -> None:
    world = await a_world()
    sweeping = Sweeping(world)
    world.clock.at += 6 * YEAR
    if start:
        sweeping.start()
    await sweeping.pass_by(SETTLE - MINUTE)
    world.clock.at -= 6 * YEAR
    await sweeping.pass_by(2 * SETTLE)
    assert world.told("promo") == ["created"]


async def test_L4_jumps_that_keep_coming_keep_rows_where_they_are() -> None:
    world = await a_world()
    world.clock.advance(10 * DAY)
    sweeping = Sweeping(world)
    for jump in (6 * SECOND, -6 * SECOND, YEAR, -YEAR) * 5:
        world.clock.at += jump
        await sweeping.pass_by(SETTLE - MINUTE)
    assert world.link("promo").state is State.ACTIVE
    await sweeping.pass_by(MINUTE)
    assert world.link("promo").state is State.TOMBSTONED


async def test_L4_a_clock_that_was_set_for_good_is_believed_after_an_hour() -> None:
    world = await a_world()
    sweeping = Sweeping(world)
    await sweeping.pass_by(2 * SETTLE)
    world.clock.at += 10 * DAY
    await sweeping.pass_by(SETTLE - MINUTE)
    assert world.link("promo").state is State.ACTIVE
    await sweeping.pass_by(MINUTE)
    assert world.link("promo").state is State.TOMBSTONED


async def test_L4_a_clock_that_was_set_back_is_waited_for_too() -> None:
    world = await a_world()
    sweeping = Sweeping(world)
    world.clock.advance(10 * DAY)
    await sweeping.pass_by(SETTLE - MINUTE)
    world.clock.at -= MINUTE
    await sweeping.pass_by(SETTLE - MINUTE)
    assert world.link("promo").state is State.ACTIVE
    await sweeping.pass_by(MINUTE)
    assert world.link("promo").state is State.TOMBSTONED


@pytest.mark.parametrize("drift", [5 * SECOND, -5 * SECOND, 100])
async def test_L4_a_clock_that_is_corrected_bit_by_bit_is_even(drift: int) -> None:
    world = await a_world()
    world.clock.advance(10 * DAY)
    sweeping = Sweeping(world)
    for _ in range(SETTLE // MINUTE + 1):
        world.clock.at += drift
        await sweeping.pass_by(MINUTE)
    assert world.link("promo").state is State.TOMBSTONED


async def test_L4_the_links_of_a_batch_are_looked_at_together_to_share_commits() -> None:
    world = World()
    for n in range(50):
        await world.management().create(
            a_create(code=f"promo{n}", token=str(n), expires_at=NOW + 1)
        )
    world.clock.advance(1)
    under_way = most = 0

    async def gate(method: str, done: bool) -> None:
        nonlocal under_way, most
        if method == "change":
            under_way += -1 if done else 1
            most = max(most, under_way)
            await asyncio.sleep(0)

    await sweep(world, gate)
    assert most >= 50
    assert {link.state for link in world.kept.links.values()} == {State.TOMBSTONED}


async def test_L4_when_the_store_fails_for_one_of_a_batch_no_hint_of_it_is_dropped() -> None:
    world = World()
    for n in range(50):
        await world.management().create(
            a_create(code=f"promo{n}", token=str(n), expires_at=NOW + 1)
        )
    world.clock.advance(1)
    due = set(world.kept.due)
    with pytest.raises(StoreUnavailable):
        await sweep(world, FailsAt(30, False, StoreUnavailable("lost")))
    assert due <= world.kept.due
    await sweep(world)
    assert {link.state for link in world.kept.links.values()} == {State.TOMBSTONED}
    world.check_events()
