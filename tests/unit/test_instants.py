"""Instants: RFC 3339 in, milliseconds inside, RFC 3339 in UTC out."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlink.links.instants import format_instant, parse_instant
from shortlink.links.refusal import Reason, Refusal

NOON = 1_801_396_800_000  # 2027-01-31T12:00:00Z
FIRST = -62_135_596_800_000  # 0001-01-01T00:00:00Z
LAST = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2027-01-31T12:00:00Z", NOON),
        ("2027-01-31t12:00:00z", NOON),
        ("2027-01-31T15:00:00+03:00", NOON),
        ("2027-01-31T01:00:00-11:00", NOON),
        ("2027-01-31T17:45:00+05:45", NOON),
        ("2027-01-31T12:00:00-00:00", NOON),
        ("2027-02-01T11:59:00+23:59", NOON),
        ("2027-01-31T12:00:00.5Z", NOON + 500),
        ("2027-01-31T12:00:00.001Z", NOON + 1),
        ("2027-01-31T12:00:00.9999Z", NOON + 999),
        ("2027-01-31T12:00:00.123456789+00:00", NOON + 123),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2028-02-29T00:00:00Z", 1_835_395_200_000),
        ("2038-01-19T03:14:08Z", 2**31 * 1000),
        ("2107-01-01T00:00:00Z", 4_323_283_200_000),
        ("0001-01-01T00:00:00Z", FIRST),
        ("9999-12-31T23:59:59.999Z", LAST),
    ],
)
def test_W1_times_as_people_write_them(text: str, at: int) -> None:
    assert parse_instant(text) == at


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "1801396800",
        "2027-01-31",
        "2027-01-31T12:00:00",
        "2027-01-31 12:00:00Z",
        "2027-01-31T12:00Z",
        "2027-01-31T12:00:00,5Z",
        "2027-01-31T12:00:00.Z",
        "2027-01-31T12:00:00.1234567890Z",
        "2027-01-31T12:00:00+0300",
        "2027-01-31T12:00:00+03",
        "2027-01-31T12:00:00 +03:00",
        "2027-01-31T12:00:00+24:00",
        "2027-01-31T12:00:00+00:60",
        "2027-01-31T12:00:00+00:99",
        "2027-01-31T12:00:00Z\n",
        " 2027-01-31T12:00:00Z",
        "2027-W04-7T12:00:00Z",
        "20270131T120000Z",
        "2027-02-29T00:00:00Z",
        "2027-13-01T00:00:00Z",
        "2027-00-10T00:00:00Z",
        "2027-01-31T24:00:00Z",
        "2027-01-31T12:60:00Z",
        "2026-12-31T23:59:60Z",  # a leap second, were there one
        "0000-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "9999-12-31T23:59:59-00:01",
        "0001-01-01T00:00:00+00:01",
        "\u0662027-01-31T12:00:00Z",
    ],
)
def test_W1_what_is_no_instant_is_refused(text: str) -> None:
    refusal = parse_instant(text, "until")
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == (Reason.INVALID_TIME, "until")
    assert refusal.message.startswith("until ")


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (NOON, "2027-01-31T12:00:00Z"),
        (NOON + 7, "2027-01-31T12:00:00.007Z"),
        (FIRST, "0001-01-01T00:00:00Z"),
        (LAST, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_W1_instants_are_written_in_utc(at: int, text: str) -> None:
    assert format_instant(at) == text


@pytest.mark.parametrize("at", [FIRST - 1, LAST + 1, 10**30])
def test_W1_an_instant_outside_the_calendar_cannot_be_written(at: int) -> None:
    with pytest.raises(OverflowError):
        format_instant(at)


@given(st.integers(FIRST, LAST))
def test_W1_what_is_written_reads_as_it_was(at: int) -> None:
    assert parse_instant(format_instant(at)) == at


@given(st.text(alphabet="0123456789-:.TZ+ ", max_size=32))
def test_W1_any_text_is_an_instant_that_can_be_written_or_is_refused(text: str) -> None:
    at = parse_instant(text)
    if not isinstance(at, Refusal):
        assert parse_instant(format_instant(at)) == at


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_W1_the_machines_time_zone_has_no_influence(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daylight = 1_809_846_000_000  # in New York a summer's instant
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert parse_instant("2027-01-31T12:00:00Z") == NOON
        assert parse_instant(format_instant(daylight)) == daylight
    finally:
        monkeypatch.undo()
        time.tzset()
