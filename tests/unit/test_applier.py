"""Applier: an object of a cluster comes to one link and one claim, whatever crashes, and a
deposed leader undoes nothing of its successor's (T2, L5)."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from shortlink.links.lifecycle import Delete
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import DAY, YEAR
from shortlink.store.port import Claim, StoreUnavailable
from shortlink_operator.apply import Applier
from shortlink_operator.kinds import ShortLink
from shortlink_operator.plan import LET_GO, Rest, actor, orphaned
from tests.fakes import Crash, FailsAt, Gate
from tests.objects import KEY, an_object, claim_of, linked
from tests.samples import NOW, a_link
from tests.world import World

OLD, NEW, NEWER = (f"https://example.com/{n}" for n in ("a", "b", "c"))
GONE: dict[str, Any] = {
    "state": State.TOMBSTONED,
    "tombstoned_at": NOW - DAY,
    "cause": Cause.DELETED,
}
FREE: dict[str, Any] = GONE | {"state": State.FREE, "tombstoned_at": NOW - YEAR}


class Deposed(Exception):
    """As the Lease says it."""


@dataclass(frozen=True)
class Gone:
    """An object that is being deleted."""

    uid: str | None = "u1"
    retain: bool | None = False


def mine(**changes: Any) -> ShortLink:
    return an_object(**{"uid": "u1"} | changes)


async def run(
    world: World,
    wanted: ShortLink | Gone,
    gate: Gate | None = None,
    may_act: Callable[[], None] = lambda: None,
    *,
    fresh: bool = False,
    cluster: str = "here",
) -> Rest:
    applier = Applier(world.management(gate), cluster, may_act)
    if isinstance(wanted, Gone):
        return await applier.settle_gone(KEY, wanted.uid, wanted.retain, "")
    return await applier.settle(wanted, fresh=fresh)


def held(cluster: str = "here", uid: str = "u1", **changes: Any) -> Callable[[World], None]:
    """A link, and its claim."""

    def set_up(world: World) -> None:
        link = linked(**changes)
        world.keep(link)
        world.kept.claims[KEY] = claim_of(link, cluster=cluster, uid=uid)

    return set_up


def nothing(_: World) -> None:
    pass


def freed(world: World) -> None:
    world.keep(a_link(**FREE | {"owner": "bob", "token": "bobs"}))


def collision(world: World) -> None:
    world.keep(a_link(code="AbC0001", token="another"))
    world.codes = ["AbC0001"]


def unborn(world: World) -> None:
    """A cluster was lost between claim and birth."""
    world.kept.claims[KEY] = Claim(KEY, "promo", 1, "t9", "here", "u0")


def void(world: World) -> None:
    world.keep(a_link(code="AbC0001", token="another"))
    world.kept.claims[KEY] = Claim(KEY, "AbC0001", 1, "t9", "here", "u0")


TAKEN_OVER = mine(take_over="away")

# name: (before, what is asked for, the reason at rest, events, state)
SCENARIOS: dict[
    str, tuple[Callable[[World], None], ShortLink | Gone, str, list[str], State | None]
] = {
    "birth": (nothing, mine(), "Ready", ["created"], State.ACTIVE),
    "birth, retained": (nothing, mine(retain=True), "Ready", ["created"], State.ACTIVE),
    "birth at a drawn code": (nothing, mine(code=None), "Ready", ["created"], State.ACTIVE),
    "a drawn code is taken": (collision, mine(code=None), "Ready", ["created"], State.ACTIVE),
    "reissue": (freed, mine(), "Ready", ["created"], State.ACTIVE),
    "edit": (held(), mine(target=NEW), "Ready", ["edited"], State.ACTIVE),
    "restore": (held(**GONE), mine(), "Ready", ["restored"], State.ACTIVE),
    "adopt": (held(uid="u0"), mine(), "Ready", [], State.ACTIVE),
    "adopt an unborn claim": (unborn, mine(), "Ready", ["created"], State.ACTIVE),
    "a void claim": (void, mine(code=None), "Ready", ["created"], State.ACTIVE),
    "adopt and edit": (held(uid="u0"), mine(target=NEW), "Ready", ["edited"], State.ACTIVE),
    "made again": (held(uid="u0", **GONE), mine(), "Ready", ["restored"], State.ACTIVE),
    "to be retained": (held(), mine(retain=True), "Ready", [], State.ACTIVE),
    "take over": (held("away"), TAKEN_OVER, "Ready", [], State.ACTIVE),
    "take over and edit": (
        held("away"),
        replace(TAKEN_OVER, target=NEW),
        "Ready",
        ["edited"],
        State.ACTIVE,
    ),
    "take over what was deleted": (
        held("away", **GONE),
        TAKEN_OVER,
        "Ready",
        ["restored"],
        State.ACTIVE,
    ),
    "delete": (held(), Gone(), "Deleted", ["tombstoned"], State.TOMBSTONED),
    "delete without an object": (
        held(),
        Gone(None, None),
        "Deleted",
        ["tombstoned"],
        State.TOMBSTONED,
    ),
    "delete and retain": (held(), Gone(retain=True), "Retained", [], State.ACTIVE),
    "release": (held(**FREE), Gone(), "Gone", [], None),
}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_T2_an_object_comes_to_rest_and_the_next_look_writes_nothing(
    name: str, fresh: bool
) -> None:
    before, wanted, reason, kinds, state = SCENARIOS[name]
    world = World()
    before(world)
    assert (await run(world, wanted, fresh=fresh)).reason == reason
    check(world, wanted, kinds, state)
    calm = FailsAt(0, False, Crash())
    again = await run(world, wanted, calm)
    assert again.reason == reason
    assert set(calm.calls) <= {"find_claim", "get"}
    check(world, wanted, kinds, state)
    assert again.home == ("" if state is None else "here")


CRASHES = [
    (after, error) for after in (False, True) for error in (Crash(), StoreUnavailable("lost"))
]


@pytest.mark.parametrize(("after", "error"), CRASHES)
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_L5_a_crash_at_any_store_call_leaves_one_link_and_one_claim(
    name: str, fresh: bool, after: bool, error: BaseException
) -> None:
    before, wanted, reason, kinds, state = SCENARIOS[name]
    number = 0
    while True:
        number += 1
        world = World()
        before(world)
        gate = FailsAt(number, after, error)
        try:
            outcome = await run(world, wanted, gate, fresh=fresh)
        except type(error):
            outcome = await run(world, wanted, fresh=fresh)
        assert outcome.reason == reason
        check(world, wanted, kinds, state)
        if len(gate.calls) < number:
            break
    assert number > 1


def check(world: World, wanted: ShortLink | Gone, kinds: list[str], state: State | None) -> None:
    """No orphan, and one claim for one link, that says whose it is."""
    world.check()
    claim = world.kept.claims.get(KEY)
    assert (claim is None) == (state is None)
    if claim is None:
        return
    link = world.link(claim.code)
    assert (link.generation, link.token, link.claim) == (claim.generation, claim.token, KEY)
    assert (link.state, world.told(claim.code)) == (state, kinds)
    assert [one.code for one in world.live() if one.claim == KEY] == (
        [claim.code] if state is State.ACTIVE else []
    )
    assert (claim.cluster, claim.uid) == ("here", "u1")
    if isinstance(wanted, ShortLink):
        assert (link.target, claim.retain) == (wanted.target, wanted.retain)
    else:
        assert claim.retain is bool(wanted.retain)


# What a new object costs


@pytest.mark.parametrize(("code", "calls"), [(None, []), ("promo", ["get"])])
@pytest.mark.parametrize("retain", [False, True])
async def test_T2_a_fresh_object_costs_one_claim_and_one_birth(
    code: str | None, calls: list[str], retain: bool
) -> None:
    gate = FailsAt(0, False, Crash())
    outcome = await run(World(), mine(code=code, retain=retain), gate, fresh=True)
    assert outcome.ready
    assert gate.calls == [*calls, "claim", "create"]


@pytest.mark.parametrize("wanted", [mine(target=NEW), Gone()])
async def test_T2_a_change_costs_a_look_and_the_claim_once_more(wanted: ShortLink | Gone) -> None:
    world = World()
    held()(world)
    gate = FailsAt(0, False, Crash())
    await run(world, wanted, gate)
    assert gate.calls == ["find_claim", "get", "find_claim", "change"]


@pytest.mark.parametrize("wanted", [mine(target=NEW), Gone()])
async def test_L5_what_was_taken_over_since_the_look_is_not_changed(
    wanted: ShortLink | Gone,
) -> None:
    world = World()
    held()(world)

    async def elsewhere() -> None:
        world.kept.claims[KEY] = replace(world.kept.claims[KEY], cluster="away")

    outcome = await run(world, wanted, Meanwhile(3, elsewhere))
    assert (outcome.reason, outcome.home) == (
        "Gone" if isinstance(wanted, Gone) else "SpecDiffers",
        "away",
    )
    assert world.link("promo") == linked()


async def test_L5_a_fresh_object_makes_no_link_for_anothers_claim() -> None:
    world = World()
    world.kept.claims[KEY] = Claim(KEY, "AbC0001", 1, "t9", "away", "a1")
    outcome = await run(world, mine(code=None), fresh=True)
    assert outcome.reason == "WaitingForHome"
    assert world.kept.links == {}


@pytest.mark.parametrize("wanted", [mine(), mine(code=None), mine(expires_at=NOW - 1)])
async def test_T2_a_fresh_object_may_have_had_a_link_all_along(wanted: ShortLink) -> None:
    """What refuses a birth is no answer before its claim was looked for."""
    world = World()
    link = linked(custom=wanted.code is not None, code=wanted.code or "AbC1234")
    world.keep(link)
    world.kept.claims[KEY] = claim_of(link, cluster="here", uid="u0")
    applier = Applier(world.management(), "here")
    outcome = await applier.settle(wanted, room=False, fresh=True)
    assert outcome.link == link
    assert world.kept.claims[KEY].uid == "u1"
    assert len(world.kept.links) == 1


async def test_T2_without_room_a_fresh_object_claims_nothing() -> None:
    world = World()
    applier = Applier(world.management(), "here")
    outcome = await applier.settle(mine(), room=False, fresh=True)
    assert outcome.reason == "OverQuota"
    assert world.kept.claims == {}


async def test_T2_a_held_deletion_writes_nothing() -> None:
    world = World()
    held()(world)
    applier = Applier(world.management(FailsAt(3, False, Crash())), "here")
    outcome = await applier.settle_gone(KEY, "u1", False, "too many")
    assert outcome.reason == "DeletionHeld"
    assert world.link("promo") == linked()


@pytest.mark.parametrize("wanted", [mine(target=NEW), Gone(), Gone(retain=True)])
async def test_T2_a_mirror_writes_nothing(wanted: ShortLink | Gone) -> None:
    world = World()
    held("away")(world)
    kept = dict(world.kept.claims)
    outcome = await run(world, wanted)
    assert outcome.reason == ("Gone" if isinstance(wanted, Gone) else "SpecDiffers")
    assert (world.kept.claims, world.link("promo")) == (kept, linked())


# Whoever may not act


class Reign:
    """Ends at the `number`-th time that somebody asks."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise Deposed


