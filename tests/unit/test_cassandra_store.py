"""Where the Cassandra store reads and writes, and in which order (store/cassandra/store.py)."""

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from shortlink.clock import HandClock
from shortlink.links.model import Event, EventKind, Link, State, event
from shortlink.store.cassandra import rows as rows_module
from shortlink.store.cassandra import store as store_module
from shortlink.store.cassandra.claims import Claims
from shortlink.store.cassandra.hints import Hints
from shortlink.store.cassandra.outbox import Outbox
from shortlink.store.cassandra.rows import PENDING, Kept, Rows
from shortlink.store.cassandra.session import Level, Statement
from shortlink.store.cassandra.store import BURST, PER_SECOND, CassandraStore
from shortlink.store.cassandra.topology import Topology
from shortlink.store.port import Due, NotFoundHere, StoreUnavailable
from tests.cassandra_rig import (
    KEYSPACE,
    FakeSession,
    Fault,
    always,
    in_turn,
    no_tables,
    serial_levels,
)
from tests.samples import NOW, a_link

US, EU, AP = "us-east-1", "eu-west-1", "ap-southeast-1"
BORN = a_link(code="AbC1234", token="born", custom=False)
ALIAS = a_link(code="promo", token="alias")


def told(link: Link, kind: EventKind = EventKind.CREATED) -> Event:
    return event(kind, link, link.changed_at)


def edited(link: Link, **values: Any) -> Link:
    return replace(link, version=link.version + 1, changed_at=link.changed_at + 1, **values)


class World:
    """Three data centres that see the same tables, a process in US, and codes born in `place`."""

    def __init__(self) -> None:
        tables = no_tables()
        self.clock = HandClock(NOW)
        self.sessions = {name: FakeSession(name, tables) for name in (US, EU, AP)}
        self.home = US
        self.place: str | None = US
        self.clock_is_wrong = False
        self.fit: list[str] = [US, EU, AP]
        self.announced: list[tuple[Link, tuple[int, ...], bool]] = []
        self.rows = Rows(
            self.sessions, US, KEYSPACE, self, self.clock.clock, random.Random(1).randbytes
        )
        self.rows.conditional._sleep = self._sleep
        self.store = CassandraStore(
            self.rows,
            Claims(lambda: self.rows.seat, KEYSPACE, self.rows.conditional),
            cast(Hints, self),
            cast(Outbox, self),
            cast(Topology, self),
            self.clock.clock,
        )

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1_000))

    # As a topology

    async def owner(self, code: str) -> str | None:
        return self.place

    def readers(self) -> Sequence[str]:
        return self.fit

    async def slots(self) -> Collection[int]:
        return [3, 5]

    async def may_write_births(self) -> None:
        if US not in self.fit:
            raise StoreUnavailable("us-east-1 was wiped")

    def check_clock(self) -> None:
        if self.clock_is_wrong:
            raise StoreUnavailable("this machine's clock is wrong")

    async def close(self) -> None:
        pass

    # As hints

    async def due(self, until: int, limit: int) -> Sequence[Due]:
        return [Due(until, "promo")][:limit]

    async def announce(self, link: Link, events: Sequence[Event], due: Sequence[int]) -> None:
        written = any(
            statement.serial for session in self.sessions.values() for statement, _ in session.log
        )
        self.announced.append((link, tuple(due), written))

    async def owned(self, owner: str, after: str, limit: int) -> Sequence[str]:
        codes = sorted({link.code for link, *_ in self.announced})
        return [code for code in codes if code > after][:limit]

    # What the tests do

    def apart(self, name: str) -> FakeSession:
        """`name` no longer sees what the others have."""
        self.sessions[name].tables = no_tables()
        return self.sessions[name]

    def asked(self) -> list[str]:
        """The data centres that were sent something, in the order of their names."""
        return [name for name, session in self.sessions.items() if session.log]

    def forget(self) -> None:
        for session in self.sessions.values():
            session.log.clear()
        self.announced.clear()


@pytest.fixture
def world() -> World:
    return World()


# Reading


