"""What the redirect server tells its operators (O1)."""

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shortlink.clock import HandClock
from shortlink.redirect.counters import Clicks
from shortlink.redirect.ops import Ops
from shortlink.redirect.service import RedirectService
from shortlink.store.port import StoreUnavailable
from tests import samples
from tests.redirect_rig import Source, ask, header
from tests.samples import NOW


class Rig:
    def __init__(self) -> None:
        self.hand = HandClock(NOW)
        self.store = Source([samples.a_link(changed_at=NOW)])
        self.service = RedirectService(self.store, self.hand.clock, Clicks(capacity=1))
        self.ops = Ops(self.service, lambda: 7)

    def series(self) -> dict[str, float]:
        text = self.ops.route(b"/metrics", False, lambda _: None).body.decode()
        return {
            sample.name.removeprefix("shortlink_redirect_")
            + "".join(f" {name}={value}" for name, value in sample.labels.items()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def why(self, path: str) -> Any:
        response = self.ops.route(path.encode(), False, lambda _: None)
        assert response.status == 200
        assert header(response, "Content-Type") == "application/json"
        return json.loads(response.body)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_o1_a_thousand_random_codes_add_no_series(rig: Rig) -> None:
    before = set(rig.series())
    for number in range(1_000):
        await ask(rig.service, f"/code{number}")
        await ask(rig.service, f"/no-code-{number}")
    assert set(rig.series()) == before


async def test_o1_look_ups_and_store_reads_are_counted(rig: Rig) -> None:
    for target in ("/promo", "/promo", "/promo", "/none1", "/-"):
        await ask(rig.service, target)
    rig.store.error = StoreUnavailable("down")
    await ask(rig.service, "/other")
    series = rig.series()
    assert series["cache_total result=hit"] == 2
    assert series["cache_total result=miss"] == 3
    assert series["cache_total result=refused"] == 0
    assert series["store_reads_total"] == 3
    assert series["store_read_errors_total"] == 1
    assert series["cache_entries"] == 2
    assert series["clicks_dropped_total"] == 2
    assert series["connections"] == 7


async def test_o1_the_time_that_store_reads_took_is_a_histogram_in_seconds(rig: Rig) -> None:
    for code, took in (("promo", 0), ("none1", 2), ("none2", 40), ("none3", 9_000)):
        rig.store.hold(code)
        asked = ask(rig.service, f"/{code}")
        await asyncio.sleep(0)
        rig.hand.advance(took)
        rig.store.release(code)
        await asked
    series = rig.series()
    assert series["store_read_seconds_bucket le=0.001"] == 1
    assert series["store_read_seconds_bucket le=0.002"] == 2
    assert series["store_read_seconds_bucket le=0.05"] == 3
    assert series["store_read_seconds_bucket le=2.0"] == 3
    assert series["store_read_seconds_bucket le=+Inf"] == 4
    assert series["store_read_seconds_count"] == 4
    assert series["store_read_seconds_sum"] == 9.042


async def test_why_tells_what_this_process_has_for_a_code(rig: Rig) -> None:
    await ask(rig.service, "/promo")
    rig.hand.advance(1_200)
    assert rig.why("/why/promo") == {
        "code": "promo",
        "cached": {
            "generation": 1,
            "version": 1,
            "status": 302,
            "served": True,
            "age_ms": 1_200,
            "bound_ms": 5_000,
            "link_expires_at": "2027-01-25T08:00:00Z",
        },
        "read_under_way": False,
    }
    rig.hand.advance(4_000)
    assert rig.why("/why/promo")["cached"]["served"] is False


async def test_why_tells_of_a_read_under_way(rig: Rig) -> None:
    rig.store.hold("promo")
    asked = ask(rig.service, "/promo")
    assert rig.why("/why/promo") == {"code": "promo", "cached": None, "read_under_way": True}
    await asyncio.sleep(0)
    rig.store.release("promo")
    await asked
    assert rig.why("/why/promo")["read_under_way"] is False


async def test_why_asks_no_store_and_shows_an_unknown_code_as_such(rig: Rig) -> None:
    await ask(rig.service, "/none1")
    cached = rig.why("/why/none1")["cached"]
    assert (cached["generation"], cached["version"], cached["status"]) == (0, 0, 404)
    assert cached["link_expires_at"] is None
    assert rig.why("/why/promo")["cached"] is None
    assert rig.store.reads == ["none1"]


@pytest.mark.parametrize("path", [b"/", b"/promo", b"/why/", b"/why/a-b", b"/metrics/"])
def test_operators_are_told_what_there_is(rig: Rig, path: bytes) -> None:
    response = rig.ops.route(path, False, lambda _: None)
    assert response.status == 404
    assert b"/why/{code}" in response.body
