"""Hints: found when due without scanning a table, and lost by nobody's absence (L4, S3)."""

import itertools

import pytest

from shortlink.clock import HandClock
from shortlink.links.model import EventKind, event
from shortlink.links.policy import DAY, HOUR, MINUTE, SECOND
from shortlink.store.cassandra.hints import Hints
from shortlink.store.cassandra.session import Level, Unreachable
from shortlink.store.port import Due
from tests.samples import NOW, a_link
from tests.unit.cassandra_ring import Ring

_numbers = itertools.count()


def entropy(size: int) -> bytes:
    return next(_numbers).to_bytes(size, "big")


class Site:
    """Regions that share a ring and a clock."""

    def __init__(self) -> None:
        self.clock = HandClock(NOW)
        self.ring = Ring(self.clock.clock)

    def hints(self, home: str = "us") -> Hints:
        return Hints(self.ring.sessions, home, "links", self.clock.clock, entropy)

    def index(self) -> list[object]:
        """The buckets that are open."""
        return [key[2] for key in self.ring.live("us", "hints") if key[0] == "open"]


@pytest.fixture
def site() -> Site:
    return Site()


async def test_a_hint_is_due_at_its_time_and_not_before_L4(site: Site) -> None:
    hints = site.hints()
    await hints.announce(a_link(), (), (NOW + 3 * HOUR, NOW + 5 * DAY))
    assert await hints.due(NOW + 3 * HOUR - 1, 10) == []
    assert await hints.due(NOW + 3 * HOUR, 10) == [Due(NOW + 3 * HOUR, "promo")]


async def test_what_is_due_is_found_by_partitions_and_no_scan_L4(site: Site) -> None:
    hints = site.hints()
    await hints.announce(a_link(), (), (NOW,))
    await hints.due(NOW, 10)
    reads = [cql for cql, _ in site.ring.statements if cql.startswith("SELECT")]
    assert reads
    assert all("kind = ? AND bucket = ?" in cql and "LIMIT" in cql for cql in reads)


async def test_the_bucket_is_announced_before_its_first_hint_L4(site: Site) -> None:
    await site.hints().announce(a_link(), (), (NOW + DAY,))
    kinds = [key[0] for key in site.ring.live("us", "hints")]
    assert kinds.index("open") < kinds.index("due")


async def test_a_hint_written_beside_a_sweep_outlives_it_L4(site: Site) -> None:
    sweeper, writer = site.hints(), site.hints()
    await writer.announce(a_link(), (), (NOW,))
    [due] = await sweeper.due(NOW, 10)
    await writer.announce(a_link(version=2), (), (NOW,))
    await sweeper.done([due], [])
    assert await sweeper.due(NOW, 10) == [due]


async def test_hints_go_on_through_another_region_while_home_is_away_L4(site: Site) -> None:
    site.ring.away = {"us"}
    hints = site.hints()
    await hints.announce(a_link(), (), (NOW,))
    assert await hints.due(NOW, 10) == [Due(NOW, "promo")]
    assert await hints.owned("ann", "", 10) == ["promo"]


async def test_with_no_region_to_write_to_a_hint_is_refused_L4(site: Site) -> None:
    site.ring.away = {"us", "eu", "ap"}
    with pytest.raises(Unreachable):
        await site.hints().announce(a_link(), (), (NOW,))


async def test_hints_written_while_this_region_was_away_are_found_L4(site: Site) -> None:
    ours, theirs = site.hints("us"), site.hints("eu")
    assert await ours.due(NOW, 10) == []
    site.ring.away = {"us"}
    await theirs.announce(a_link(), (), (NOW,))
    site.ring.away = set()
    assert await ours.due(NOW, 10) == []  # its own copy lacks it
    site.clock.advance(10 * SECOND)
    assert await ours.due(NOW, 10) == [Due(NOW, "promo")]


async def test_an_emptied_bucket_leaves_the_index_an_hour_later_L4(site: Site) -> None:
    hints = site.hints()
    await hints.announce(a_link(), (), (NOW + 2 * HOUR,))
    site.clock.advance(3 * HOUR)
    await hints.done(await hints.due(site.clock.at, 10), [])
    site.clock.advance(HOUR - MINUTE)
    assert await hints.due(site.clock.at, 10) == []
    assert site.index()
    site.clock.advance(2 * MINUTE)
    assert await hints.due(site.clock.at, 10) == []
    assert site.index() == []