async def test_a_link_that_is_here_asks_nobody_else(world: World) -> None:
    await world.store.create(BORN, (), ())
    world.forget()
    assert await world.store.get(BORN.code) == BORN
    assert world.asked() == [US]
    assert {statement.level for statement, _ in world.sessions[US].log} == {Level.LOCAL_QUORUM}


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.HANGS])
async def test_a_birth_counts_only_when_what_became_of_it_was_read_L5(
    world: World, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "HEDGE", 0.01)
    await world.store.create(BORN, (), ())
    gone = edited(BORN, state=State.TOMBSTONED)
    await world.store.change(BORN, gone, (), ())
    monkeypatch.setattr(rows_module, "PATIENCE", 0.02)
    world.sessions[US].faults = always("FROM links.links", fault)
    assert await world.store.get(BORN.code) == gone
    assert EU in world.asked()
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        _, hanging = await asyncio.wait(left, timeout=1)
        assert hanging == set()


async def test_a_home_that_hangs_keeps_no_process_from_being_ready_M1(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "HEDGE", 0.01)
    monkeypatch.setattr(rows_module, "PATIENCE", 0.02)
    world.sessions[US].faults = always("", Fault.HANGS)
    async with asyncio.timeout(10):
        await world.store.ping()


async def test_what_was_born_in_a_region_that_the_address_lacks_is_unavailable(
    world: World,
) -> None:
    world.place = "sa-east-1"
    with pytest.raises(StoreUnavailable, match="sa-east-1"):
        await world.store.change(BORN, edited(BORN), (), ())


async def test_when_no_data_centre_answers_in_time_the_store_is_unavailable_M1(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "HEDGE", 0.01)
    monkeypatch.setattr(store_module, "READ", 0.05)
    for session in world.sessions.values():
        session.faults = always("", Fault.HANGS)
    with pytest.raises(StoreUnavailable, match="answered within"):
        await world.store.get(BORN.code)
    world.place = EU
    world.sessions[US].faults = always("nothing")  # it has no such link, and EU never says
    with pytest.raises(StoreUnavailable, match="answered within"):
        await world.store.get(BORN.code)
    world.fit = []
    with pytest.raises(StoreUnavailable, match="no data centre that may serve reads"):
        await world.store.get(BORN.code)


async def test_a_late_answer_still_counts_beside_the_next_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "HEDGE", 0.01)
    await world.store.create(ALIAS, (), ())
    answer = asyncio.Event()
    execute = world.sessions[US].execute

    async def late(statement: Statement, values: Sequence[object] = ()) -> Any:
        await answer.wait()
        return await execute(statement, values)

    def others_fail(_: Statement) -> Fault:
        answer.set()
        return Fault.LOST

    world.sessions[US].execute = late  # type: ignore[method-assign]
    world.sessions[EU].faults = world.sessions[AP].faults = others_fail
    assert await world.store.get(ALIAS.code) == ALIAS


async def test_what_was_written_through_the_home_is_read_from_it_though_it_is_slow_L5(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "HEDGE", 0.01)
    world.apart(EU)
    await world.store.create(ALIAS, (), ())
    asked = asyncio.Event()
    for name, method in [(US, world.sessions[US].execute), (EU, world.sessions[EU].execute)]:

        async def execute(
            statement: Statement, values: Sequence[object] = (), name: str = name, run: Any = method
        ) -> Any:
            if name == US:
                await asked.wait()
                await asyncio.sleep(0.01)
            rows = await run(statement, values)
            asked.set()
            return rows

        world.sessions[name].execute = execute  # type: ignore[method-assign]
    assert await world.store.get(ALIAS.code) == ALIAS
    assert world.asked() == [US, EU]


@pytest.mark.parametrize(("place", "asked"), [(US, [US]), (EU, [US, EU]), (AP, [US, AP])])
async def test_a_generated_code_is_unknown_when_its_home_has_nothing(
    world: World, place: str, asked: list[str]
) -> None:
    world.place = place
    assert await world.store.get(BORN.code) is None
    assert world.asked() == asked


async def test_a_link_just_born_elsewhere_is_found_there(world: World) -> None:
    world.place = EU
    world.apart(US)
    await world.rows.create(BORN, (), EU)
    assert await world.store.get(BORN.code) == BORN


