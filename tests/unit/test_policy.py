"""Policies that would break a promise are refused (L1, L3)."""

from dataclasses import replace
from typing import Any

import pytest

from shortlink.links.policy import DAY, STALE_BOUND, YEAR, Policy, check_policy
from shortlink.links.refusal import Reason


def test_W4_L1_L3_the_defaults_are_the_requirements_own() -> None:
    policy = Policy()
    assert policy.default_ttl == 5 * YEAR
    assert policy.grace == 30 * DAY
    assert policy.quarantine == YEAR
    assert policy.expiring_ahead == DAY
    assert policy.reclaim
    assert (policy.brake_links, policy.brake_share, policy.brake_window) == (10, 0.2, 300_000)
    assert check_policy(policy, production=True) is None


@pytest.mark.parametrize(
    ("changes", "production"),
    [
        ({"quarantine": 0}, True),
        ({"quarantine": 30 * DAY}, True),
        ({"grace": DAY}, True),
        ({"grace": STALE_BOUND}, False),
        ({"expiring_ahead": 0}, True),
        ({"default_ttl": 1}, True),
        ({"reclaim": False}, True),
        ({"brake_links": 0, "brake_share": 0.0, "brake_window": 1}, True),
        ({"brake_share": 1.0}, True),
        ({"own_hosts": {"sho.rt", "sho.rt:8443", "sho.rt:80", "[::1]:80", "127.0.0.1"}}, True),
    ],
)
def test_L1_L3_policies_at_their_limits(changes: dict[str, Any], production: bool) -> None:
    assert check_policy(replace(Policy(), **changes), production=production) is None


@pytest.mark.parametrize(
    ("changes", "production", "field"),
    [
        ({"default_ttl": 0}, False, "default_ttl"),
        ({"default_ttl": -1}, True, "default_ttl"),
        ({"grace": DAY - 1}, True, "grace"),
        ({"grace": STALE_BOUND - 1}, False, "grace"),
        ({"grace": -1}, False, "grace"),
        ({"quarantine": 30 * DAY - 1}, True, "quarantine"),
        ({"quarantine": -1}, True, "quarantine"),
        ({"expiring_ahead": -1}, True, "expiring_ahead"),
        ({"brake_links": -1}, True, "brake"),
        ({"brake_share": -0.1}, True, "brake"),
        ({"brake_share": 1.1}, True, "brake"),
        ({"brake_window": 0}, True, "brake"),
        *(
            ({"own_hosts": {"a.example", host}}, False, "own_hosts")
            for host in (
                "Sho.rt",
                "::1",
                "127.1:80",
                "sho.rt:080",
                "sho.rt/x",
                "b\u00fccher.de",
                "",
            )
        ),
    ],
)
def test_L1_L3_policies_that_break_a_promise(
    changes: dict[str, Any], production: bool, field: str
) -> None:
    refusal = check_policy(replace(Policy(), **changes), production=production)
    assert refusal is not None
    assert (refusal.reason, refusal.field) == (Reason.INVALID_POLICY, field)
