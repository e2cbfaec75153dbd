"""plan_gone(): what a deletion comes to, and when it lets its object go (T2, L2, L5)."""

from dataclasses import replace
from typing import Any

import pytest

from shortlink.links.lifecycle import Delete
from shortlink.links.model import Link
from shortlink_operator.plan import (
    HELD,
    LET_GO,
    Action,
    Change,
    Observed,
    Reclaim,
    Rest,
    orphaned,
    plan_gone,
)
from tests.objects import BANNED, BY, FREE, GONE, HERE, KEY, LAPSED, RESTING, claim_of, linked
from tests.samples import NOW, POLICY, a_link

LIVING = [linked(), linked(**BANNED)]
ENDED = [linked(**GONE), linked(**LAPSED), linked(expires_at=NOW - 1)]
NOTHING = [None, linked(**RESTING), linked(**FREE), a_link(token="another"), linked(generation=2)]


def planned(
    link: Link | None,
    *,
    uid: str | None = "u1",
    retain: bool | None = False,
    held: str = "",
    claim: dict[str, Any] | None = None,
) -> Action:
    observed = Observed(claim_of(linked(), **HERE | (claim or {})), link)
    return plan_gone(KEY, uid, observed, "here", POLICY, NOW, retain=retain, held=held)


def reason(action: Action) -> str:
    assert isinstance(action, Rest), action
    return action.reason


@pytest.mark.parametrize("link", LIVING)
@pytest.mark.parametrize("uid", ["u1", None])
@pytest.mark.parametrize("retain", [False, None])
def test_T2_the_link_of_an_object_that_goes_is_deleted(
    link: Link, uid: str | None, retain: bool | None
) -> None:
    claim = claim_of(linked(), **HERE)
    action = planned(link, uid=uid, retain=retain)
    assert action == Change(KEY, link, claim, Delete(BY))


def test_T2_a_spec_that_says_delete_counts_before_an_older_word_of_the_claim() -> None:
    assert isinstance(planned(linked(), retain=False, claim={"retain": True}), Change)


@pytest.mark.parametrize("link", LIVING + ENDED)
@pytest.mark.parametrize(("uid", "retain"), [("u1", True), ("u1", None), (None, None)])
@pytest.mark.parametrize("held", ["", "too many"])
def test_L2_a_retained_link_stays_and_so_does_its_claim(
    link: Link, uid: str | None, retain: bool | None, held: str
) -> None:
    action = planned(link, uid=uid, retain=retain, held=held, claim={"retain": True})
    assert reason(action) == "Retained"


def test_L5_a_claim_learns_that_its_link_is_retained_before_its_object_goes() -> None:
    """Else whoever finds the claim without its object would delete the link."""
    claim = claim_of(linked(), **HERE)
    assert planned(linked(), retain=True) == Reclaim(KEY, claim, replace(claim, retain=True))


@pytest.mark.parametrize("link", ENDED)
@pytest.mark.parametrize("held", ["", "too many"])
def test_L2_a_tombstone_keeps_its_claim_so_that_its_object_can_come_back(
    link: Link, held: str
) -> None:
    assert reason(planned(link, held=held)) == "Deleted"


@pytest.mark.parametrize("link", NOTHING)
@pytest.mark.parametrize("retain", [False, True, None])
def test_T2_a_claim_that_holds_nothing_is_released(link: Link | None, retain: bool | None) -> None:
    claim = claim_of(linked(), **HERE)
    assert planned(link, retain=retain) == Reclaim(KEY, claim, None)


@pytest.mark.parametrize("link", [*LIVING, *ENDED, *NOTHING])
@pytest.mark.parametrize(
    ("uid", "claim"),
    [
        ("u1", {"cluster": "away"}),  # a mirror
        (None, {"cluster": "away"}),
        ("u1", {"uid": "u2"}),  # the object was made again since
        ("u1", {"cluster": "away", "retain": True}),
    ],
)
def test_T2_an_object_that_is_not_the_claims_own_goes_and_changes_nothing(
    link: Link | None, uid: str | None, claim: dict[str, Any]
) -> None:
    assert reason(planned(link, uid=uid, claim=claim)) == "Gone"


def test_T2_an_object_without_a_claim_goes() -> None:
    action = plan_gone(KEY, "u1", None, "here", POLICY, NOW, retain=None, held="too many")
    assert reason(action) == "Gone"


@pytest.mark.parametrize("link", LIVING)
def test_T2_a_held_deletion_leaves_the_link_and_says_how_it_is_let_go(link: Link) -> None:
    action = planned(link, held="12 of 13 links would go")
    assert isinstance(action, Rest)
    assert (action.ready, action.reason, action.link) == (True, HELD, link)
    assert action.message == (
        "12 of 13 links would go; to let this deletion go, annotate the object with"
        ' shortlink.platform/allow-delete: "true"'
    )
    lost = planned(link, uid=None, held="12 of 13 links would go")
    assert isinstance(lost, Rest)
    assert lost.message == "12 of 13 links would go"  # there is no object to annotate


def test_T2_a_held_deletion_and_unfinished_steps_do_not_let_their_object_go() -> None:
    assert HELD not in LET_GO
    assert LET_GO.isdisjoint({"Progressing", "Broken", "Ready", "Expired"})


@pytest.mark.parametrize(
    ("link", "claim", "orphan"),
    [
        (linked(), claim_of(linked()), False),
        (linked(), None, True),
        (linked(), claim_of(linked(code="other")), True),
        (linked(), claim_of(linked(generation=2)), True),
        (linked(), claim_of(linked(token="another")), True),
        (linked(), claim_of(linked(), cluster="away", uid="u2", retain=True), False),
        (linked(**BANNED), None, True),
        (linked(**GONE), None, False),
        (linked(**FREE), None, False),
        (a_link(), None, False),  # the API's
    ],
)
def test_L5_a_live_link_that_no_claim_holds_is_an_orphan(
    link: Link, claim: Any, orphan: bool
) -> None:
    assert orphaned(link, claim) is orphan
