"""Reconciler: whatever crashes, each object has one link, one claim, one event of each (T2, L5)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import DAY, YEAR
from shortlink.links.refusal import Reason
from shortlink.management import ATTEMPTS, CodesExhausted
from shortlink.store.port import Claim, StoreUnavailable
from shortlink_operator.apply import Reconciler
from shortlink_operator.desired import Desired
from shortlink_operator.kinds import ShortLink
from tests.fakes import Crash, FailsAt, Gate, MemoryStore
from tests.objects import KEY, an_object, claim_of, linked
from tests.samples import NOW, a_link
from tests.world import World

GONE = {"state": State.TOMBSTONED, "tombstoned_at": NOW - DAY, "cause": Cause.DELETED}
FREE = GONE | {"state": State.FREE, "tombstoned_at": NOW - YEAR}


async def run(world: World, wanted: ShortLink | None, gate: Gate | None = None) -> Reconciler:
    reconciler = Reconciler(world.management(gate))
    await reconciler.run(Desired({} if wanted is None else {KEY: wanted}))
    return reconciler


def nothing(_: World) -> None:
    pass


def collision(world: World) -> None:
    world.keep(a_link(code="AbC0001", token="another"))
    world.codes = ["AbC0001"]


def own(**changes: Any) -> Callable[[World], None]:
    def set_up(world: World) -> None:
        link = linked(**changes)
        world.keep(link)
        world.kept.claims[KEY] = claim_of(link)

    return set_up


def freed(world: World) -> None:
    world.keep(a_link(**FREE | {"owner": "bob", "token": "bobs"}))


def lost_race(world: World) -> None:
    """The claim was written, then another took its code."""
    world.keep(a_link(code="AbC0001", token="another"))
    world.kept.claims[KEY] = Claim(KEY, "AbC0001", 1, "t9")


NEW = {"target": "https://example.com/b"}

# name: (before, the object, the kinds of events that its code is left with, its state)
SCENARIOS: dict[str, tuple[Callable[[World], None], ShortLink | None, list[str], State | None]] = {
    "birth at an alias": (nothing, an_object(), ["created"], State.ACTIVE),
    "birth at a drawn code": (nothing, an_object(code=None), ["created"], State.ACTIVE),
    "a drawn code is taken": (collision, an_object(code=None), ["created"], State.ACTIVE),
    "edit": (own(), an_object(**NEW), ["edited"], State.ACTIVE),
    "delete": (own(), None, ["tombstoned"], State.TOMBSTONED),
    "restore": (own(**GONE), an_object(), ["restored"], State.ACTIVE),
    "restore and edit": (own(**GONE), an_object(**NEW), ["restored"], State.ACTIVE),
    "reissue of a freed alias": (freed, an_object(), ["created"], State.ACTIVE),
    "taken back": (own(**FREE), an_object(take_back=True), ["created"], State.ACTIVE),
    "lost race": (lost_race, an_object(code=None), ["created"], State.ACTIVE),
    "release": (own(**FREE), None, [], None),
}

CRASHES = [
    (after, error) for after in (False, True) for error in (Crash(), StoreUnavailable("lost"))
]


@pytest.mark.parametrize("name", SCENARIOS)
async def test_T2_a_pass_brings_an_object_to_rest_and_the_next_does_nothing(name: str) -> None:
    before, wanted, kinds, state = SCENARIOS[name]
    world = World()
    before(world)
    await run(world, wanted)
    check(world, wanted, kinds, state)
    calm = FailsAt(0, False, Crash())
    reconciler = await run(world, wanted, calm)
    assert set(calm.calls) <= {"claims", "get"}, "a steady state writes nothing"
    check(world, wanted, kinds, state)
    if wanted is not None:
        assert reconciler.outcomes[KEY].ready


@pytest.mark.parametrize(("after", "error"), CRASHES)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_L5_a_crash_at_any_store_call_leaves_one_link_and_one_claim(
    name: str, after: bool, error: BaseException
) -> None:
    before, wanted, kinds, state = SCENARIOS[name]
    number = 0
    while True:
        number += 1
        world = World()
        before(world)
        gate = FailsAt(number, after, error)
        try:
            await run(world, wanted, gate)
        except type(error):
            world.check_events()
            await run(world, wanted)
        check(world, wanted, kinds, state)
        if len(gate.calls) < number:
            break
    assert number > 3


@pytest.mark.parametrize("name", SCENARIOS)
async def test_L5_two_crashes_in_a_row_do_no_more_harm_than_one(name: str) -> None:
    before, wanted, kinds, state = SCENARIOS[name]
    for first in range(1, 8):
        for second in range(1, 8):
            world = World()
            before(world)
            for number in (first, second):
                try:
                    await run(world, wanted, FailsAt(number, True, Crash()))
                except Crash:
                    continue
            await run(world, wanted)
            check(world, wanted, kinds, state)


def check(world: World, wanted: ShortLink | None, kinds: list[str], state: State | None) -> None:
    world.check()
    claim = world.kept.claims.get(KEY)
    assert (claim is None) == (state is None)
    if claim is None:
        return
    link = world.link(claim.code)
    assert (link.generation, link.token, link.claim) == (claim.generation, claim.token, KEY)
    assert link.state is state
    assert world.told(claim.code) == kinds
    assert [one.code for one in world.live() if one.claim == KEY] == (
        [claim.code] if state is State.ACTIVE else []
    )
    if wanted is not None:
        assert link.target == wanted.target


async def test_L5_two_operators_at_once_make_one_link() -> None:
    """One pauses before each of its store calls in turn, while the other makes a whole pass."""
    for wanted in (an_object(), an_object(code=None)):
        for pause in range(1, 12):
            world = World()

            async def other_passes(_world: World = world, _wanted: ShortLink = wanted) -> None:
                await run(_world, _wanted)

            await run(world, wanted, Meanwhile(pause, other_passes))
            await run(world, wanted)
            check(world, wanted, ["created"], State.ACTIVE)


class Meanwhile:
    """A gate that lets something else happen before the `number`-th call."""

    def __init__(self, number: int, happens: Callable[[], Awaitable[None]]) -> None:
        self._left = number
        self._happens = happens

    async def __call__(self, method: str, done: bool) -> None:
        if not done:
            self._left -= 1
            if self._left == 0:
                await self._happens()


async def test_T2_an_object_that_is_refused_does_not_stop_the_others() -> None:
    world = World()
    world.keep(a_link(owner="bob"))
    other = an_object(key="ann/zzz", code="zzz")
    reconciler = Reconciler(world.management())
    await reconciler.run(Desired({KEY: an_object(), "ann/zzz": other}))
    assert reconciler.outcomes["ann/zzz"].ready
    refused = reconciler.outcomes[KEY]
    assert (refused.ready, refused.reason) == (False, Reason.TAKEN)
    assert "promo1 is free" in refused.message
    assert KEY not in world.kept.claims


async def test_T2_an_alias_lost_between_claim_and_birth_is_given_up() -> None:
    world = World()

    async def bob_takes_it() -> None:
        world.keep(a_link(owner="bob", token="bobs"))

    # claims, get (preview), claim, and then the birth's own look
    reconciler = await run(world, an_object(), Meanwhile(4, bob_takes_it))
    assert (reconciler.outcomes[KEY].ready, reconciler.outcomes[KEY].reason) == (False, "Taken")
    assert world.kept.claims == {}
    world.check()


async def test_T2_an_object_that_changed_while_its_birth_was_cut_short_gives_up_the_claim() -> None:
    world = World()
    world.kept.claims[KEY] = Claim(KEY, "promo", 1, "t1")
    reconciler = await run(world, an_object(target="x:"))
    assert reconciler.outcomes[KEY].reason == Reason.INVALID_TARGET
    assert world.kept.claims == {}


async def test_G6_when_every_drawn_code_is_taken_creating_stops() -> None:
    world = World()
    world.codes = [f"AbC000{n}" for n in range(ATTEMPTS)]
    world.keep(*(a_link(code=code) for code in world.codes))
    with pytest.raises(CodesExhausted):
        await run(world, an_object(code=None))
    await run(world, an_object(code=None))
    check(world, an_object(code=None), ["created"], State.ACTIVE)


async def test_T2_a_link_that_others_keep_changing_is_left_to_the_next_pass() -> None:
    """An administrator and an object disagree about nothing; but a drift that never rests is
    not chased within one pass."""
    world = World()
    own()(world)

    async def drift(method: str, done: bool) -> None:
        if method == "find_claim" and not done:
            link = world.link("promo")
            world.keep(a_link(claim=KEY, version=link.version + 1, tags=(str(link.version),)))

    reconciler = await run(world, an_object(**NEW), drift)
    assert reconciler.outcomes[KEY].reason == "Progressing"
    settled = await run(world, an_object(**NEW))
    assert settled.outcomes[KEY].ready


async def test_T2_more_objects_than_a_page_holds_are_all_seen() -> None:
    world = World()
    objects = {f"ann/{n:04}": an_object(key=f"ann/{n:04}", code=None) for n in range(501)}
    for _ in range(2):
        reconciler = Reconciler(world.management())
        await reconciler.run(Desired(objects))
        assert len(world.live()) == len(world.kept.claims) == 501
        assert all(one.ready for one in reconciler.outcomes.values())
    world.check()


@pytest.mark.parametrize("wanted", [True, False], ids=["its object exists", "its object is gone"])
async def test_T2_a_row_that_cannot_be_read_stops_no_other_object(wanted: bool) -> None:
    world = World()
    own()(world)
    other = an_object(key="ann/zzz", code="zzz", target="https://example.com/2")
    mine = {KEY: an_object()} if wanted else {}

    class Store(MemoryStore):
        async def get(self, code: str) -> Link | None:
            if code == "promo":
                raise ValueError("'ative' is not a valid State")
            return await super().get(code)

    management = world.management()
    management.store = Store(world.kept)
    reconciler = Reconciler(management)
    for _ in range(2):
        with structlog.testing.capture_logs() as logs:
            await reconciler.run(Desired({**mine, "ann/zzz": other}))
        broken = reconciler.outcomes[KEY]
        assert (broken.ready, broken.reason) == (False, "Broken")
        assert "'ative' is not a valid State" in broken.message
        assert [line["key"] for line in logs if line["event"] == "object broken"] == [KEY]
        assert reconciler.outcomes["ann/zzz"].ready
    assert world.link("zzz").target == other.target
    assert world.link("promo") == linked()
    repaired = await run(world, an_object() if wanted else None)
    assert KEY not in repaired.outcomes or repaired.outcomes[KEY].reason != "Broken"


async def test_T2_a_new_objects_alias_whose_row_cannot_be_read_stops_no_other_object() -> None:
    world = World()

    class Store(MemoryStore):
        async def get(self, code: str) -> Link | None:
            if code == "promo":
                raise ValueError("bad row")
            return await super().get(code)

    management = world.management()
    management.store = Store(world.kept)
    reconciler = Reconciler(management)
    await reconciler.run(
        Desired({KEY: an_object(), "ann/zzz": an_object(key="ann/zzz", code="zzz")})
    )
    assert reconciler.outcomes[KEY].reason == "Broken"
    assert reconciler.outcomes["ann/zzz"].ready
    assert world.kept.claims.keys() == {"ann/zzz"}


async def test_T2_a_store_that_fails_ends_the_pass_even_beside_a_row_that_cannot_be_read() -> None:
    world = World()
    own()(world)
    world.keep(a_link(code="zzz", claim="ann/zzz"))
    world.kept.claims["ann/zzz"] = Claim("ann/zzz", "zzz", 1, "t1")

    class Store(MemoryStore):
        async def get(self, code: str) -> Link | None:
            raise ValueError("bad row") if code == "promo" else StoreUnavailable("lost")

    management = world.management()
    management.store = Store(world.kept)
    reconciler = Reconciler(management)
    with pytest.raises(StoreUnavailable):
        await reconciler.run(Desired({}))
    assert reconciler.outcomes == {}
    assert len(world.live()) == 2
