"""The process's own cache: absolute ages, and newest wins (K1, K4, L5)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shortlink.cache.memory import FILL_LIMIT, NEGATIVE_BOUND, Entry, MemoryCache
from shortlink.clock import HandClock
from shortlink.links.answers import Answer
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import CACHE_BOUND
from tests import samples
from tests.samples import NOW

Said = tuple[Answer, int | None]


def said(answer: Answer, spare: int | None) -> Said:
    return answer, spare


def a_link(version: int = 1, **values: Any) -> Link:
    return samples.a_link(
        version=version, target=f"https://example.com/{version}", changed_at=NOW, **values
    )


def deleted(version: int) -> Link:
    return a_link(version, state=State.TOMBSTONED, tombstoned_at=NOW, cause=Cause.DELETED)


class Rig:
    def __init__(self, capacity: int = 100) -> None:
        self.hand = HandClock(NOW)
        self.cache: MemoryCache[Said] = MemoryCache(self.hand.clock, said, capacity)

    def now(self) -> int:
        return self.hand.clock.steady()

    def put(self, link: Link, began: int | None = None) -> Entry[Said] | None:
        return self.cache.put(link, link.code, self.now() if began is None else began)

    def put_unknown(self, began: int | None = None) -> Entry[Said] | None:
        return self.cache.put(None, "promo", self.now() if began is None else began)

    def served(self, code: str = "promo") -> Answer | None:
        entry = self.cache.get(code)
        return None if entry is None else entry.response[0]

    def target(self, code: str = "promo") -> str | None:
        answer = self.served(code)
        return None if answer is None else answer.target


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_k1_an_entry_is_served_until_its_bound_and_hits_do_not_prolong_it(rig: Rig) -> None:
    rig.put(a_link())
    for _ in range(CACHE_BOUND - 1):
        rig.hand.advance(1)
        assert rig.target() == "https://example.com/1"
    rig.hand.advance(1)
    assert rig.served() is None


def test_an_age_counts_from_the_moment_the_store_read_began(rig: Rig) -> None:
    began = rig.now()
    rig.hand.advance(1_500)
    rig.put(a_link(), began)
    rig.hand.advance(CACHE_BOUND - 1_500 - 1)
    assert rig.target()
    rig.hand.advance(1)
    assert rig.served() is None


@pytest.mark.parametrize("link", [None, deleted(1), a_link(state=State.DISABLED)])
def test_k3_negative_answers_are_kept_at_most_a_second(rig: Rig, link: Link | None) -> None:
    rig.cache.put(link, "promo", rig.now())
    rig.hand.advance(NEGATIVE_BOUND - 1)
    answer = rig.served()
    assert answer is not None
    assert not answer.target
    rig.hand.advance(1)
    assert rig.served() is None


def test_an_entry_whose_link_has_just_expired_is_a_miss(rig: Rig) -> None:
    rig.put(a_link(expires_at=NOW + 3_000))
    rig.hand.advance(2_999)
    assert rig.target()
    rig.hand.advance(1)
    assert rig.served() is None


def test_after_expiry_one_read_finds_the_extension(rig: Rig) -> None:
    rig.put(a_link(1, expires_at=NOW + 3_000))
    rig.hand.advance(3_000)
    rig.put(a_link(2, expires_at=NOW + 60_000))
    assert rig.target() == "https://example.com/2"


def test_after_expiry_one_read_is_kept_as_negative_for_the_same_version(rig: Rig) -> None:
    rig.put(a_link(1, expires_at=NOW + 3_000))
    rig.hand.advance(3_000)
    entry = rig.put(a_link(1, expires_at=NOW + 3_000))
    assert entry is not None
    assert entry.response[0].status == 410
    assert rig.cache.get("promo") is entry


def test_the_wall_clock_decides_on_expiry_though_it_was_set(rig: Rig) -> None:
    rig.put(a_link(expires_at=NOW + 3_000))
    rig.hand.at += 3_000  # set forward; the steady clock stands still
    assert rig.served() is None


def test_k4_an_older_fill_is_refused_and_the_newest_known_is_answered(rig: Rig) -> None:
    rig.put(a_link(2))
    entry = rig.put(a_link(1))
    assert entry is not None
    assert entry.stamp == (1, 2)
    assert rig.target() == "https://example.com/2"
    assert rig.cache.refused == 1


def test_a_new_generation_is_newer_than_any_version_of_the_old(rig: Rig) -> None:
    rig.put(a_link(1, generation=2))
    entry = rig.put(a_link(9))
    assert entry is not None
    assert entry.stamp == (2, 1)


def test_a_read_that_began_before_a_create_does_not_hide_the_link(rig: Rig) -> None:
    began = rig.now()
    rig.hand.advance(10)
    rig.cache.changed(replace(a_link(), changed_at=rig.hand.at))
    entry = rig.put_unknown(began)
    assert entry is not None
    assert entry.response[0].status == 302
    assert rig.target()


def test_older_than_known_is_not_answered_even_when_the_known_is_too_old(rig: Rig) -> None:
    rig.put(deleted(2))
    rig.hand.advance(CACHE_BOUND)
    assert rig.put(a_link(1)) is None
    assert rig.put_unknown() is None
    assert rig.served() is None


def test_a_later_read_of_the_same_version_renews_it_and_an_earlier_one_does_not(rig: Rig) -> None:
    first = rig.now()
    rig.hand.advance(1_000)
    rig.put(a_link())
    rig.hand.advance(500)
    rig.put(a_link(), first)
    rig.hand.advance(CACHE_BOUND - 501)
    assert rig.target()
    rig.put(a_link())
    rig.hand.advance(CACHE_BOUND - 1)
    assert rig.target()


def test_k4_a_change_replaces_what_is_cached_at_once(rig: Rig) -> None:
    rig.put(a_link(1))
    rig.cache.changed(deleted(2))
    answer = rig.served()
    assert answer is not None
    assert answer.status == 410


def test_a_change_does_not_replace_what_is_newer(rig: Rig) -> None:
    rig.put(a_link(3))
    rig.cache.changed(a_link(2))
    assert rig.target() == "https://example.com/3"


def test_a_changes_age_counts_from_its_decision_however_slow_the_write(rig: Rig) -> None:
    rig.hand.advance(4_000)
    rig.cache.changed(a_link())  # decided at NOW
    rig.hand.advance(999)
    assert rig.target()
    rig.hand.advance(1)
    assert rig.served() is None


def test_k1_it_never_holds_more_than_its_capacity(rig: Rig) -> None:
    rig = Rig(capacity=3)
    for number in range(10):
        rig.put(samples.a_link(code=f"code{number}"))
        rig.hand.advance(1)
    assert list(rig.cache.entries) == [b"/code7", b"/code8", b"/code9"]


def test_the_entry_written_first_is_evicted_first(rig: Rig) -> None:
    rig = Rig(capacity=2)
    rig.put(samples.a_link(code="aaa"))
    rig.put(samples.a_link(code="bbb"))
    rig.hand.advance(1)
    rig.put(samples.a_link(code="aaa"))
    rig.put(samples.a_link(code="ccc"))
    assert list(rig.cache.entries) == [b"/aaa", b"/ccc"]


def test_a_slow_reader_does_not_put_back_what_was_replaced_and_evicted() -> None:
    rig = Rig(capacity=1)
    began = rig.now()
    rig.hand.advance(100)
    rig.cache.changed(replace(deleted(2), changed_at=rig.hand.at))
    rig.put(samples.a_link(code="other"))
    assert rig.cache.peek("promo") is None
    entry = rig.put(a_link(1), began)
    assert entry is not None  # those who came before the change may get it
    assert rig.served() is None
    assert rig.cache.peek("promo") is None
    assert rig.served("other") is not None


@pytest.mark.parametrize(("took", "kept"), [(FILL_LIMIT, True), (FILL_LIMIT + 1, False)])
def test_a_fill_whose_read_began_over_two_seconds_ago_is_answered_not_kept(
    rig: Rig, took: int, kept: bool
) -> None:
    began = rig.now()
    rig.hand.advance(took)
    entry = rig.put(a_link(), began)
    assert entry is not None
    assert (rig.cache.peek("promo") is entry) is kept


@pytest.mark.parametrize(
    ("expires_in", "spare"), [(None, None), (60_000, 55_000), (5_000, 0), (2_000, -3_000)]
)
def test_k2_the_edge_gets_the_time_left_at_the_end_of_the_entrys_life(
    rig: Rig, expires_in: int | None, spare: int | None
) -> None:
    expires_at = None if expires_in is None else NOW + expires_in
    entry = rig.put(a_link(expires_at=expires_at))
    assert entry is not None
    assert entry.response[1] == spare


class Reader:
    """A store read under way: what it saw, and when it began."""

    def __init__(self, code: str, link: Link | None, began: int) -> None:
        self.code = code
        self.link = link
        self.began = began


CODES = ("aaa", "bbb", "ccc")
KINDS = ("edit", "delete", "edit elsewhere", "begin", "begin", "finish", "finish", "wait")
Step = tuple[str, str, int]


class World:
    """A store with few codes, a cache with fewer entries, and readers that dawdle."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rig = Rig(capacity)
        self.store: dict[str, Link] = {}
        self.history: dict[str, list[tuple[int, tuple[int, int]]]] = {code: [] for code in CODES}
        self.announced: dict[str, tuple[int, int]] = {}
        self.reading: list[Reader] = []

    def step(self, kind: str, code: str, number: int) -> None:
        rig = self.rig
        if kind == "wait":
            rig.hand.advance(number)
        elif kind == "begin":
            self.reading.append(Reader(code, self.store.get(code), rig.now()))
        elif kind == "finish":
            if self.reading:
                reader = self.reading.pop(number % len(self.reading))
                rig.cache.put(reader.link, reader.code, reader.began)
        else:
            link = self.write(code, number, delete=kind == "delete")
            if kind != "edit elsewhere":
                rig.cache.changed(link)
                self.announced[code] = link.stamp

    def write(self, code: str, number: int, *, delete: bool) -> Link:
        """The next version, which takes `number` ms from its decision to its being stored."""
        old, at = self.store.get(code), self.rig.hand.at
        link = samples.a_link(
            code=code,
            version=1 if old is None else old.version + 1,
            changed_at=at - number,
            expires_at=at + (10**9 if number % 2 else 700),
        )
        if delete:
            link = replace(link, state=State.TOMBSTONED, tombstoned_at=at, cause=Cause.DELETED)
        self.store[code] = link
        self.history[code].append((self.rig.now(), link.stamp))
        return link

    def check(self) -> None:
        assert len(self.rig.cache.entries) <= self.capacity
        past = self.rig.now() - CACHE_BOUND
        for code in CODES:
            entry = self.rig.cache.get(code)
            if entry is None:
                continue
            assert entry.stamp >= self.announced.get(code, (0, 0)), f"{code} went back"
            old = [stamp for at, stamp in self.history[code] if at <= past]
            assert entry.stamp >= max(old, default=(0, 0)), f"{code} is over its age"
            link = self.store.get(code)
            if entry.response[0].target and link is not None and link.stamp == entry.stamp:
                assert self.rig.hand.at < (link.expires_at or 0), f"{code} has expired"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from(CODES),
        st.sampled_from((0, 1, 50, 601, 2_001, 5_000)),
    ),
    max_size=50,
)


@settings(max_examples=600, deadline=None)
@given(steps=STEPS, capacity=st.integers(1, 3))
# A reader that began in the millisecond of a change, which was evicted before it came back.
@example(
    steps=[("begin", "aaa", 0), ("edit", "aaa", 0), ("edit", "bbb", 0), ("finish", "aaa", 0)],
    capacity=1,
)
# The same between a change's decision and its end.
@example(
    steps=[
        ("begin", "aaa", 0),
        ("wait", "aaa", 1),
        ("edit", "aaa", 50),
        ("begin", "bbb", 0),
        ("finish", "bbb", 1),
        ("finish", "aaa", 0),
    ],
    capacity=1,
)
def test_l5_no_interleaving_serves_an_older_value_after_a_newer_was_announced(
    steps: list[Step], capacity: int
) -> None:
    world = World(capacity)
    for kind, code, number in steps:
        world.step(kind, code, number)
        world.check()
