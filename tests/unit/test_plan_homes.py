"""plan_object() across clusters: adoption, mirrors, take-overs, quotas (T2, L2, L5)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlink.links.lifecycle import KEEP, Edit
from shortlink.links.model import Link
from shortlink.links.policy import DAY, YEAR
from shortlink.links.refusal import Reason
from shortlink.store.port import Claim
from shortlink_operator.kinds import ShortLink
from shortlink_operator.plan import (
    Action,
    Birth,
    Change,
    Observed,
    Reclaim,
    Rest,
    Resume,
    plan_object,
)
from tests.objects import (
    BANNED,
    FREE,
    GONE,
    HERE,
    KEY,
    LAPSED,
    RESTING,
    an_object,
    claim_of,
    linked,
    restoring,
)
from tests.samples import NOW, POLICY, a_link

AWAY = {"cluster": "away", "uid": "a1"}


def mine(**changes: Any) -> ShortLink:
    return an_object(**{"uid": "u1"} | changes)


def planned(wanted: ShortLink, link: Link | None, claim: Claim, *, room: bool = True) -> Action:
    return plan_object(wanted, Observed(claim, link), "here", POLICY, NOW, room=room)


def rest(action: Action) -> Rest:
    assert isinstance(action, Rest), action
    return action


def test_L5_a_mirror_revives_nothing_when_its_home_gave_up_the_claim() -> None:
    gone = rest(plan_object(mine(home="away"), None, "here", POLICY, NOW))
    assert (gone.ready, gone.reason, gone.home) == (False, "HomeDeleted", "away")
    assert "take-over: away" in gone.message
    taken = plan_object(mine(home="away", take_over="away"), None, "here", POLICY, NOW)
    assert isinstance(taken, Birth)


@pytest.mark.parametrize(("home", "cluster"), [("", "here"), ("here", "here"), ("away", "")])
def test_T2_an_object_that_is_no_mirror_is_born_whatever_its_status_says(
    home: str, cluster: str
) -> None:
    assert isinstance(plan_object(mine(home=home), None, cluster, POLICY, NOW), Birth)


# Home


def test_T2_at_home_an_object_whose_link_is_as_asked_rests_and_names_its_home() -> None:
    ready = rest(planned(mine(), linked(), claim_of(linked(), **HERE)))
    assert ready == Rest(KEY, True, "Ready", "", linked(), "here")


@pytest.mark.parametrize(
    "link",
    [linked(), linked(**GONE), linked(**LAPSED), linked(**RESTING), linked(**BANNED), None],
)
@pytest.mark.parametrize(
    ("held", "retain"),
    [
        ({"uid": "u0"}, False),  # the cluster was rebuilt, or the object made again
        ({"uid": ""}, False),
        ({}, True),  # spec.deletionPolicy was edited
        ({"retain": True}, False),
        ({"uid": "u0", "retain": True}, True),
    ],
)
def test_L5_an_object_adopts_the_claim_of_its_cluster_namespace_and_name(
    link: Link | None, held: dict[str, Any], retain: bool
) -> None:
    claim = claim_of(link or linked(), **HERE | held)
    wanted = mine(retain=retain)
    adopted = replace(claim, uid="u1", retain=retain)
    assert planned(wanted, link, claim) == Reclaim(KEY, claim, adopted)
    assert not isinstance(planned(wanted, link, adopted), Reclaim)


@pytest.mark.parametrize("uid", ["u0", "u1"])
@pytest.mark.parametrize("generation", [1, 2])
def test_L5_a_claim_whose_code_went_to_another_is_never_adopted(uid: str, generation: int) -> None:
    claim = claim_of(linked(), cluster="here", uid=uid)
    other = a_link(generation=generation, token="another")
    assert planned(mine(), other, claim) == Birth(KEY, mine(), claim)


def test_L5_a_claim_without_a_link_is_resumed_once_it_is_ones_own() -> None:
    claim = claim_of(linked(), **HERE)
    assert planned(mine(), None, claim) == Resume(KEY, mine(), claim)


# Quotas


def test_T2_without_room_nothing_is_born_and_what_lives_goes_on() -> None:
    full = {"room": False}
    claim = claim_of(linked(), **HERE)
    for observed in (None, Observed(claim, a_link(token="x")), Observed(claim, linked(**RESTING))):
        over = rest(plan_object(mine(), observed, "here", POLICY, NOW, room=False))
        assert (over.ready, over.reason) == (False, "OverQuota")
        assert "namespace ann" in over.message
    assert rest(planned(mine(), linked(), claim, **full)).ready
    assert planned(mine(), None, claim, **full) == Resume(KEY, mine(), claim)
    assert planned(mine(), linked(**GONE), claim, **full) == Change(
        KEY, linked(**GONE), claim, restoring(mine())
    )


def test_W1_what_is_wrong_with_the_object_itself_is_told_before_its_quota() -> None:
    bad = rest(plan_object(mine(target="x:"), None, "here", POLICY, NOW, room=False))
    assert bad.reason == Reason.INVALID_TARGET


# Mirrors

LATER = NOW + 20 * DAY

MIRRORS: list[tuple[dict[str, Any], Link | None, bool, str, str]] = [
    # the object here, the link, ready, reason, and what the message has
    ({}, linked(), True, "Mirrored", "cluster away keeps the link"),
    ({"retain": True}, linked(), True, "Mirrored", ""),
    ({"code": None}, linked(custom=False, code="AbC1234"), True, "Mirrored", ""),
    ({"target": "https://example.com/b"}, linked(), False, "SpecDiffers", "in spec.target,"),
    ({"expires_at": LATER}, linked(), False, "SpecDiffers", "in spec.expiresAt,"),
    ({"expires_at": KEEP}, linked(), False, "SpecDiffers", "in spec.expiresAt,"),
    ({"tags": ("x",)}, linked(), False, "SpecDiffers", "in spec.tags,"),
    ({"metadata": (("k", "v"),)}, linked(), False, "SpecDiffers", "in spec.metadata,"),
    (
        {"permanent": True, "expires_at": None, "tags": ("x",)},
        linked(),
        False,
        "SpecDiffers",
        "in spec.expiresAt, spec.redirectType, spec.tags,",
    ),
    ({"code": "other"}, linked(), False, "SpecDiffers", "in spec.code,"),
    ({"code": None}, linked(), False, "SpecDiffers", "in spec.code,"),
    ({"tags": ("x",)}, linked(**BANNED), False, "SpecDiffers", "in spec.tags,"),
    ({"expires_at": LATER}, linked(**LAPSED), False, "SpecDiffers", "in spec.expiresAt,"),
    ({"expires_at": LATER}, linked(expires_at=NOW), False, "SpecDiffers", "in spec.expiresAt,"),
    ({}, linked(**BANNED), False, "Disabled", "spam"),
    ({"expires_at": NOW - DAY}, linked(**LAPSED), False, "Expired", "set spec.expiresAt"),
    ({"expires_at": NOW - DAY}, linked(expires_at=NOW - DAY), False, "Expired", ""),
    ({"target": "x:"}, linked(), False, Reason.INVALID_TARGET, ""),
    ({"expires_at": NOW - DAY}, linked(), False, Reason.EXPIRY_IN_PAST, ""),
    ({}, linked(**GONE), False, "HomeDeleted", "promo was deleted"),
    ({"target": "https://example.com/b"}, linked(**GONE), False, "HomeDeleted", ""),
    ({"code": "other"}, linked(**GONE), False, "HomeDeleted", ""),
    ({}, linked(**RESTING), False, "HomeDeleted", ""),
    ({}, linked(**FREE), False, "HomeDeleted", ""),
    ({}, None, False, "WaitingForHome", "cluster away has claimed the link for its own ann/promo"),
    ({}, a_link(token="another"), False, "WaitingForHome", ""),
]


@pytest.mark.parametrize(("changes", "link", "ready", "reason", "says"), MIRRORS)
@pytest.mark.parametrize("take_over", [None, "here", "elsewhere"])
def test_T2_a_mirror_tells_how_the_link_stands_and_writes_nothing(
    changes: dict[str, Any],
    link: Link | None,
    ready: bool,
    reason: str,
    says: str,
    take_over: str | None,
) -> None:
    own = link if link is not None and link.token == "t1" else linked()
    claim = claim_of(own, **AWAY)
    told = rest(planned(mine(**changes, take_over=take_over), link, claim))
    assert (told.ready, told.reason, told.home) == (ready, reason, "away")
    assert says in told.message
    if reason in ("SpecDiffers", "HomeDeleted", "WaitingForHome"):
        assert told.message.endswith("annotate this object with shortlink.platform/take-over: away")


def test_T2_a_mirror_of_a_deleted_link_says_that_its_home_can_bring_it_back() -> None:
    told = rest(planned(mine(), linked(**GONE), claim_of(linked(), **AWAY)))
    assert "cluster away: apply ann/promo there again, or take it over" in told.message


# Taking over


@pytest.mark.parametrize("link", [linked(), linked(**GONE), linked(**BANNED), None])
def test_T2_a_take_over_makes_this_cluster_the_home(link: Link | None) -> None:
    claim = claim_of(linked(), **AWAY)
    wanted = mine(take_over="away", retain=True)
    taken = Claim(KEY, "promo", 1, "t1", "here", "u1", True)
    assert planned(wanted, link, claim) == Reclaim(KEY, claim, taken)


def test_L2_after_a_take_over_it_goes_on_as_at_home() -> None:
    """What the former home deleted is restored, and the spec here is the one that counts."""
    wanted = mine(take_over="away", target="https://example.com/b")
    claim = claim_of(linked(), **HERE)
    assert planned(wanted, linked(**GONE), claim) == Change(
        KEY, linked(**GONE), claim, restoring(wanted)
    )
    action = planned(wanted, linked(), claim)
    assert isinstance(action, Change)
    assert isinstance(action.command, Edit)
    assert planned(wanted, None, claim) == Resume(KEY, wanted, claim)


def test_G7_a_take_over_of_a_claim_that_holds_nothing_begins_anew() -> None:
    claim = claim_of(linked(), **AWAY)
    wanted = mine(take_over="away")
    assert planned(wanted, a_link(token="another"), claim) == Birth(KEY, wanted, claim)


def test_T2_the_annotation_ends_with_the_take_over_so_that_the_former_home_can_take_back() -> None:
    """It names the home that it takes from, and that is this cluster's no longer."""
    taken = claim_of(linked(), cluster="away", uid="a2")
    assert rest(planned(mine(take_over="elsewhere"), linked(), taken)).reason == "Mirrored"


