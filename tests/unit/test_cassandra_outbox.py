"""The outbox: each event is told, at least once, and settled everywhere before it is forgotten."""

import itertools
from collections.abc import Collection

import pytest

from shortlink.clock import HandClock
from shortlink.links.model import Event, EventKind, event
from shortlink.links.policy import MINUTE, SECOND
from shortlink.store.cassandra.hints import Hints
from shortlink.store.cassandra.outbox import Outbox
from shortlink.store.cassandra.rows import Kept
from tests.samples import NOW, a_link
from tests.unit.cassandra_ring import Ring

_numbers = itertools.count()


def entropy(size: int) -> bytes:
    return next(_numbers).to_bytes(size, "big")


def told(code: str, version: int = 1, kind: EventKind = EventKind.EDITED) -> Event:
    return event(kind, a_link(code=code, version=version), NOW)


class Site:
    """One relay in `us`, with the rows it reads."""

    def __init__(self) -> None:
        self.clock = HandClock(NOW)
        self.ring = Ring(self.clock.clock)
        self.rows: dict[str, Kept] = {}
        self.settled: list[str] = []
        self.cleared: list[str] = []

    def outbox(self) -> Outbox:
        return Outbox(
            self.ring.sessions,
            "us",
            "links",
            self.clock.clock,
            entropy,
            self._read,
            self._clear,
            self._settle,
        )

    async def hint(self, *events: Event) -> None:
        """As a process of the region does before it writes the row."""
        link = a_link(code=events[0].code)
        hints = Hints(self.ring.sessions, "us", "links", self.clock.clock, entropy)
        await hints.announce(link, events, ())
        self.clock.advance(1)

    async def change(self, *events: Event) -> None:
        await self.hint(*events)
        held = self.rows.get(events[0].code, Kept(a_link(code=events[0].code)))
        self.rows[events[0].code] = Kept(held.link, held.born, (*held.pending, *events))

    async def bear(self, *events: Event) -> None:
        await self.hint(*events)
        self.rows[events[0].code] = Kept(a_link(code=events[0].code), events)

    def waiting(self, kind: str) -> set[str]:
        """Codes in a list of the region."""
        rows = self.ring.live("eu", "hints")
        return {str(key[3]) for key in rows if key[0] == f"{kind}.us"}

    async def _read(self, code: str) -> Kept | None:
        return self.rows.get(code)

    async def _clear(self, code: str, ids: Collection[str]) -> None:
        self.cleared.append(code)
        held = self.rows[code]
        left = tuple(event for event in held.pending if event.id not in ids)
        self.rows[code] = Kept(held.link, held.born, left)

    async def _settle(self, code: str) -> bool:
        self.settled.append(code)
        return not self.ring.away


@pytest.fixture
def site() -> Site:
    return Site()


async def publish(outbox: Outbox) -> list[str]:
    events = await outbox.pending(100)
    await outbox.published([event.id for event in events])
    return [event.id for event in events]


async def test_a_changes_events_are_told_then_cleared_from_the_row_N1(site: Site) -> None:
    events = [told("promo"), told("promo", kind=EventKind.TOMBSTONED)]
    await site.change(*events)
    outbox = site.outbox()
    assert await outbox.pending(10) == events
    await outbox.published([event.id for event in events])
    assert site.rows["promo"].pending == ()
    assert await outbox.pending(10) == []
    assert site.waiting("outbox") == set()


async def test_a_births_event_is_forgotten_with_its_hint_alone_N1(site: Site) -> None:
    born = told("AbC1234", kind=EventKind.CREATED)
    await site.bear(born)
    outbox = site.outbox()
    assert await publish(outbox) == [born.id]
    assert site.rows["AbC1234"].born == (born,)
    assert await outbox.pending(10) == []


async def test_a_born_links_change_does_not_tell_its_birth_again_N1(site: Site) -> None:
    await site.bear(told("AbC1234", kind=EventKind.CREATED))
    outbox = site.outbox()
    await publish(outbox)
    edited = told("AbC1234", 2)
    await site.change(edited)
    assert await outbox.pending(10) == [edited]


