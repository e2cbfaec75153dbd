"""Management: the one door for changes, and those who push through it at once (G6, G7, W7, K4)."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from shortlink.links.lifecycle import Actor, Command, Delete, Edit, Enable, Restore
from shortlink.links.model import Link, State
from shortlink.links.policy import DAY
from shortlink.links.refusal import Reason, Refused
from shortlink.management import ATTEMPTS, CodesExhausted
from shortlink.store.port import StoreUnavailable
from tests.fakes import FailsAt
from tests.samples import ANN, BOB, NOW, POLICY, ROOT, a_create, a_link
from tests.world import Told, World

OTHER = "https://example.com/b"


async def switching(_method: str, _done: bool) -> None:
    """A gate that lets all the others run at each call."""
    await asyncio.sleep(0)


async def refused(call: Awaitable[object]) -> Refused:
    with pytest.raises(Refused) as caught:
        await call
    return caught.value


async def test_G7_of_many_who_want_an_alias_one_gets_it() -> None:
    world = World()
    wanted = [a_create(by=Actor(f"owner{n}"), token=str(n)) for n in range(20)]
    doors = [world.management(switching) for _ in wanted]
    outcomes = await asyncio.gather(
        *(door.create(one) for door, one in zip(doors, wanted, strict=True)),
        return_exceptions=True,
    )
    won = [one for one in outcomes if isinstance(one, Link)]
    lost = [one for one in outcomes if isinstance(one, Refused)]
    assert (len(won), len(lost)) == (1, 19)
    assert world.link("promo") == won[0]
    assert {one.refusal.reason for one in lost} == {Reason.TAKEN}
    assert world.told("promo") == ["created"]
    assert sum(door.created for door in doors) == 1


async def test_L3_of_many_who_want_a_freed_alias_one_gets_it() -> None:
    world = World()
    world.keep(a_link(state=State.FREE, owner="carl", tombstoned_at=NOW - 400 * DAY))
    outcomes = await asyncio.gather(
        *(world.management(switching).create(a_create(by=by, token=by.owner)) for by in (ANN, BOB)),
        return_exceptions=True,
    )
    (won,) = [one for one in outcomes if isinstance(one, Link)]
    assert world.link("promo") == won
    assert won.stamp == (2, 1)


async def test_L5_of_changes_at_once_each_is_carried_out_or_refused_on_the_other() -> None:
    world = World()
    world.keep(a_link())
    edits = [Edit(by=ANN, tags=(str(n),)) for n in range(ATTEMPTS - 1)]
    await asyncio.gather(*(world.management(switching).apply("promo", one) for one in edits))
    assert world.link("promo").version == ATTEMPTS
    assert world.told("promo") == ["edited"] * len(edits)


async def test_L5_an_edit_against_a_deletion() -> None:
    world = World()
    world.keep(a_link())
    edit, delete = await asyncio.gather(
        world.management(switching).apply("promo", Edit(by=ANN, target=OTHER)),
        world.management(switching).apply("promo", Delete(ANN)),
        return_exceptions=True,
    )
    assert isinstance(delete, Link)
    assert world.link("promo").state is State.TOMBSTONED
    told = world.told("promo")
    if isinstance(edit, Refused):
        assert edit.refusal.reason is Reason.TOMBSTONED
        assert told == ["tombstoned"]
    else:
        assert told == ["edited", "tombstoned"]


@pytest.mark.parametrize("command", [Edit(by=ANN, target=OTHER), Delete(ANN)])
async def test_L5_what_is_decided_on_the_link_as_seen_is_carried_out_and_told(
    command: Command,
) -> None:
    world, told = World(), Told()
    world.keep(a_link())
    done = await world.management(changed=[told]).carry_out(a_link(), command)
    assert told == [done] == [world.link("promo")]
    assert world.link("promo").stamp == (1, 2)
    assert len(world.kept.told) == 1


@pytest.mark.parametrize(
    "since",
    [{"version": 2, "tags": ("new",)}, {"generation": 2, "owner": "ann"}, {"generation": 2}],
)
async def test_L5_what_is_decided_on_what_is_no_longer_so_changes_nothing(
    since: dict[str, Any],
) -> None:
    world, told = World(), Told()
    now = a_link(**since)
    world.keep(now)
    management = world.management(changed=[told])
    for command in (Edit(by=ANN, target=OTHER), Delete(ANN)):
        assert await management.carry_out(a_link(), command) is None
    assert world.link("promo") == now
    assert told == []
    assert world.kept.told == []
    assert world.kept.due == set()


async def test_L5_of_two_who_saw_the_same_link_one_changes_it() -> None:
    world = World()
    world.keep(a_link())
    edits = [Edit(by=ANN, target=f"https://example.com/{n}") for n in range(2)]
    done = await asyncio.gather(
        *(world.management(switching).carry_out(a_link(), edit) for edit in edits)
    )
    assert sorted(link is None for link in done) == [False, True]
    assert world.link("promo") in done
    assert world.told("promo") == ["edited"]


async def test_L5_a_command_is_refused_on_the_link_as_seen_whatever_it_is_now() -> None:
    world = World()
    seen = a_link(state=State.TOMBSTONED, tombstoned_at=NOW - DAY)
    world.keep(a_link(version=2))
    told = await refused(world.management().carry_out(seen, Edit(by=ANN, target=OTHER)))
    assert told.refusal.reason is Reason.TOMBSTONED
    assert world.link("promo") == a_link(version=2)


async def test_K4_a_decision_that_changes_nothing_is_told_and_writes_nothing() -> None:
    world, told = World(), Told()
    world.keep(a_link())
    gate = FailsAt(1, False, StoreUnavailable("no call is needed"))
    management = world.management(gate, [told])
    assert await management.carry_out(a_link(), Edit(by=ANN)) == a_link()
    assert told == [a_link()]


@pytest.mark.parametrize("after", [False, True])
async def test_L5_a_change_of_unknown_outcome_is_looked_at_again(after: bool) -> None:
    world, told = World(), Told()
    world.keep(a_link())
    edit = Edit(by=ANN, target=OTHER)
    broken = world.management(FailsAt(1, after, StoreUnavailable("lost")), [told])
    with pytest.raises(StoreUnavailable):
        await broken.carry_out(a_link(), edit)
    assert told == []
    world.clock.advance(1)
    management = world.management(changed=[told])
    again = await management.carry_out(a_link(), edit)
    assert (again is None) is after
    done = again or await management.carry_out(world.link("promo"), edit)
    assert told == [done] == [world.link("promo")]
    assert world.told("promo") == ["edited"]


async def test_W1_whoever_loses_every_race_is_told_to_try_again() -> None:
    world = World()
    world.keep(a_link())

    async def others_are_faster(method: str, done: bool) -> None:
        if method == "change" and not done:
            link = world.link("promo")
            world.keep(a_link(version=link.version + 1))

    with pytest.raises(StoreUnavailable, match="changed by others 8 times"):
        await world.management(others_are_faster).apply("promo", Edit(by=ANN, target=OTHER))
    assert world.link("promo").version == 1 + ATTEMPTS


async def test_W1_an_alias_that_comes_and_goes_under_the_caller_is_given_up() -> None:
    world = World()

    async def others_are_faster(method: str, done: bool) -> None:
        if method in ("create", "change") and not done:
            held = world.kept.links.get("promo")
            generation = 1 if held is None else held.generation + 1
            world.keep(
                a_link(
                    owner="bob", state=State.FREE, generation=generation, tombstoned_at=NOW - DAY
                )
            )

    with pytest.raises(StoreUnavailable, match="try again"):
        await world.management(others_are_faster).create(a_create())


@pytest.mark.parametrize("after", [False, True])
async def test_W7_a_create_of_unknown_outcome_is_repeated_without_a_second_link(
    after: bool,
) -> None:
    world = World()
    wanted = a_create()
    with pytest.raises(StoreUnavailable):
        await world.management(FailsAt(1, after, StoreUnavailable("lost"))).create(wanted)
    world.clock.advance(1)
    link = await world.management().create(wanted)
    assert world.link("promo") == link
    assert world.told("promo") == ["created"]


COMMANDS: list[tuple[Link, Command]] = [
    (a_link(), Delete(ANN)),
    (a_link(), Edit(by=ANN, target=OTHER)),
    (a_link(state=State.TOMBSTONED, tombstoned_at=NOW - DAY), Restore(by=ANN)),
    (a_link(state=State.DISABLED, disabled="spam"), Enable(ROOT)),
]


@pytest.mark.parametrize(("link", "command"), COMMANDS)
@pytest.mark.parametrize("after", [False, True])
async def test_K4_a_change_of_unknown_outcome_is_told_before_its_repetition_is_acknowledged(
    link: Link, command: Command, after: bool
) -> None:
    world = World()
    world.keep(link)
    told = Told()
    broken = world.management(FailsAt(2, after, StoreUnavailable("lost")), [told])
    with pytest.raises(StoreUnavailable):
        await broken.apply("promo", command)
    assert told == []
    done = await world.management(changed=[told]).apply("promo", command)
    assert told == [done] == [world.link("promo")]
    assert len(world.kept.told) == 1


async def test_K4_a_repeated_create_is_told_before_it_is_acknowledged() -> None:
    world = World()
    await world.management().create(a_create())
    told = Told()
    await world.management(changed=[told]).create(a_create())
    assert told == [world.link("promo")]


async def test_K4_a_change_is_told_after_it_is_stored_and_a_refused_one_is_not() -> None:
    world = World()
    stored: list[bool] = []

    def told(link: Link) -> None:
        stored.append(world.link(link.code) == link)

    management = world.management(changed=[told, told])
    await management.create(a_create())
    await management.apply("promo", Delete(ANN))
    assert stored == [True] * 4
    await refused(management.apply("promo", Edit(by=ANN, target=OTHER)))
    await refused(management.create(a_create(by=BOB, token="t9")))
    assert len(stored) == 4


async def test_G2_a_taken_code_is_drawn_again() -> None:
    world = World()
    world.codes = ["AbC0001", "AbC0001", "AbC0002"]
    world.keep(a_link(code="AbC0001"))
    management = world.management()
    link = await management.create_generated(a_create(code=""))
    assert (link.code, link.custom) == ("AbC0002", False)
    assert (management.created, management.collisions) == (1, 2)


async def test_G6_a_generator_that_only_draws_taken_codes_stops_creating() -> None:
    world = World()
    world.codes = ["AbC0001"] * ATTEMPTS
    world.keep(a_link(code="AbC0001"))
    management = world.management()
    with pytest.raises(CodesExhausted, match="check the code generator"):
        await management.create_generated(a_create(code=""))
    assert (management.created, management.collisions) == (0, ATTEMPTS)


async def test_L3_a_freed_generated_code_is_not_drawn_into_use() -> None:
    world = World()
    world.codes = ["AbC0001", "AbC0002"]
    world.keep(a_link(code="AbC0001", state=State.FREE, owner="bob", tombstoned_at=NOW - DAY))
    assert (await world.management().create_generated(a_create(code=""))).code == "AbC0002"


async def test_W1_what_is_refused_for_another_reason_is_not_drawn_again() -> None:
    world = World()
    management = world.management()
    told = await refused(management.create_generated(a_create(code="", target="x:")))
    assert told.refusal.reason is Reason.INVALID_TARGET
    assert management.collisions == 0


@pytest.mark.parametrize(
    ("code", "held", "suggestion"),
    [
        ("promo", ["promo"], "promo1"),
        ("promo", ["promo", "promo1", "promo2"], "promo3"),
        ("promo", ["promo", *(f"promo{n}" for n in range(1, 6))], ""),
        ("api", [], "api1"),
        ("a-b", [], ""),
    ],
)
async def test_G7_a_refused_alias_comes_with_one_that_is_free(
    code: str, held: list[str], suggestion: str
) -> None:
    world = World()
    world.keep(*(a_link(code=one, owner="bob") for one in held))
    management = world.management()
    for told in (
        await refused(management.create(a_create(code=code))),
        await refused(management.preview(a_create(code=code))),
    ):
        assert told.refusal.suggestion == suggestion
        assert (f"{suggestion} is free" in told.refusal.message) == bool(suggestion)


async def test_T2_a_preview_shows_the_link_and_makes_nothing() -> None:
    world = World()
    link = await world.management().preview(a_create())
    assert world.kept.links == {}
    assert await world.management().create(a_create()) == link


@pytest.mark.parametrize(
    ("by", "changes", "reason"),
    [
        (ANN, {}, None),
        (ROOT, {}, None),
        (ANN, {"claim": "ann/promo"}, None),
        (ANN, {"state": State.QUARANTINED}, None),
        (BOB, {}, Reason.NOT_OWNER),
        (ANN, {"state": State.FREE}, Reason.UNKNOWN),
        (ANN, {"code": "other"}, Reason.UNKNOWN),
    ],
)
async def test_W2_a_link_is_shown_to_its_owner_and_to_administrators(
    by: Actor, changes: dict[str, Any], reason: Reason | None
) -> None:
    world = World()
    world.keep(a_link(**changes))
    management = world.management()
    if reason is None:
        assert await management.read("promo", by) == world.link("promo")
    else:
        assert (await refused(management.read("promo", by))).refusal.reason is reason


async def test_L4_each_write_carries_the_hints_of_what_falls_due() -> None:
    world = World()
    management = world.management()
    await management.create(a_create(expires_at=NOW + 2 * DAY))
    assert world.kept.due == {(NOW + DAY, "promo"), (NOW + 2 * DAY, "promo")}
    await management.apply("promo", Delete(ANN))
    assert (NOW + POLICY.grace, "promo") in world.kept.due