async def test_a_bucket_not_looked_at_to_its_end_stays_open_L4(site: Site) -> None:
    hints = site.hints()
    began = NOW // HOUR * HOUR + HOUR - 1
    await hints.announce(a_link(), (), (began + 1 - MINUTE,))
    await hints.announce(a_link(code="later"), (), (began,))
    site.clock.advance(began + 3 * HOUR - NOW)
    await hints.done(await hints.due(began - 1, 10), [])
    site.clock.advance(MINUTE)
    assert await hints.due(began - 1, 10) == []  # the end of a sweep that took hours
    assert await hints.due(site.clock.at, 10) == [Due(began, "later")]


async def test_a_hint_written_again_for_two_at_once_is_one_L4(site: Site) -> None:
    hints = site.hints()
    await hints.done([], [Due(NOW, "promo")] * 3)
    assert len([key for key in site.ring.live("us", "hints") if key[0] == "due"]) == 1


async def test_while_a_region_is_away_buckets_wait_L4(site: Site) -> None:
    hints = site.hints()
    await hints.announce(a_link(), (), (NOW + 2 * HOUR,))
    site.clock.advance(9 * HOUR)
    site.ring.away = {"ap"}
    await hints.done(await hints.due(site.clock.at, 10), [])
    site.clock.advance(MINUTE)
    assert await hints.due(site.clock.at, 10) == []
    assert site.index()


async def test_a_hint_for_a_bucket_just_found_empty_is_seen_at_once_L4(site: Site) -> None:
    hints = site.hints()
    await hints.announce(a_link(), (), (NOW - 9 * HOUR,))
    await hints.done(await hints.due(NOW, 10), [])
    site.clock.advance(10 * SECOND)
    assert await hints.due(NOW, 10) == []
    await hints.announce(a_link(), (), (NOW - 9 * HOUR,))
    assert await hints.due(NOW, 10) == [Due(NOW - 9 * HOUR, "promo")]


async def test_a_late_hint_opens_its_bucket_again_L4(site: Site) -> None:
    hints = site.hints()
    await hints.announce(a_link(), (), (NOW - 9 * HOUR,))
    await hints.done(await hints.due(NOW, 10), [])
    site.clock.advance(3 * HOUR)
    assert await hints.due(site.clock.at, 10) == []
    assert site.index() == []
    await hints.announce(a_link(), (), (NOW - 9 * HOUR,))
    assert await hints.due(site.clock.at, 10) == [Due(NOW - 9 * HOUR, "promo")]


async def test_a_bucket_announced_anew_is_not_closed_with_the_old_L4(site: Site) -> None:
    ours, theirs = site.hints("us"), site.hints("eu")
    await ours.announce(a_link(), (), (NOW - 9 * HOUR,))
    await ours.done(await ours.due(NOW, 10), [])
    site.clock.advance(3 * HOUR)
    await theirs.announce(a_link(), (), (NOW - 9 * HOUR,))
    await theirs.done(await theirs.due(site.clock.at, 10), [])
    site.clock.advance(10 * SECOND)
    assert await ours.due(site.clock.at, 10) == []
    assert len(site.index()) == 1  # whoever announced it may be about to write into it


async def test_an_event_is_hinted_for_the_home_regions_relay_N1(site: Site) -> None:
    link = a_link()
    await site.hints("eu").announce(link, (event(EventKind.CREATED, link, NOW),), ())
    kinds = {key[0] for key in site.ring.live("us", "hints")}
    assert kinds == {"open", "owner", "outbox.eu"}


async def test_reads_are_the_home_regions_but_for_one_in_ten_seconds_S1(site: Site) -> None:
    hints = site.hints()
    await hints.due(NOW, 10)
    for _ in range(9):
        site.clock.advance(SECOND)
        await hints.due(NOW, 10)
    levels = [level for cql, level in site.ring.statements if cql.startswith("SELECT")]
    assert levels == [Level.EACH_QUORUM, *[Level.LOCAL_QUORUM] * 9]