@pytest.mark.parametrize("name", SCENARIOS)
async def test_L5_no_write_is_made_without_asking_whether_it_may_be(name: str) -> None:
    before, wanted, reason, kinds, state = SCENARIOS[name]
    number = 0
    while True:
        number += 1
        world = World()
        before(world)
        gate = FailsAt(0, False, Crash())
        try:
            outcome = await run(world, wanted, gate, Reign(number))
        except Deposed:
            writes = [one for one in gate.calls if one in ("claim", "reclaim", "create", "change")]
            assert len(writes) == number - 1
            assert (await run(world, wanted)).reason == reason
            check(world, wanted, kinds, state)
        else:
            assert outcome.reason == reason
            break


# A leader that was deposed, and goes on with what it knew

# name: (before, the old leader's word, the new one's, the target then: None if there is no link)
SUCCESSIONS: dict[
    str, tuple[Callable[[World], None], ShortLink | Gone, ShortLink | Gone, str | None]
] = {
    "birth, another spec": (nothing, mine(target=NEW), mine(target=NEWER), NEWER),
    "birth at drawn codes": (
        nothing,
        mine(code=None, target=NEW),
        mine(code=None, target=NEWER),
        NEWER,
    ),
    "birth, deleted since": (nothing, mine(), Gone(), None),
    "drawn, deleted since": (nothing, mine(code=None), Gone(), None),
    "birth over a void claim": (void, mine(code=None), mine(code=None, target=NEWER), NEWER),
    "edit, another spec": (held(), mine(target=NEW), mine(target=NEWER), NEWER),
    "edit, deleted since": (held(), mine(target=NEW), Gone(), None),
    "restore, another spec": (held(**GONE), mine(), mine(target=NEWER), NEWER),
    "delete, made again otherwise": (held(), Gone(), mine(uid="u2", target=NEWER), NEWER),
    "adoption, deleted since": (held(uid="u0"), mine(target=NEW), Gone(), None),
    "take over, another spec": (
        held("away"),
        replace(TAKEN_OVER, target=NEW),
        replace(TAKEN_OVER, target=NEWER),
        NEWER,
    ),
    "retained since": (held(), Gone(), mine(retain=True, target=NEWER), NEWER),
}

