"""The LinkPolicy: what it says, and what contradicts itself (L1, L3)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from shortlink.links.policy import DAY, HOUR, MINUTE, SECOND, Policy
from shortlink.links.refusal import Reason, Refusal
from shortlink_operator.policies import Rules, format_duration, parse_policy
from tests.bad_objects import a_policy

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.yaml"


def test_what_is_left_out_is_as_the_requirements_have_it() -> None:
    assert parse_policy(a_policy()) == Rules(Policy(), None)


def test_the_example_says_what_holds_without_it() -> None:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert parse_policy(document) == Rules(Policy(), 2000)


def test_every_field_counts() -> None:
    given = parse_policy(
        a_policy(
            defaultLifetime="400d",
            grace="48h",
            quarantine="90d",
            expiringAhead="90m",
            reclaim=False,
            ownHosts=["s.example", "s.example:8443"],
            linksPerNamespace=7,
            brake={"links": 3, "percent": 50, "window": "30s"},
        )
    )
    assert given == Rules(
        Policy(
            default_ttl=400 * DAY,
            grace=48 * HOUR,
            quarantine=90 * DAY,
            expiring_ahead=90 * MINUTE,
            reclaim=False,
            own_hosts=frozenset({"s.example", "s.example:8443"}),
            brake_links=3,
            brake_share=0.5,
            brake_window=30 * SECOND,
        ),
        7,
    )


def test_nothing_is_a_value_too() -> None:
    given = parse_policy(
        a_policy(quarantine="0s", expiringAhead="0m", brake={"links": 0, "percent": 0})
    )
    assert isinstance(given, Rules)
    assert given.policy == replace(
        Policy(), quarantine=0, expiring_ahead=0, brake_links=0, brake_share=0.0
    )


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        # what contradicts itself, which no schema can know
        ({"quarantine": "29d"}, "spec.quarantine", "is 29d, with a grace of 30d"),
        ({"grace": "366d"}, "spec.quarantine", "is 365d, with a grace of 366d"),
        ({"grace": "2d", "quarantine": "47h"}, "spec.quarantine", "can't be shorter than grace"),
        ({"ownHosts": ["1.2.3"]}, "spec.ownHosts", "'1.2.3' must be a host or host:port"),
        ({"ownHosts": ["s.example:"]}, "spec.ownHosts", "as browsers write it"),
        # what an older CRD may have let in
        ({"grace": "23h"}, "spec.grace", "grace is under 24 hours"),
        ({"grace": "30"}, "spec.grace", "is '30'; write a whole number and d, h, m or s"),
        ({"grace": "٣d"}, "spec.grace", "write a whole number"),
        ({"defaultLifetime": "0d"}, "spec.defaultLifetime", "is 0d; it can be 1s to 36500d"),
        ({"quarantine": "36501d"}, "spec.quarantine", "is 36501d; it can be 0d to 36500d"),
        ({"brake": {"window": "0s"}}, "spec.brake.window", "is 0s; it can be 1s to 36500d"),
        ({"brake": {"percent": 101}}, "spec", "spec.brake.percent"),
        ({"brake": None}, "spec", "spec.brake is empty"),
        ({"linksPerNamespace": 0}, "spec", "spec.linksPerNamespace"),
        ({"linksPerNamespace": True}, "spec", "spec.linksPerNamespace"),
        ({"reclaim": "no"}, "spec", "spec.reclaim must be true or false without quotes"),
        ({"graze": "1d"}, "spec", "spec.graze is not a field; did you mean grace?"),
    ],
    ids=str,
)
def test_L1_L3_what_is_wrong_is_told_by_the_objects_own_field(
    spec: dict[str, Any], field: str, says: str
) -> None:
    verdict = parse_policy(a_policy(**spec))
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.INVALID_POLICY
    assert verdict.field == field
    assert verdict.message.startswith(field)
    assert says in verdict.message
    assert "_" not in verdict.message


@pytest.mark.parametrize("document", [None, 7, {}, {"spec": {}}], ids=str)
def test_what_is_no_policy_at_all_is_refused(document: object) -> None:
    assert isinstance(parse_policy(document), Refusal)


@pytest.mark.parametrize(
    ("length", "text"),
    [(0, "0d"), (DAY, "1d"), (36 * HOUR, "36h"), (90 * MINUTE, "90m"), (1 * SECOND, "1s")],
)
def test_durations_are_written_as_they_are_read(length: int, text: str) -> None:
    assert format_duration(length) == text