@pytest.mark.parametrize("how", ["does not answer", "is not fit"])
async def test_nothing_is_unknown_while_its_home_cannot_be_asked(world: World, how: str) -> None:
    world.place = EU
    world.sessions[EU].faults = always("")
    if how == "is not fit":
        world.fit.remove(EU)
    with pytest.raises(StoreUnavailable, match=r"eu-west-1"):
        await world.store.get(BORN.code)


async def test_an_alias_is_unknown_when_any_second_data_centre_has_nothing(world: World) -> None:
    assert await world.store.get("promo") is None
    assert world.asked() == [US, EU]
    world.sessions[EU].faults = always("")
    assert await world.store.get("promo") is None
    world.sessions[AP].faults = always("")
    with pytest.raises(StoreUnavailable):
        await world.store.get("promo")


async def test_an_alias_that_only_another_data_centre_has_is_found_G7(world: World) -> None:
    await world.store.create(ALIAS, (), ())
    world.apart(US)
    assert await world.store.get(ALIAS.code) == ALIAS


async def test_where_there_is_but_one_data_centre_it_decides(world: World) -> None:
    world.rows.sessions = {US: world.sessions[US]}
    world.fit = [US]
    world.place = None
    assert await world.store.get("promo") is None
    assert await world.store.get(BORN.code) is None


async def test_unknown_codes_cost_others_no_more_than_a_budget_K3(world: World) -> None:
    for n in range(BURST):
        assert await world.store.get(f"no{n}") is None
    with pytest.raises(NotFoundHere):
        await world.store.get("more")
    world.forget()
    with pytest.raises(NotFoundHere):
        await world.store.get("more")
    assert world.asked() == [US]
    world.clock.advance(1_000)
    for n in range(PER_SECOND):
        assert await world.store.get(f"no{n}") is None
    with pytest.raises(NotFoundHere):
        await world.store.get("more")


async def test_the_owners_links_come_in_order_without_those_of_others(world: World) -> None:
    links = [a_link(code=f"code{n}", owner="ann" if n % 2 else "bob") for n in range(70)]
    for link in links:
        await world.store.create(link, (), ())
    anns = sorted((link for link in links if link.owner == "ann"), key=lambda link: link.code)
    assert await world.store.by_owner("ann", "", 20) == anns[:20]
    assert await world.store.by_owner("ann", anns[19].code, 100) == anns[20:]


async def test_the_owners_links_are_read_elsewhere_while_the_home_fails_F2(world: World) -> None:
    await world.store.create(ALIAS, (), ())
    world.sessions[US].faults = always("")
    assert await world.store.by_owner("ann", "", 10) == [ALIAS]
    for session in world.sessions.values():
        session.faults = always("")
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await world.store.by_owner("ann", "", 10)


# Creating


@pytest.mark.parametrize("place", [US, AP])
async def test_a_code_of_seven_characters_is_born_where_its_slot_belongs_M1(
    world: World, place: str
) -> None:
    world.place = place
    assert await world.store.create(BORN, (told(BORN),), ()) == BORN
    assert [name for name in world.sessions if world.sessions[name].sent("INSERT")] == [place]
    assert serial_levels(*world.sessions.values()) == {"births": {Level.LOCAL_SERIAL}}


@pytest.mark.parametrize("place", [None, EU, US])
async def test_where_the_slot_has_no_fit_owner_nothing_is_born(
    world: World, place: str | None
) -> None:
    world.place = place
    world.fit = [AP]
    with pytest.raises(StoreUnavailable, match=r"choose another length|was wiped"):
        await world.store.create(BORN, (), ())
    assert world.announced == []
    assert not any(session.sent("INSERT") for session in world.sessions.values())


async def test_hints_come_before_the_row(world: World) -> None:
    for link in (BORN, ALIAS):
        world.forget()
        await world.store.create(link, (told(link),), (NOW,))
        assert world.announced == [(link, (NOW,), False)]
        new = edited(link)
        world.forget()
        await world.store.change(link, new, (), (NOW + 1,))
        assert world.announced == [(new, (NOW + 1,), False)]


@pytest.mark.parametrize("link", [BORN, ALIAS])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE])
async def test_a_create_that_timed_out_makes_the_link_once_L5(
    world: World, link: Link, fault: Fault
) -> None:
    world.sessions[US].faults = in_turn("INSERT", fault)
    assert await world.store.create(link, (told(link),), ()) == link
    assert await world.store.get(link.code) == link


