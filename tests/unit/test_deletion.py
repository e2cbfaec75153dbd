"""The mass-deletion brake: over 10 links and 20 % of a namespace within 5 minutes (T2)."""

from dataclasses import replace
from typing import Any

import pytest

from shortlink.links.model import Cause, State
from shortlink.links.policy import DAY
from shortlink_operator.deletion import held, tally
from tests.samples import NOW, POLICY, a_link


@pytest.mark.parametrize(
    ("going", "live", "recent", "waits"),
    [
        (0, 0, 0, False),
        (1, 1, 0, False),
        (10, 10, 0, False),  # not more than 10 links
        (11, 11, 0, True),
        (20, 100, 0, False),  # not more than 20 %
        (21, 100, 0, True),
        (11, 55, 0, False),  # 20 % exactly
        (11, 54, 0, True),
        (1, 20, 9, False),  # those that went lately count with them
        (1, 20, 10, True),
        (1, 80, 20, True),
        (1, 200, 30, False),
    ],
)
def test_T2_many_deletions_at_once_wait(going: int, live: int, recent: int, waits: bool) -> None:
    why = held("ann", going, live, recent, POLICY)
    assert bool(why) is waits
    if waits:
        assert why == (
            f"{going + recent} of {live + recent} links of namespace ann would go within 300 s"
        )


def test_T2_the_brake_is_the_policys() -> None:
    assert held("ann", 1, 1, 0, replace(POLICY, brake_links=0))
    assert not held("ann", 1, 1, 0, replace(POLICY, brake_links=0, brake_share=1.0))


def deleted(at: int, **changes: Any) -> dict[str, Any]:
    return {"state": State.TOMBSTONED, "tombstoned_at": at, "cause": Cause.DELETED} | changes


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, (1, 0)),
        ({"state": State.DISABLED, "disabled": "spam"}, (1, 0)),
        (deleted(NOW), (0, 1)),
        (deleted(NOW - POLICY.brake_window + 1), (0, 1)),
        (deleted(NOW - POLICY.brake_window), (0, 0)),
        (deleted(NOW, cause=Cause.EXPIRED), (0, 0)),
        ({"expires_at": NOW}, (0, 0)),
        (deleted(NOW - 40 * DAY, state=State.FREE), (0, 0)),
    ],
)
def test_T2_what_counts_for_the_brake(changes: dict[str, Any], counts: tuple[int, int]) -> None:
    assert tally([a_link(**changes)], POLICY, NOW) == counts
    assert tally([a_link(**changes)] * 3, POLICY, NOW) == (counts[0] * 3, counts[1] * 3)