# Always

LINKS = st.sampled_from(
    [None]
    + [linked(**how) for how in ({}, GONE, LAPSED, RESTING, FREE, BANNED)]
    + [linked(expires_at=NOW - 1), linked(token="another"), linked(generation=3)]
)
OBJECTS = st.builds(
    mine,
    target=st.sampled_from([an_object().target, "https://example.com/b", "x:"]),
    code=st.sampled_from(["promo", "other", None]),
    expires_at=st.sampled_from([NOW + 10 * DAY, NOW - YEAR, None, KEEP]),
    permanent=st.booleans(),
    retain=st.booleans(),
    take_over=st.sampled_from([None, "here", "away"]),
)
CLAIMS = st.builds(
    Claim,
    st.just(KEY),
    st.just("promo"),
    st.integers(1, 2),
    st.just("t1"),
    st.sampled_from(["here", "away", "elsewhere", ""]),
    st.sampled_from(["u1", "u0", ""]),
    st.booleans(),
)


@given(OBJECTS, LINKS, CLAIMS, st.booleans())
def test_T2_only_the_home_or_a_take_over_writes_and_each_says_whose_the_link_is(
    wanted: ShortLink, link: Link | None, claim: Claim, room: bool
) -> None:
    action = planned(wanted, link, claim, room=room)
    home = claim.cluster == "here"
    assert isinstance(action, Rest) or home or wanted.take_over == claim.cluster
    if isinstance(action, Rest):
        assert action.home == claim.cluster
        assert action.message or action.reason == "Ready"
    if isinstance(action, Change | Resume):
        assert (claim.cluster, claim.uid, claim.retain) == ("here", "u1", wanted.retain)
