"""plan(): what each object needs, decided on what is stored (T2, L1, L2, G7)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlink.links.lifecycle import KEEP, Command, Delete, Edit, Transition, decide
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import DAY, YEAR
from shortlink.links.refusal import Reason
from shortlink.store.port import Claim
from shortlink_operator.desired import Desired, plan
from shortlink_operator.kinds import ShortLink
from shortlink_operator.plan import (
    Action,
    Birth,
    Change,
    Observed,
    Reclaim,
    Rest,
    Resume,
    creation,
)
from tests.objects import BY, GONE, KEY, LAPSED, RESTING, an_object, claim_of, linked, restoring
from tests.samples import NOW, POLICY, TARGET, a_link


def planned(wanted: ShortLink | None, observed: Observed | None) -> Action:
    desired = Desired({} if wanted is None else {KEY: wanted})
    (action,) = plan(desired, {} if observed is None else {KEY: observed}, POLICY, NOW)
    return action


def plan_for(wanted: ShortLink | None, link: Link) -> Action:
    return planned(wanted, Observed(claim_of(link), link))


def change(link: Link, command: Command) -> Change:
    return Change(KEY, link, claim_of(link), command)


def rest(action: Action) -> tuple[bool, str]:
    assert isinstance(action, Rest), action
    return action.ready, action.reason


# Objects that exist


def test_T2_a_new_object_gets_a_link() -> None:
    assert planned(an_object(), None) == Birth(KEY, an_object())
    assert planned(an_object(code=None), None) == Birth(KEY, an_object(code=None))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": "ftp://example.com/"}, Reason.INVALID_TARGET),
        ({"code": "api"}, Reason.RESERVED),
        ({"code": "a-b"}, Reason.INVALID_ALIAS),
        ({"code": ""}, Reason.INVALID_ALIAS),
        ({"expires_at": NOW}, Reason.EXPIRY_IN_PAST),
        ({"permanent": True}, Reason.PERMANENT_EXPIRES),
        ({"tags": ("",)}, Reason.INVALID_LABELS),
    ],
)
def test_W1_an_object_that_can_be_no_link_claims_nothing(
    changes: dict[str, Any], reason: Reason
) -> None:
    assert rest(planned(an_object(**changes), None)) == (False, reason)


def test_T2_an_object_whose_link_is_as_asked_needs_nothing() -> None:
    action = plan_for(an_object(), linked())
    assert rest(action) == (True, "Ready")
    assert isinstance(action, Rest)
    assert action.link == linked()


@pytest.mark.parametrize(
    "drift",
    [
        {"target": "https://example.com/b"},
        {"tags": ("x",)},
        {"metadata": (("k", "v"),)},
        {"expires_at": NOW + DAY},
        {"expires_at": NOW + YEAR},
        {"expires_at": None},
        {"expires_at": None, "permanent": True},
    ],
)
def test_T2_drift_is_mended_whichever_side_it_came_from(drift: dict[str, Any]) -> None:
    for wanted, link in ((an_object(), linked(**drift)), (an_object(**drift), linked())):
        action = plan_for(wanted, link)
        assert isinstance(action, Change)
        assert isinstance(action.command, Edit)
        assert (action.key, action.seen, action.command.by) == (KEY, link, BY)
        mended = decide(link, action.command, POLICY, NOW)
        assert isinstance(mended, Transition)
        assert rest(plan_for(wanted, mended.link)) == (True, "Ready")


def test_W4_without_an_expiry_an_objects_link_lives_as_the_policy_says() -> None:
    link = linked(expires_at=NOW - 60 * DAY + POLICY.default_ttl)
    assert rest(plan_for(an_object(expires_at=KEEP), link)) == (True, "Ready")
    forever = linked(expires_at=None, permanent=True)
    assert rest(plan_for(an_object(expires_at=KEEP, permanent=True), forever)) == (True, "Ready")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": "javascript:alert(1)"}, Reason.INVALID_TARGET),
        ({"expires_at": NOW - 1}, Reason.EXPIRY_IN_PAST),
        ({"permanent": True}, Reason.PERMANENT_EXPIRES),
    ],
)
def test_W2_an_edit_that_is_refused_leaves_the_link_and_says_why(
    changes: dict[str, Any], reason: Reason
) -> None:
    action = plan_for(an_object(**changes), linked())
    assert rest(action) == (False, reason)
    assert isinstance(action, Rest)
    assert action.link == linked()


def test_W6_a_disabled_link_is_mended_but_not_ready() -> None:
    link = linked(state=State.DISABLED, disabled="spam")
    assert rest(plan_for(an_object(), link)) == (False, "Disabled")
    assert isinstance(plan_for(an_object(tags=("x",)), link), Change)


@pytest.mark.parametrize(
    ("custom", "code", "asked", "reason"),
    [
        (True, "promo", "other", Reason.CODE_CHANGED),
        (True, "promo", None, Reason.CODE_CHANGED),
        (False, "AbC1234", "other", Reason.CODE_CHANGED),
        (False, "AbC1234", "AbC1234", "Ready"),
        (False, "AbC1234", None, "Ready"),
    ],
)
def test_T2_a_links_code_does_not_change(
    custom: bool, code: str, asked: str | None, reason: str
) -> None:
    action = plan_for(an_object(code=asked), linked(custom=custom, code=code))
    assert rest(action) == (reason == "Ready", reason)


# Claims and births


def test_T2_after_a_crash_between_claim_and_birth_the_birth_is_made_up_for() -> None:
    for code in ("promo", None):
        claim = Claim(KEY, code or "AbC1234", 1, "t1")
        wanted = an_object(code=code)
        assert planned(wanted, Observed(claim, None)) == Resume(KEY, wanted, claim)


def test_L3_a_reissue_is_made_up_for_while_its_code_is_still_free() -> None:
    free = a_link(state=State.FREE, owner="bob", token="t0", tombstoned_at=NOW - YEAR)
    claim = Claim(KEY, "promo", 2, "t1")
    assert planned(an_object(), Observed(claim, free)) == Resume(KEY, an_object(), claim)


@pytest.mark.parametrize(
    "link",
    [
        a_link(token="another"),  # the race for the code was lost
        a_link(generation=2, token="another"),  # and its code went on to others since
        a_link(generation=2),  # the claim's token, but not its generation
        a_link(state=State.FREE, token="another", tombstoned_at=NOW - YEAR),
    ],
)
def test_G7_a_claim_whose_code_went_to_another_is_void(link: Link) -> None:
    claim = Claim(KEY, "promo", 1, "t1")
    assert planned(an_object(), Observed(claim, link)) == Birth(KEY, an_object(), claim)


@pytest.mark.parametrize(
    ("claimed", "asked"), [("promo", "other"), ("promo", None), ("AbC1234", "promo")]
)
def test_T2_an_unborn_claim_for_another_code_is_void(claimed: str, asked: str | None) -> None:
    claim = Claim(KEY, claimed, 1, "t1")
    wanted = an_object(code=asked)
    assert planned(wanted, Observed(claim, None)) == Birth(KEY, wanted, claim)


def test_T2_an_unborn_claim_of_an_object_that_can_be_no_link_waits() -> None:
    claim = Claim(KEY, "other", 1, "t1")
    action = planned(an_object(target="x:"), Observed(claim, None))
    assert rest(action) == (False, Reason.INVALID_TARGET)


# Expiry, tombstones, the grace


@pytest.mark.parametrize("swept", [True, False])
def test_L1_an_expired_objects_link_stays_expired_and_it_says_how_to_go_on(swept: bool) -> None:
    link = linked(**LAPSED) if swept else linked(expires_at=NOW - DAY)
    action = plan_for(an_object(expires_at=NOW - DAY), link)
    assert rest(action) == (False, "Expired")
    assert isinstance(action, Rest)
    assert "set spec.expiresAt to a later time" in action.message


@pytest.mark.parametrize("swept", [True, False])
@pytest.mark.parametrize("expires_at", [NOW + DAY, None])
def test_L2_a_later_expiry_brings_an_expired_link_back(swept: bool, expires_at: int | None) -> None:
    link = linked(**LAPSED) if swept else linked(expires_at=NOW - DAY)
    wanted = an_object(expires_at=expires_at)
    assert plan_for(wanted, link) == change(link, restoring(wanted))


def test_L2_an_object_applied_again_within_the_grace_is_restored() -> None:
    link = linked(**GONE)
    assert plan_for(an_object(), link) == change(link, restoring(an_object()))


def test_L2_what_is_restored_is_never_again_as_it_was_before_the_deletion() -> None:
    """Its old target, in a write of its own, would be served until the next."""
    wanted = an_object(target="https://example.com/b", expires_at=NOW + DAY)
    link = linked(**GONE)
    action = plan_for(wanted, link)
    assert isinstance(action, Change)
    step = decide(link, action.command, POLICY, NOW)
    assert isinstance(step, Transition)
    assert (step.link.target, step.link.expires_at) == (wanted.target, wanted.expires_at)
    assert isinstance(plan_for(wanted, step.link), Rest)


def test_L2_a_tombstone_whose_expiry_has_passed_since_is_restored_with_the_new_one() -> None:
    """Deleted before it would have expired; so `Restore` has to bring the expiry along."""
    link = linked(**GONE | {"expires_at": NOW - 1})
    wanted = an_object(expires_at=NOW + DAY)
    assert plan_for(wanted, link) == change(link, restoring(wanted))
    late = plan_for(an_object(expires_at=NOW - 1), link)
    assert rest(late) == (False, Reason.EXPIRY_IN_PAST)


@pytest.mark.parametrize("state", [State.QUARANTINED, State.FREE])
def test_L2_after_the_grace_an_object_begins_anew(state: State) -> None:
    link = linked(**RESTING | {"state": state})
    assert plan_for(an_object(), link) == Birth(KEY, an_object(), claim_of(link))


def test_L5_a_clock_that_is_ahead_for_a_while_gives_up_no_claim() -> None:
    """The sweeper moves a row only after its clock went evenly for long; claims wait for it."""
    link = linked(**RESTING | {"state": State.TOMBSTONED})
    assert rest(plan_for(an_object(), link)) == (False, Reason.GRACE_OVER)
    assert rest(plan_for(None, link)) == (False, "Deleted")


def test_W4_an_object_without_expiry_is_not_born_again_when_its_link_ran_out() -> None:
    old = NOW - POLICY.default_ttl - YEAR
    link = linked(**RESTING | {"created_at": old, "cause": Cause.EXPIRED, "expires_at": NOW - YEAR})
    assert rest(plan_for(an_object(expires_at=KEEP), link)) == (False, "Expired")


# Objects that went


def test_T2_when_an_object_goes_its_link_is_deleted() -> None:
    assert plan_for(None, linked()) == change(linked(), Delete(BY))
    banned = linked(state=State.DISABLED, disabled="spam")
    assert plan_for(None, banned) == change(banned, Delete(BY))


@pytest.mark.parametrize("link", [linked(**GONE), linked(**LAPSED), linked(expires_at=NOW - 1)])
def test_L2_a_tombstone_keeps_its_claim_so_that_its_object_can_come_back(link: Link) -> None:
    assert rest(plan_for(None, link)) == (False, "Deleted")


@pytest.mark.parametrize(
    "link", [linked(**RESTING), linked(**RESTING | {"state": State.FREE}), None]
)
def test_T2_a_claim_that_holds_nothing_is_released(link: Link | None) -> None:
    claim = Claim(KEY, "promo", 1, "t1")
    assert planned(None, Observed(claim, link)) == Reclaim(KEY, claim, None)


def test_T2_what_exists_but_cannot_be_read_is_left_alone() -> None:
    observed = {KEY: Observed(claim_of(linked()), linked())}
    assert plan(Desired({}, kept=frozenset({KEY})), observed, POLICY, NOW) == []


# Always

STATES = st.sampled_from(
    [
        linked(),
        linked(**GONE),
        linked(**LAPSED),
        linked(**RESTING),
        linked(**RESTING | {"state": State.FREE}),
        linked(expires_at=NOW - 1),
        linked(state=State.DISABLED, disabled="spam"),
        linked(token="another"),
        linked(generation=3),
        None,
    ]
)
OBJECTS = st.builds(
    an_object,
    target=st.sampled_from([TARGET, "https://example.com/b", "x:"]),
    code=st.sampled_from(["promo", "other", None]),
    expires_at=st.sampled_from([NOW + 10 * DAY, NOW - DAY, None, KEEP]),
    permanent=st.booleans(),
)


@given(st.none() | OBJECTS, STATES, st.integers(1, 2))
def test_T2_every_object_and_every_claim_gets_one_action(
    wanted: ShortLink | None, link: Link | None, generation: int
) -> None:
    """And a change is one that the link takes: else the object would be told."""
    action = planned(wanted, Observed(Claim(KEY, "promo", generation, "t1"), link))
    assert action.key == KEY
    if isinstance(action, Change):
        step = decide(link, action.command, POLICY, NOW)
        assert isinstance(step, Transition)
        assert step.link != link
    if isinstance(action, Birth):
        assert wanted is not None
        code = wanted.code or "AbC1234"
        assert isinstance(decide(None, creation(wanted, code, "t9"), POLICY, NOW), Transition)