# As above, but the new leader finds the link as it is to be, and so writes nothing to it.
UNCHANGED: dict[str, tuple[Callable[[World], None], ShortLink | Gone, ShortLink]] = {
    "edited and edited back": (held(), mine(target=NEW), mine()),
    "deleted by force and made again": (held(), Gone(), mine(uid="u2")),
}


async def succession(
    before: Callable[[World], None], old: ShortLink | Gone, new: ShortLink | Gone
) -> AsyncIterator[World]:
    """Worlds in which the old leader stops before each of its store calls in turn."""
    number = 0
    while True:
        number += 1
        world = World()
        before(world)
        gate = Meanwhile(number, partial(run, world, new))

        with contextlib.suppress(Deposed):
            await run(world, old, gate, gate.may_act)
        if not gate.over:
            break
        yield world
    assert number > 1


class Meanwhile:
    """A gate at which another becomes the leader before the `number`-th call: so one that writes
    does it late. `over`: it has happened."""

    def __init__(self, number: int, happens: Callable[[], Awaitable[object]]) -> None:
        self.over = False
        self._left = number
        self._happens = happens

    async def __call__(self, method: str, done: bool) -> None:
        if not done and not self.over:
            self._left -= 1
            if self._left == 0:
                self.over = True
                await self._happens()

    def may_act(self) -> None:
        if self.over:
            raise Deposed