@pytest.mark.parametrize("link", [BORN, ALIAS])
async def test_who_came_second_is_told_who_holds_the_code_now_G7(world: World, link: Link) -> None:
    await world.store.create(link, (), ())
    new = edited(link)
    await world.store.change(link, new, (), ())
    second = replace(link, token="second", owner="bob")
    world.forget()
    assert await world.store.create(second, (told(second),), (NOW,)) == new
    assert world.announced == []
    # So it is when the first one's row has not come to this data centre yet.
    world.rows.here = _nothing  # type: ignore[method-assign]
    assert await world.store.create(second, (told(second),), (NOW,)) == new


async def _nothing(code: str) -> Kept | None:
    return None


async def test_a_cut_off_region_creates_links_of_its_slots_M1(world: World) -> None:
    for name in (EU, AP):
        world.sessions[name].faults = always("")
    world.sessions[US].faults = lambda statement: (
        Fault.LOST if Level.SERIAL in (statement.serial, statement.level) else None
    )
    assert await world.store.create(BORN, (told(BORN),), ()) == BORN
    with pytest.raises(StoreUnavailable):
        await world.store.create(ALIAS, (), ())


# Changing


@pytest.mark.parametrize("link", [BORN, ALIAS])
async def test_each_change_is_one_conditional_write_L5(world: World, link: Link) -> None:
    await world.store.create(link, (), ())
    for _ in range(3):
        new = edited(link)
        world.forget()
        assert await world.store.change(link, new, (), ()) == new
        serial = [
            each for each, _ in world.sessions[US].log if each.serial or "SERIAL" in each.level
        ]
        assert [each.serial for each in serial] == [Level.SERIAL]
        link = new


@pytest.mark.parametrize("link", [BORN, ALIAS])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE])
@pytest.mark.parametrize("nth", [0, 1])
async def test_a_change_that_timed_out_is_made_once_L5(
    world: World, link: Link, fault: Fault, nth: int
) -> None:
    await world.store.create(link, (), ())
    for _ in range(nth):
        link = await world.store.change(link, edited(link), (), ())
    new = edited(link)
    event_ = told(new, EventKind.EDITED)
    world.sessions[US].faults = _conditional(fault)
    assert await world.store.change(link, new, (event_,), ()) == new
    kept = await world.rows.read(link.code)
    assert kept is not None
    assert (kept.link, kept.pending) == (new, (event_,))


def _conditional(*faults: Fault) -> Callable[[Statement], Fault | None]:
    left = list(faults)
    return lambda statement: left.pop(0) if left and statement.serial is not None else None


async def test_a_stale_copy_here_loses_against_the_change_made_elsewhere_L5(world: World) -> None:
    await world.store.create(BORN, (), ())
    elsewhere = edited(BORN, owner="elsewhere")
    await world.store.change(BORN, elsewhere, (), ())
    world.rows.here = _stale  # type: ignore[method-assign]
    assert await world.store.change(BORN, edited(BORN, owner="here"), (), ()) == elsewhere


async def _stale(code: str) -> Kept | None:
    return Kept(BORN)


async def test_who_knows_a_newer_link_than_is_here_may_change_it_L5(world: World) -> None:
    await world.store.create(BORN, (), ())
    second = await world.store.change(BORN, edited(BORN), (), ())
    world.rows.here = _stale  # type: ignore[method-assign]
    assert await world.store.change(second, edited(second), (), ()) == edited(second)


async def test_a_change_of_a_link_not_here_yet_is_made_L5(world: World) -> None:
    world.place = EU
    await world.store.create(BORN, (), ())
    world.rows.here = _nothing  # type: ignore[method-assign]
    assert await world.store.change(BORN, edited(BORN), (), ()) == edited(BORN)


@pytest.mark.parametrize("link", [BORN, ALIAS])
async def test_changes_and_aliases_go_on_elsewhere_while_the_home_is_unfit_F2(
    world: World, link: Link
) -> None:
    world.place = EU
    await world.store.create(link, [told(link)], ())
    world.fit = [EU, AP]
    world.sessions[US].faults = always("")
    new = edited(link, target="https://example.com/new")
    assert await world.store.change(link, new, [told(new)], ()) == new
    alias = replace(ALIAS, code="another")
    assert await world.store.create(alias, [told(alias)], ()) == alias
    assert (await world.store.get("another"), await world.store.get(link.code)) == (alias, new)


