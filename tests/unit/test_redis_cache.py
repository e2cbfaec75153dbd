"""The second cache level without Redis: ages, markers, bounds, and a server that fails."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from shortlink.cache import redis as redis_module
from shortlink.cache.breaker import CAP, FIRST, TOLD_AT, Breaker
from shortlink.cache.memory import FILL_LIMIT
from shortlink.cache.metrics import SecondCacheMetrics
from shortlink.cache.redis import QUEUE, RedisCache, open_cache
from shortlink.cache.second import Looked
from shortlink.clock import SYSTEM_CLOCK, HandClock
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import CACHE_BOUND
from shortlink.store.record import from_text, to_text
from tests import samples
from tests.redis_model import Model
from tests.samples import NOW

KEY = b"shortlink:1:promo"


def a_link(version: int = 1, **values: Any) -> Link:
    return samples.a_link(**{"version": version, "changed_at": NOW, **values})


def deleted(version: int) -> Link:
    return a_link(version, state=State.TOMBSTONED, tombstoned_at=NOW, cause=Cause.DELETED)


class Rig:
    def __init__(self) -> None:
        self.hand = HandClock(NOW)
        self.server = Model()
        self.cache = self.another()

    def another(self) -> RedisCache:
        """As another process has it."""
        return RedisCache(
            "redis.example", self.server.connect, self.hand.clock, to_text, from_text, lambda: 0.0
        )

    def pass_(self, milliseconds: int) -> None:
        self.hand.advance(milliseconds)
        self.server.now += milliseconds

    def now(self) -> int:
        return self.hand.clock.steady()

    async def connected(self) -> None:
        """Ask once, so that there is a connection to read by."""
        await self.cache.get("nobody")
        await settled(lambda: self.cache._reads.ready())

    async def written(self) -> None:
        """Until no write waits."""
        await settled(lambda: self.cache._writing is None)

    async def fill(self, link: Link, moment: int | None = None) -> None:
        self.cache.fill(link, self.server.now if moment is None else moment)
        await self.written()

    def counts(self) -> dict[str, int]:
        """What is not 0."""
        names = self.cache.counts.__slots__
        return {name: n for name in names if (n := getattr(self.cache.counts, name))}


async def settled(done: Callable[[], bool]) -> None:
    """Let the others run until `done`."""
    for _ in range(10_000):
        if done():
            return
        await asyncio.sleep(0)
    raise AssertionError("it goes on and on")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.connected()
    rig.cache.counts = redis_module.Counts()
    rig.server.trips.clear()
    yield rig
    rig.server.running.set()
    await rig.cache.close()


# Ages


async def test_k1_what_was_filled_is_found_with_the_age_of_its_store_read(rig: Rig) -> None:
    missed = await rig.cache.get("promo")
    began = rig.now()
    assert missed == Looked(moment=rig.server.now)
    rig.pass_(300)
    assert missed.moment is not None
    await rig.fill(a_link(), missed.moment)
    rig.pass_(700)
    found = await rig.cache.get("promo")
    assert (found.link, found.began) == (a_link(), began)
    assert rig.counts() == {"misses": 1, "kept": 1, "hits": 1}


async def test_an_entry_is_found_until_its_bound_and_hits_do_not_prolong_it(rig: Rig) -> None:
    moment = rig.server.now
    rig.pass_(FILL_LIMIT)
    await rig.fill(a_link(), moment)
    rig.pass_(CACHE_BOUND - FILL_LIMIT - 1)
    found = await rig.cache.get("promo")
    assert found.link is not None
    assert rig.now() - found.began == CACHE_BOUND - 1
    rig.pass_(1)
    assert (await rig.cache.get("promo")).link is None


async def test_a_slow_reply_makes_an_entry_older_and_never_younger(rig: Rig) -> None:
    await rig.fill(a_link())
    began = rig.now()
    rig.server.running.clear()
    asked = asyncio.ensure_future(rig.cache.get("promo"))
    await settled(lambda: bool(rig.server.trips))
    rig.pass_(1_000)
    rig.server.running.set()
    assert (await asked).began <= began


async def test_a_fill_that_was_long_under_way_is_judged_by_when_it_arrives(rig: Rig) -> None:
    moment = rig.server.now
    rig.server.running.clear()
    rig.cache.fill(a_link(), moment)
    await settled(lambda: bool(rig.server.trips))
    rig.pass_(FILL_LIMIT + 1)  # a stopped server reads, in the end, what was sent to it
    rig.server.running.set()
    await rig.written()
    assert rig.server.values == {}
    assert rig.counts() == {"refused": 1}


@pytest.mark.parametrize("late", [1, FILL_LIMIT, FILL_LIMIT + 1])
async def test_k1_a_changes_age_counts_from_its_decision(rig: Rig, late: int) -> None:
    began = rig.now()
    rig.pass_(late)
    rig.cache.changed(a_link(changed_at=NOW))
    await rig.written()
    found = await rig.cache.get("promo")
    if late > FILL_LIMIT:
        assert found.link is None
    else:
        assert (found.link, found.began) == (a_link(), began)


async def test_a_changes_age_counts_on_though_redis_was_slow_to_tell_the_time(rig: Rig) -> None:
    began = rig.now()
    rig.server.running.clear()
    rig.cache.changed(a_link(changed_at=NOW))
    await settled(lambda: bool(rig.server.trips))
    rig.pass_(500)
    rig.server.running.set()
    await rig.written()
    found = await rig.cache.get("promo")
    assert found.link is not None
    assert found.began <= began


async def test_an_age_that_cannot_be_is_not_believed(rig: Rig) -> None:
    await rig.fill(a_link())
    rig.server.now -= 10  # the server's clock was set back
    assert (await rig.cache.get("promo")).link is None
    await rig.fill(a_link(2), rig.server.now + 1)
    assert rig.counts() == {"kept": 1, "misses": 1, "refused": 1}


async def test_a_value_without_an_end_is_not_served_past_the_bound(rig: Rig) -> None:
    await rig.fill(a_link())
    rig.server.ends.clear()
    rig.pass_(CACHE_BOUND - 1)
    assert (await rig.cache.get("promo")).link is not None
    rig.pass_(1)
    assert (await rig.cache.get("promo")).link is None


# Newest wins, and what is not served


async def test_k4_a_slow_reader_does_not_put_back_what_was_replaced(rig: Rig) -> None:
    missed = await rig.cache.get("promo")
    rig.pass_(10)
    rig.cache.changed(replace(a_link(2), changed_at=rig.hand.at))
    assert missed.moment is not None
    await rig.fill(a_link(1), missed.moment)
    found = await rig.cache.get("promo")
    assert found.link is not None
    assert found.link.version == 2


async def test_k4_a_deleted_link_is_kept_as_a_marker_and_answered_by_the_store(rig: Rig) -> None:
    moment = rig.server.now
    await rig.fill(a_link(1), moment)
    rig.cache.changed(deleted(2))
    await rig.written()
    assert await rig.cache.get("promo") == Looked(moment=rig.server.now)
    rig.pass_(FILL_LIMIT)
    await rig.fill(a_link(1), moment)  # the marker outlives every read begun before it
    assert (await rig.cache.get("promo")).link is None
    assert rig.counts() == {"kept": 2, "refused": 1, "misses": 2}


async def test_l5_a_link_that_has_just_expired_is_read_from_the_store(rig: Rig) -> None:
    await rig.fill(a_link(expires_at=NOW + 3_000))
    rig.pass_(2_999)
    assert (await rig.cache.get("promo")).link is not None
    rig.pass_(1)
    assert await rig.cache.get("promo") == Looked(moment=rig.server.now)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"hello",
        b"1 1 1000000",
        b"1 1 soon " + to_text(a_link()).encode(),
        b"1 1 1000000 {}",
        b'1 1 1000000 {"format":9}',
        b"1 1 1000000 \xff",
        b"1 1 1000000 [",
        b"1 2 1000000 " + to_text(a_link()).encode(),
        b"1 1 1000000 " + to_text(a_link(code="other")).encode(),
    ],
)
async def test_what_is_no_record_of_ours_is_a_miss_and_is_written_over(
    rig: Rig, value: bytes
) -> None:
    rig.server.values[KEY] = value
    assert await rig.cache.get("promo") == Looked(moment=rig.server.now)
    await rig.fill(a_link(3))
    assert (await rig.cache.get("promo")).link == a_link(3)
    assert rig.counts() == {"unreadable": 1, "kept": 1, "hits": 1}


# Round trips


async def test_k3_all_who_ask_at_once_share_one_round_trip(rig: Rig) -> None:
    links = [a_link(code=f"code{n}") for n in range(100)]
    for link in links:
        rig.cache.fill(link, rig.server.now)
    await rig.written()
    rig.server.trips.clear()
    found = await asyncio.gather(*(rig.cache.get(link.code) for link in links))
    assert [one.link for one in found] == links
    assert rig.server.trips == [["MGET", "TIME"]]


async def test_those_who_ask_during_a_round_trip_share_the_next(rig: Rig) -> None:
    rig.server.running.clear()
    first = asyncio.ensure_future(rig.cache.get("promo"))
    await settled(lambda: bool(rig.server.trips))
    later = [asyncio.ensure_future(rig.cache.get(f"code{n}")) for n in range(50)]
    await asyncio.sleep(0)
    rig.server.running.set()
    await asyncio.gather(first, *later)
    assert rig.server.trips == [["MGET", "TIME"]] * 2


async def test_one_who_gives_up_disturbs_nobody(rig: Rig) -> None:
    await rig.fill(a_link())
    gone, stays = (asyncio.ensure_future(rig.cache.get("promo")) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await stays).link == a_link()


async def test_writes_that_wait_are_bounded_and_nobody_waits_for_them(rig: Rig) -> None:
    for n in range(QUEUE + 7):
        rig.cache.fill(a_link(code=f"code{n}"), rig.server.now)
    await rig.written()
    assert rig.counts() == {"kept": QUEUE, "dropped": 7}


async def test_a_closed_cache_answers_at_once_and_keeps_nothing(rig: Rig) -> None:
    rig.server.running.clear()
    asked = [asyncio.ensure_future(rig.cache.get(code)) for code in ("promo", "other")]
    await asyncio.sleep(0)
    late = asyncio.ensure_future(rig.cache.get("late1"))
    rig.cache.fill(a_link(), rig.server.now)
    await asyncio.sleep(0)
    await rig.cache.close()
    assert await asyncio.gather(*asked, late) == [Looked()] * 3
    assert await rig.cache.get("promo") == Looked()
    rig.cache.changed(a_link())
    assert rig.server.values == {}
    await rig.cache.close()


# A server that fails


async def test_k5_a_server_that_does_not_answer_is_given_up_at_the_deadline_then_left_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_module, "DEADLINE", 0.01)
    rig.server.running.clear()
    asked = [rig.cache.get(f"code{n}") for n in range(3)]
    assert await asyncio.gather(*asked) == [Looked()] * 3
    assert await rig.cache.get("promo") == Looked()
    assert rig.counts() == {"errors": 3, "skipped": 1}
    assert len(rig.server.trips) == 1
    rig.server.running.set()
    rig.pass_(FIRST)
    await rig.connected()  # a new connection: on the old one the late replies would come
    assert rig.server.connections == 2
    assert (await rig.cache.get("promo")).moment is not None


async def test_k5_a_server_that_is_down_is_found_again_by_itself(rig: Rig) -> None:
    await rig.fill(a_link())
    rig.server.down = True
    for _ in range(20):
        assert (await rig.cache.get("promo")).link is None
        await asyncio.sleep(0)
        rig.pass_(10)
    rig.server.down = False
    rig.server.values.clear()  # as after a restart
    rig.pass_(CAP)
    await rig.connected()
    assert await rig.cache.get("promo") == Looked(moment=rig.server.now)


async def test_a_cache_that_was_never_there_costs_nothing_but_its_use() -> None:
    rig = Rig()
    rig.server.down = True
    assert await rig.cache.get("promo") == Looked()
    rig.cache.changed(a_link())
    await rig.written()
    assert rig.counts() == {"skipped": 1, "write_skipped": 1}
    await rig.cache.close()


@pytest.mark.parametrize("says", ["LOADING dataset in memory", "NOAUTH Authentication required."])
async def test_a_server_that_refuses_is_one_that_fails(rig: Rig, says: str) -> None:
    rig.server.refuses = ResponseError(says)
    assert await rig.cache.get("promo") == Looked()
    assert await rig.cache.get("promo") == Looked()
    rig.cache.fill(a_link(), rig.server.now)
    await rig.written()
    assert rig.counts() == {"errors": 1, "skipped": 1, "write_errors": 1}


async def test_refused_writes_do_not_keep_reads_away(rig: Rig) -> None:
    await rig.fill(a_link())
    rig.server.refuses = ResponseError("OOM command not allowed")
    for _ in range(5):
        rig.cache.fill(a_link(2), rig.server.now)
        await rig.written()
    rig.server.refuses = None
    assert (await rig.cache.get("promo")).link == a_link()


async def test_an_outage_is_logged_once_each_way(rig: Rig) -> None:
    with capture_logs() as logs:
        rig.server.down = True
        for _ in range(20):
            await rig.cache.get("promo")
            await asyncio.sleep(0)
            rig.pass_(CAP)
        rig.server.down = False
        await rig.connected()
        for _ in range(3):
            await rig.cache.get("promo")
    assert [(line["event"].split(";")[0], line["where"]) for line in logs] == [
        ("cache server does not answer", "redis.example (reads)"),
        ("cache server answers again", "redis.example (reads)"),
    ]


async def test_a_bug_is_a_miss_with_its_traceback_in_the_log(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str) -> Link:
        raise ZeroDivisionError

    await rig.fill(a_link())
    monkeypatch.setattr(rig.cache, "_from_text", broken)
    with capture_logs() as logs:
        assert await rig.cache.get("promo") == Looked()
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("look-up in the cache failed unexpectedly", "error")
    ]


def test_pauses_double_up_to_a_cap_and_jitter_shortens_them_by_half_at_most() -> None:
    for chance, share in ((0.0, 1.0), (0.999, 0.5)):
        hand = HandClock(NOW)
        breaker = Breaker("redis.example", hand.clock.steady, itertools.repeat(chance).__next__)
        pauses = []
        for _ in range(12):
            with capture_logs():
                breaker.failed(TimeoutError())
            began = hand.clock.steady()
            while breaker.open:
                hand.advance(1)
            pauses.append(hand.clock.steady() - began)
        wanted = [min(CAP, FIRST * 2**n) * share for n in range(12)]
        assert pauses == pytest.approx(wanted, abs=CAP // 500)
        assert breaker.failures > TOLD_AT
        with capture_logs():
            breaker.worked()
        assert not breaker.open


# Addresses and metrics


@pytest.mark.parametrize(
    "url",
    [
        "redis://ann:s3cret@host:63x79",
        "http://ann:s3cret@host",
        "redis://ann:s3cret@host?colour=s3cret",
        "redis://ann:s3#cret@host",
        "redis://:s3cret@",
        "redis:///0",
        "",
        "host:6379",
    ],
)
def test_what_is_no_redis_url_is_refused_without_its_password_P1(url: str) -> None:
    with pytest.raises(ValueError, match="write it as redis://") as refused:
        open_cache(url, SYSTEM_CLOCK, to_text, from_text)
    assert "s3" not in str(refused.value)
    assert refused.value.__suppress_context__


async def test_an_address_with_a_password_is_named_without_it_P1() -> None:
    cache = open_cache("rediss://ann:s3cret@[::1]:1", SYSTEM_CLOCK, to_text, from_text)
    with capture_logs() as logs:
        while not logs:
            await cache.get("promo")
            await asyncio.sleep(0.001)
    await cache.close()
    assert logs[0]["where"] == "::1:1 (reads)"
    assert "s3cret" not in str(logs)


async def test_o1_look_ups_and_writes_are_counted_by_result(rig: Rig) -> None:
    await rig.cache.get("promo")
    await rig.fill(a_link())
    await rig.fill(a_link(), rig.server.now - 1)
    await rig.cache.get("promo")
    rig.server.down = True
    for _ in range(2):
        await rig.cache.get("promo")
    registry = CollectorRegistry()
    registry.register(SecondCacheMetrics(rig.cache))

    def series(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"shortlink_second_cache_{name}", labels)

    for result in ("hit", "miss", "error", "skipped"):
        assert series("lookups_total", result=result) == 1
    assert series("lookups_total", result="unreadable") == 0
    assert series("writes_total", result="kept") == 1
    assert series("writes_total", result="refused") == 1
    assert series("failures", line="reads") == 1