async def sweep(world: World, exists: bool) -> None:
    """What the controller's sweep does about links without claims and claims without objects."""
    management = world.management()
    for link in world.live():
        if link.claim and orphaned(link, await management.store.find_claim(link.claim)):
            await management.carry_out(link, Delete(actor(link.claim)))
    if not exists:
        outcome = await Applier(management, "here").settle_gone(KEY, None, None, "")
        assert outcome.reason in LET_GO


def alive(world: World) -> list[Link]:
    return [link for link in world.live() if link.claim == KEY]


@pytest.mark.parametrize("name", SUCCESSIONS)
async def test_L5_a_deposed_leader_undoes_nothing_of_its_successors(name: str) -> None:
    before, old, new, target = SUCCESSIONS[name]
    async for world in succession(before, old, new):
        await sweep(world, target is not None)
        assert [link.target for link in alive(world)] == ([] if target is None else [target])
        world.check()
        if target is not None:
            calm = FailsAt(0, False, Crash())
            assert (await run(world, new, calm)).ready
            assert calm.calls == ["find_claim", "get"]


@pytest.mark.parametrize("name", UNCHANGED)
async def test_L5_a_write_that_was_under_way_is_mended_at_the_next_look(name: str) -> None:
    """The one that can land late: nothing in the row tells it that it is late."""
    before, old, new = UNCHANGED[name]
    landed = 0
    async for world in succession(before, old, new):
        landed += [link.target for link in alive(world)] != [OLD]
        world.check()
        assert (await run(world, new)).ready
        assert [link.target for link in alive(world)] == [OLD]
    assert landed == 1


async def test_T2_an_outage_of_the_store_is_no_outcome_and_one_objects_trouble_is() -> None:
    world = World()
    held()(world)
    with pytest.raises(StoreUnavailable):
        await run(world, mine(), FailsAt(2, False, StoreUnavailable("no quorum")))
    outcome = await run(world, mine(), FailsAt(2, False, ValueError("bad row")))
    assert (outcome.ready, outcome.reason) == (False, "Broken")
    gone = await run(world, Gone(), FailsAt(2, False, ValueError("bad row")))
    assert gone.reason not in LET_GO