async def test_a_change_whose_row_is_gone_is_never_called_made_L5(world: World) -> None:
    await world.store.create(ALIAS, [], ())
    new = edited(ALIAS, target="https://example.com/new")
    await world.store.change(ALIAS, new, [], ())
    kept = await world.rows.here(ALIAS.code)
    assert kept is not None
    world.sessions[US].tables["links"].clear()
    with pytest.raises(StoreUnavailable, match="can't be found"):
        await world.rows.change(kept, edited(new, target="https://example.com/newer"), [])


async def test_every_table_has_one_serial_level(world: World) -> None:
    await world.store.install(b"1" * 16)
    for text in ("one", "two"):
        await world.store.keep_policy(US, text)
    for link in (BORN, ALIAS):
        await world.store.create(link, (told(link),), ())
        await world.rows.create(link, (), US if link is BORN else None)
        new = await world.store.change(link, edited(link), (told(edited(link)),), ())
        await world.store.change(link, edited(link, owner="late"), (), ())
        await world.store.change(new, edited(new), (), ())
        await world.rows.clear(link.code, [told(edited(link)).id])
        await world.rows.settle(link.code)
    await world.rows.serially("XyZ9999")
    assert serial_levels(*world.sessions.values()) == {
        "births": {Level.LOCAL_SERIAL},
        "links": {Level.SERIAL},
        "installation": {Level.SERIAL},
    }


# Events in the rows


async def test_pending_events_wait_in_order_and_go_without_a_new_version_N1(world: World) -> None:
    await world.store.create(BORN, (told(BORN),), ())
    link, events = BORN, []
    for _ in range(11):
        new = edited(link)
        events.append(told(new, EventKind.EDITED))
        link = await world.store.change(link, new, events[-1:], ())
    for _ in range(2):  # a relay that crashed does it again
        await world.rows.clear(BORN.code, [told(BORN).id, events[0].id, events[4].id, "unheard of"])
        kept = await world.rows.read(BORN.code)
        assert kept is not None
        assert kept.link == link
        assert kept.born == (told(BORN),)
        assert list(kept.pending) == events[1:4] + events[5:]


async def test_clearing_the_events_of_no_row_is_nothing(world: World) -> None:
    await world.rows.clear("nothing", ["unheard of"])
    await world.store.create(BORN, (told(BORN),), ())
    world.forget()
    await world.rows.clear(BORN.code, [told(BORN).id])
    assert not any(each.serial for each, _ in world.sessions[US].log)


async def test_the_events_that_wait_in_a_row_are_bounded(world: World) -> None:
    link = ALIAS
    await world.store.create(link, (told(link),), ())
    for _ in range(PENDING - 1):
        new = edited(link)
        link = await world.store.change(link, new, (told(new, EventKind.EDITED),), ())
    new = edited(link)
    with pytest.raises(StoreUnavailable, match=r"100 events of promo wait .* relay"):
        await world.store.change(link, new, (told(new, EventKind.EDITED),), ())
    await world.rows.clear(link.code, [told(link, EventKind.EDITED).id])
    assert await world.store.change(link, new, (told(new, EventKind.EDITED),), ()) == new


async def test_a_row_is_settled_when_every_data_centre_has_answered_L5(world: World) -> None:
    await world.store.create(BORN, (), ())
    world.forget()
    assert await world.rows.settle(BORN.code) is True
    # A write that was left half-way is finished first, by a read at its serial level.
    assert [statement.level for statement, _ in world.sessions[US].log] == [
        *(Level.SERIAL, Level.LOCAL_SERIAL),
        *(Level.EACH_QUORUM, Level.EACH_QUORUM),
    ]
    world.sessions[US].faults = lambda statement: (
        Fault.LOST if statement.level is Level.EACH_QUORUM else None
    )
    assert await world.rows.settle(BORN.code) is False


# The installation and the store itself


async def test_nothing_is_due_by_a_clock_that_is_wrong_L5(world: World) -> None:
    assert await world.store.due(NOW, 1) == [Due(NOW, "promo")]
    world.clock_is_wrong = True
    with pytest.raises(StoreUnavailable, match="clock"):
        await world.store.due(NOW, 1)