async def test_a_hint_whose_row_is_still_being_written_waits_N1(site: Site) -> None:
    outbox = site.outbox()
    late = told("promo")
    await site.hint(late)
    for _ in range(5):
        site.clock.advance(10 * SECOND)
        assert await outbox.pending(10) == []
    site.rows["promo"] = Kept(a_link(), (), (late,))
    assert await outbox.pending(10) == [late]
    assert site.settled == []


async def test_an_overdue_hint_without_its_event_is_settled_and_dropped_N1(site: Site) -> None:
    await site.hint(told("promo"))
    outbox = site.outbox()
    site.clock.advance(2 * MINUTE)
    await outbox.pending(10)
    assert site.waiting("unsettled") == {"promo"}
    site.clock.advance(10 * SECOND)
    await outbox.pending(10)
    assert site.settled == ["promo"]
    assert site.waiting("unsettled") == site.waiting("outbox") == set()


async def test_an_event_that_a_settling_brings_to_light_is_told_N1(site: Site) -> None:
    late = told("promo")
    await site.hint(late)
    outbox = site.outbox()
    site.clock.advance(2 * MINUTE)
    await outbox.pending(10)
    site.rows["promo"] = Kept(a_link(), (), (late,))  # the write was finished by the serial read
    site.clock.advance(10 * SECOND)
    assert await outbox.pending(10) == [late]


async def test_a_change_is_settled_before_its_hint_is_dropped_L5(site: Site) -> None:
    await site.change(told("promo"))
    await publish(site.outbox())
    assert site.settled == ["promo"]
    assert site.waiting("outbox") == site.waiting("unsettled") == set()


async def test_while_a_region_is_away_its_changes_wait_to_be_settled_L5(site: Site) -> None:
    outbox = site.outbox()
    site.ring.away = {"ap"}
    await site.change(told("promo"))
    assert await publish(outbox) == [told("promo").id]
    assert site.waiting("outbox") == set()
    for _ in range(3):
        site.clock.advance(10 * SECOND)
        assert await outbox.pending(10) == []
        assert site.waiting("unsettled") == {"promo"}
    site.ring.away = set()
    site.clock.advance(10 * SECOND)
    await outbox.pending(10)
    assert site.settled[-1] == "promo"
    assert site.waiting("unsettled") == set()


async def test_an_absent_region_is_tried_once_in_five_seconds_L5(site: Site) -> None:
    outbox = site.outbox()
    site.ring.away = {"ap"}
    for n in range(30):
        await site.change(told(f"code{n}"))
    await publish(outbox)
    tried = len(site.settled)
    assert tried <= 16
    for _ in range(4):
        site.clock.advance(SECOND)
        await outbox.pending(10)
    assert len(site.settled) == tried


async def test_what_waits_for_an_absent_region_holds_up_nothing_new_N1(site: Site) -> None:
    outbox = site.outbox()
    site.ring.away = {"ap"}
    for n in range(20):
        await site.change(told(f"old{n}"))
    await publish(outbox)
    await site.change(told("new"))
    assert await outbox.pending(1) == [told("new")]


async def test_events_published_in_part_leave_the_rest_N1(site: Site) -> None:
    born = [told("AbC1234", kind=EventKind.CREATED), told("AbC1234", kind=EventKind.EXPIRING)]
    await site.bear(*born)
    outbox = site.outbox()
    assert await outbox.pending(10) == born
    await outbox.published([born[0].id])
    assert await outbox.pending(10) == [born[1]]


async def test_what_another_process_told_can_be_forgotten_by_this_one_N1(site: Site) -> None:
    await site.change(told("promo"))
    ids = [event.id for event in await site.outbox().pending(10)]
    await site.outbox().published(ids)
    assert await site.outbox().pending(10) == []


async def test_an_event_of_no_change_is_kept_in_its_hint_once_N1(site: Site) -> None:
    outbox = site.outbox()
    expiring = told("promo", kind=EventKind.EXPIRING)
    for _ in range(3):
        await outbox.announce(expiring)
    assert await outbox.pending(10) == [expiring]
    await outbox.published([expiring.id])
    assert await outbox.pending(10) == []
    assert site.settled == []
