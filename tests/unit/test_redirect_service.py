"""Look-ups: single flight, bounds, a failing store, clicks and the audit log (K3, K5, R2, R3)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from shortlink.cache.memory import FILL_LIMIT
from shortlink.cache.second import Looked
from shortlink.clock import HandClock
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import CACHE_BOUND
from shortlink.redirect.counters import Clicks, GoneHits
from shortlink.redirect.ops import Ops
from shortlink.redirect.responses import Response
from shortlink.redirect.service import RedirectService, path_of
from shortlink.store.port import NotFoundHere, StoreUnavailable
from tests import samples
from tests.redirect_rig import Source, ask, header
from tests.samples import NOW

NEW = "https://example.com/new"


def a_link(**values: Any) -> Link:
    return samples.a_link(changed_at=NOW, **values)


def deleted(link: Link) -> Link:
    return replace(
        link,
        version=link.version + 1,
        state=State.TOMBSTONED,
        tombstoned_at=NOW,
        cause=Cause.DELETED,
    )


class Rig:
    def __init__(self, **options: Any) -> None:
        self.hand = HandClock(NOW)
        self.store = Source([a_link()])
        self.clicks = Clicks()
        self.service = RedirectService(self.store, self.hand.clock, self.clicks, **options)

    async def status(self, target: str) -> int:
        return (await ask(self.service, target)).status

    async def location(self, target: str = "/promo") -> str | None:
        return header(await ask(self.service, target), "Location")

    def metric(self, name: str) -> float:
        ops = Ops(self.service, lambda: 0)
        text = ops.route(b"/metrics", False, lambda _: None).body.decode()
        return float(text.split(f"\nshortlink_redirect_{name} ")[1].split("\n")[0])


@pytest.fixture
def rig() -> Rig:
    return Rig()


# What is looked up


async def test_r1_a_code_redirects_and_its_second_visit_reads_no_store(rig: Rig) -> None:
    assert await rig.location() == samples.TARGET
    assert await rig.location() == samples.TARGET
    assert rig.store.reads == ["promo"]


@pytest.mark.parametrize(
    "target",
    [
        *"/ /ab /a-b /promo/ //promo /promo// /./promo * /prömo /promo. /%00 /%zz".split(),
        *"/%2Fpromo /promo%2F /%2561bc /promo%0d%0a ftp://s.example/promo http:/promo".split(),
        *"http://s.example http://s.example?x/promo".split(),
        "",
        "/" + "a" * 21,
    ],
)
async def test_what_is_not_of_the_form_of_a_code_is_404_without_a_store_read(
    rig: Rig, target: str
) -> None:
    response = await ask(rig.service, target)
    assert response.status == 404
    assert header(response, "Location") is None
    assert rig.store.reads == []


@pytest.mark.parametrize(
    "target",
    [
        *"/promo /%70romo /%70%72%6f%6D%6F /promo? /promo?url=https://evil.example/".split(),
        *"/promo?redir_url=//evil.example http://s.example/promo HTTPS://x:1/promo?a".split(),
    ],
)
async def test_p2_every_spelling_of_a_code_leads_to_its_stored_target_alone(
    rig: Rig, target: str
) -> None:
    assert await rig.location(target) == samples.TARGET


def test_a_path_is_decoded_once() -> None:
    assert path_of(b"/%2561?b=%63") == b"/%61"


async def test_r2_unknown_gone_and_disabled_are_told_apart(rig: Rig) -> None:
    rig.store.links["gone1"] = deleted(a_link(code="gone1"))
    rig.store.links["old1"] = a_link(code="old1", expires_at=NOW)
    rig.store.links["bad1"] = a_link(code="bad1", state=State.DISABLED, disabled="spam")
    statuses = [await rig.status(f"/{code}") for code in ("none1", "gone1", "old1", "bad1")]
    assert statuses == [404, 410, 410, 451]
    # The same again, from the cache: a negative entry keeps its reason.
    assert [await rig.status(f"/{code}") for code in ("none1", "gone1", "old1", "bad1")] == statuses
    assert len(rig.store.reads) == 4


async def test_r1_a_permanent_link_that_never_expires_is_301(rig: Rig) -> None:
    rig.store.links["perm1"] = a_link(code="perm1", permanent=True, expires_at=None)
    response = await ask(rig.service, "/perm1")
    assert response.status == 301
    assert header(response, "Cache-Control") == "max-age=0, s-maxage=10"


async def test_l5_an_expired_link_is_read_once_more_and_then_gone(rig: Rig) -> None:
    rig.store.links["promo"] = a_link(expires_at=NOW + 3_000)
    assert await rig.status("/promo") == 302
    rig.hand.advance(3_000)
    assert [await rig.status("/promo") for _ in range(5)] == [410] * 5
    assert len(rig.store.reads) == 2


async def test_a_link_extended_in_time_goes_on_past_its_old_expiry(rig: Rig) -> None:
    rig.store.links["promo"] = a_link(expires_at=NOW + 3_000)
    await rig.status("/promo")
    rig.store.links["promo"] = a_link(version=2, expires_at=NOW + 60_000)
    rig.hand.advance(3_000)
    assert await rig.status("/promo") == 302


# Single flight


async def test_k3_concurrent_misses_of_one_code_make_one_store_read(rig: Rig) -> None:
    rig.store.hold("promo")
    asked = [ask(rig.service, "/promo") for _ in range(2_000)]
    await asyncio.sleep(0)
    rig.store.release("promo")
    responses = await asyncio.gather(*asked)
    assert {response.status for response in responses} == {302}
    assert rig.store.reads == ["promo"]


async def test_k4_a_read_begun_before_a_change_answers_nobody_who_came_after_it(rig: Rig) -> None:
    rig.store.hold("promo")
    before = ask(rig.service, "/promo")
    await asyncio.sleep(0)
    new = a_link(version=2, target=NEW)
    rig.store.links["promo"] = new
    rig.service.changed(new)
    assert await rig.location() == NEW
    rig.store.release("promo")
    assert header(await before, "Location") == NEW  # the newest known
    assert await rig.location() == NEW


async def test_k4_nor_when_the_cache_could_not_keep_the_change() -> None:
    rig = Rig(capacity=1)
    rig.store.links["other"] = a_link(code="other")
    rig.store.hold("promo")
    before = ask(rig.service, "/promo")
    await asyncio.sleep(0)
    new = a_link(version=2, target=NEW)
    rig.store.links["promo"] = new
    rig.service.changed(new)
    await ask(rig.service, "/other")  # evicts it
    after = ask(rig.service, "/promo")
    await asyncio.sleep(0)
    rig.store.release("promo")
    assert header(await after, "Location") == NEW
    assert (await before).status == 302
    assert await rig.location() == NEW


async def test_k3_a_link_created_right_after_a_miss_redirects_at_once(rig: Rig) -> None:
    assert await rig.status("/fresh") == 404
    rig.service.changed(a_link(code="fresh"))
    assert await rig.status("/fresh") == 302


async def test_an_answer_older_than_known_is_never_given(rig: Rig) -> None:
    rig.service.changed(deleted(a_link()))
    rig.hand.advance(CACHE_BOUND)
    with capture_logs() as logs:  # the store still has the live link
        assert await rig.status("/promo") == 503
    assert [line["event"] for line in logs] == ["store answered with an older link than is known"]


async def test_store_reads_under_way_are_bounded() -> None:
    rig = Rig(reads=2)
    for code in ("aaa", "bbb"):
        rig.store.hold(code)
    waiting = [ask(rig.service, f"/{code}") for code in ("aaa", "bbb", "aaa")]
    response = await ask(rig.service, "/ccc")
    assert response.status == 503
    assert header(response, "Retry-After") == "1"
    await asyncio.sleep(0)
    for code in ("aaa", "bbb"):
        rig.store.release(code)
    assert [one.status for one in await asyncio.gather(*waiting)] == [404, 404, 404]
    assert await rig.status("/ccc") == 404


# The second level


class Second:
    """A SecondLevel that says what it is told to."""

    def __init__(self) -> None:
        self.says = Looked(moment=7)
        self.asked: list[str] = []
        self.filled: list[tuple[Link, int]] = []

    async def get(self, code: str) -> Looked:
        self.asked.append(code)
        return self.says

    def fill(self, link: Link, moment: int) -> None:
        self.filled.append((link, moment))


async def test_k1_what_the_second_level_has_is_read_from_no_store() -> None:
    second = Second()
    rig = Rig(second=second)
    second.says = Looked(a_link(target=NEW), rig.hand.clock.steady(), 7)
    assert [await rig.location() for _ in range(3)] == [NEW] * 3
    assert second.asked == ["promo"]
    assert rig.store.reads == []
    assert second.filled == []
    assert rig.metric("store_reads_total") == 0


async def test_k1_what_the_store_has_fills_the_second_level_if_it_wants_it() -> None:
    second = Second()
    rig = Rig(second=second)
    await rig.status("/promo")
    await rig.status("/none1")
    second.says = Looked()
    rig.store.links["other"] = a_link(code="other")
    await rig.status("/other")
    assert rig.store.reads == ["promo", "none1", "other"]
    assert second.filled == [(a_link(), 7)]


async def test_l5_the_bound_counts_from_the_store_read_over_both_levels() -> None:
    second = Second()
    rig = Rig(second=second)
    second.says = Looked(a_link(target=NEW), rig.hand.clock.steady(), 7)
    rig.hand.advance(CACHE_BOUND - 1)
    assert await rig.location() == NEW
    rig.hand.advance(1)
    assert await rig.location() == samples.TARGET  # both levels' entries are too old
    assert second.asked == ["promo", "promo"]
    assert rig.store.reads == ["promo"]


async def test_what_the_second_level_has_is_kept_in_memory_though_its_read_is_long_ago() -> None:
    second = Second()
    rig = Rig(second=second)
    second.says = Looked(a_link(), rig.hand.clock.steady(), 7)
    rig.hand.advance(FILL_LIMIT + 1)
    for _ in range(5):
        await rig.status("/promo")
    assert second.asked == ["promo"]


async def test_k4_memory_that_knows_newer_does_not_believe_the_second_level() -> None:
    second = Second()
    rig = Rig(second=second)
    new = a_link(version=2, target=NEW)
    rig.store.links["promo"] = new
    rig.service.changed(new)
    rig.hand.advance(CACHE_BOUND)
    second.says = Looked(a_link(), rig.hand.clock.steady(), 7)
    assert await rig.location() == NEW
    assert rig.store.reads == ["promo"]


async def test_nothing_found_here_is_404_and_no_cache_keeps_it() -> None:
    second = Second()
    rig = Rig(second=second)
    rig.store.error = NotFoundHere()
    with capture_logs() as logs:
        assert [await rig.status("/promo") for _ in range(2)] == [404, 404]
    assert logs == []
    assert rig.store.reads == ["promo", "promo"]
    assert second.filled == []
    assert rig.metric("store_read_errors_total") == 0
    rig.store.error = None
    assert await rig.status("/promo") == 302


async def test_nothing_found_here_ends_an_outage() -> None:
    rig = Rig()
    with capture_logs() as logs:
        for error in (StoreUnavailable("down"), NotFoundHere()):
            rig.store.error = error
            await rig.status("/promo")
    assert logs[-1]["event"] == "store answers again"


# A failing store


async def test_k5_with_the_store_down_cached_links_go_on_until_their_bound(rig: Rig) -> None:
    await rig.status("/promo")
    rig.store.error = StoreUnavailable("down")
    rig.hand.advance(CACHE_BOUND - 1)
    assert await rig.status("/promo") == 302
    rig.hand.advance(1)
    assert await rig.status("/promo") == 503


async def test_an_error_is_never_cached(rig: Rig) -> None:
    rig.store.error = StoreUnavailable("down")
    assert await rig.status("/promo") == 503
    rig.store.error = None
    assert await rig.status("/promo") == 302


async def test_a_store_that_does_not_answer_is_given_up_at_the_deadline() -> None:
    rig = Rig(read_deadline=0.01)
    rig.store.hold("promo")
    assert await rig.status("/promo") == 503
    assert rig.metric("store_read_errors_total") == 1
    assert not rig.service.reading("promo")


async def test_any_other_failure_is_503_with_its_traceback_in_the_log(rig: Rig) -> None:
    rig.store.error = ZeroDivisionError("a bug")
    with capture_logs() as logs:
        assert await rig.status("/promo") == 503
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("store read failed unexpectedly", "error")
    ]
    assert logs[0]["exc_info"]


async def test_an_outage_is_logged_once_each_way(rig: Rig) -> None:
    with capture_logs() as logs:
        rig.store.error = StoreUnavailable("down")
        for number in range(50):
            await rig.status(f"/code{number}")
        rig.store.error = None
        for number in range(50):
            await rig.status(f"/code{number}")
    assert [line["event"].split(";")[0] for line in logs] == [
        "store does not answer",
        "store answers again",
    ]


async def test_one_waiting_connections_failure_does_not_take_the_others_answers(rig: Rig) -> None:
    def broken(_: Response) -> None:
        raise RuntimeError("connection is gone")

    rig.store.hold("promo")
    assert rig.service.route(b"/promo", False, broken) is None
    asked = ask(rig.service, "/promo")
    await asyncio.sleep(0)
    with capture_logs() as logs:
        rig.store.release("promo")
        assert (await asked).status == 302
    assert [line["event"] for line in logs] == ["response could not be sent"]


async def test_close_gives_up_reads_that_are_still_under_way(rig: Rig) -> None:
    rig.store.hold("promo")
    asked = ask(rig.service, "/promo")
    await asyncio.sleep(0)
    await rig.service.close()
    assert not asked.done()
    assert not rig.service.reading("promo")


# Clicks and the audit log


async def test_r3_redirected_gets_are_clicks_and_nothing_else_is(rig: Rig) -> None:
    rig.store.links["gone1"] = deleted(a_link(code="gone1"))
    for target in ("/promo", "/promo?x", "/none1", "/gone1", "/healthz"):
        await ask(rig.service, target)
        await ask(rig.service, target, head=True)
    assert rig.clicks.drain() == [("promo", 1, NOW), ("promo", 1, NOW)]
    assert rig.clicks.drain() == []


def test_r3_a_full_ring_drops_and_counts() -> None:
    clicks = Clicks(capacity=3)
    for at in range(5):
        clicks.add(b"/abc", 1, at)
    assert clicks.dropped == 2
    assert clicks.drain() == [("abc", 1, 0), ("abc", 1, 1), ("abc", 1, 2)]
    clicks.add(b"/abc", 1, 5)
    assert clicks.drain() == [("abc", 1, 5)]


async def test_r2_hits_on_gone_links_are_one_audit_line_each_with_their_number(rig: Rig) -> None:
    rig.store.links["gone1"] = deleted(a_link(code="gone1", generation=3))
    for _ in range(1_000):
        await rig.status("/gone1")
    await rig.status("/promo")
    await rig.status("/none1")
    with capture_logs() as logs:
        rig.service.log_gone()
        rig.service.log_gone()
    assert logs == [
        {
            "event": "gone link visited",
            "log_level": "info",
            "code": "gone1",
            "generation": 3,
            "hits": 1_000,
        }
    ]


def test_a_flood_over_many_gone_links_is_bounded_and_counted() -> None:
    gone = GoneHits(capacity=2)
    for code in ("aaa", "bbb", "ccc", "aaa", "ccc"):
        gone.add(code, 1)
    assert gone.drain() == {("aaa", 1): 2, ("bbb", 1): 1}
    assert gone.dropped == 2


# Health


async def test_liveness_never_touches_the_store(rig: Rig) -> None:
    rig.store.error = StoreUnavailable("down")
    assert await rig.status("/healthz") == 200
    assert rig.store.pings == 0


async def test_readiness_is_the_stores(rig: Rig) -> None:
    assert await rig.status("/readyz") == 200
    rig.store.error = StoreUnavailable("down")
    assert await rig.status("/readyz") == 503
    rig.store.error = ZeroDivisionError("a bug")
    with capture_logs() as logs:
        assert await rig.status("/readyz") == 503
    assert logs[0]["exc_info"]
    rig.store.error = None
    assert await rig.status("/readyz") == 200


async def test_readiness_has_a_deadline_and_one_ping_serves_all_who_ask() -> None:
    rig = Rig(ping_deadline=0.01)
    rig.store.hold("ping")
    asked = [ask(rig.service, "/readyz") for _ in range(10)]
    assert {response.status for response in await asyncio.gather(*asked)} == {503}
    assert rig.store.pings == 1


async def test_a_draining_process_is_not_ready(rig: Rig) -> None:
    rig.service.draining = True
    assert await rig.status("/readyz") == 503
    assert await rig.status("/healthz") == 200
    assert await rig.status("/promo") == 302