async def test_writes_are_bounded_in_number_and_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "TURN", 0.01)
    monkeypatch.setattr(store_module, "WAITING", store_module.WRITES + 5)
    world.sessions[US].faults = always("SELECT", Fault.HANGS)
    calls = [
        asyncio.create_task(world.store.create(a_link(code=f"code{n}"), (), ()))
        for n in range(store_module.WRITES + 6)
    ]
    refused, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(StoreUnavailable, match="37 writes wait"):
        await refused.pop()
    late, _ = await asyncio.wait(calls[-6:-1])
    for each in late:
        with pytest.raises(StoreUnavailable, match="no turn within"):
            await each
    assert len(world.sessions[US].log) == store_module.WRITES
    for call in calls[: store_module.WRITES]:
        call.cancel()
    await asyncio.wait(calls)
    world.sessions[US].faults = always("nothing")
    assert await world.store.create(ALIAS, (), ()) == ALIAS


async def test_a_cut_off_region_knows_the_slot_key_it_had_M1(world: World) -> None:
    await world.store.install(b"1" * 16)
    for session in world.sessions.values():
        session.faults = lambda statement: (
            Fault.LOST if Level.SERIAL in (statement.serial, statement.level) else None
        )
    assert await world.store.install(b"2" * 16) == b"1" * 16


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE])
async def test_an_installation_that_timed_out_has_one_key(world: World, fault: Fault) -> None:
    world.sessions[US].faults = in_turn("INSERT", fault)
    assert await world.store.install(b"1" * 16) == b"1" * 16
    assert await world.store.install(b"2" * 16) == b"1" * 16


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE])
@pytest.mark.parametrize("words", ["INSERT", "UPDATE"])
async def test_a_policy_whose_keeping_timed_out_is_kept(
    world: World, fault: Fault, words: str
) -> None:
    world.sessions[US].faults = in_turn(words, fault)
    for text in ("first", "second"):
        await world.store.keep_policy(EU, text)
        assert await world.store.policies() == {EU: text}


async def test_a_policy_that_is_kept_already_is_not_written_again(world: World) -> None:
    await world.store.keep_policy(US, "same")
    world.forget()
    await world.store.keep_policy(US, "same")
    assert not [statement for statement, _ in world.sessions[US].log if statement.serial]


async def test_a_cut_off_region_knows_its_policy_and_cannot_change_it_M1(world: World) -> None:
    await world.store.keep_policy(US, "kept")
    world.sessions[US].faults = lambda statement: Fault.LOST if statement.serial else None
    with pytest.raises(StoreUnavailable):
        await world.store.keep_policy(US, "new")
    assert await world.store.policies() == {US: "kept"}


async def test_each_data_centre_is_asked_alone_what_it_has_O4(world: World) -> None:
    await world.store.create(BORN, (), ())
    world.apart(EU)
    world.sessions[AP].faults = always("")
    world.fit = [AP]
    world.forget()
    views = await world.store.views(BORN.code)
    assert (views[US], views[EU]) == (BORN, None)
    assert isinstance(views[AP], StoreUnavailable)
    levels = [statement.level for statement, _ in world.sessions[EU].log]
    assert levels == [Level.LOCAL_QUORUM] * 2


async def test_codes_are_drawn_in_the_regions_slots_G1(world: World) -> None:
    assert await world.store.slots() == [3, 5]


async def test_writes_under_way_end_before_the_sessions_are_closed(world: World) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def wait(_: float) -> None:
        begun.set()
        await go.wait()

    world.sessions[US].faults = in_turn("INSERT", Fault.LOST)
    world.rows.conditional._sleep = wait
    write = asyncio.create_task(world.store.create(ALIAS, (), ()))
    await begun.wait()
    closing = asyncio.create_task(world.store.close())
    await asyncio.wait([closing], timeout=0.01)
    assert not any(session.closed for session in world.sessions.values())
    with pytest.raises(StoreUnavailable, match="was closed"):
        await world.store.create(BORN, (), ())
    go.set()
    assert await write == ALIAS
    await closing
    assert all(session.closed for session in world.sessions.values())
    await world.store.close()
