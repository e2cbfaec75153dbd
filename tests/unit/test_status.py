"""Status: equal for what is equal, so that nothing is written for an object at rest (T2)."""

import re
from typing import Any

import pytest

from shortlink.links.instants import format_instant
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import DAY, Policy
from shortlink.links.refusal import Reason, Refusal
from shortlink_operator.kinds import ALLOW_DELETE, FINALIZER, TAKE_OVER
from shortlink_operator.plan import Rest
from shortlink_operator.status import (
    MAX_MESSAGE,
    UNSEEN,
    WAITING_FOR_QUORUM,
    is_settled,
    policy_status_of,
    status_of,
    status_patch,
)
from tests.objects import KEY, linked
from tests.samples import NOW

BASE = "https://s.example"
POLICY = Policy()
LINK = linked(expires_at=NOW + 10 * DAY)


def rest(ready: bool = True, reason: str = "Ready", message: str = "", **more: Any) -> Rest:
    return Rest(KEY, ready, reason, message, **{"link": LINK, "home": "us-east-1", **more})


def status(outcome: Rest, old: Any = None, now: int = NOW, generation: int = 1) -> dict[str, Any]:
    return status_of(outcome, generation, BASE, old, POLICY, now)


def condition(status: dict[str, Any]) -> dict[str, Any]:
    (only,) = status["conditions"]
    assert isinstance(only, dict)
    return only


def test_T2_a_link_that_is_as_asked_for() -> None:
    assert status(rest(), now=NOW + 7, generation=3) == {
        "observedGeneration": 3,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "observedGeneration": 3,
                "lastTransitionTime": format_instant(NOW),
                "reason": "Ready",
                "message": "",
            }
        ],
        "code": LINK.code,
        "url": f"{BASE}/{LINK.code}",
        "state": "active",
        "expiresAt": format_instant(NOW + 10 * DAY),
        "home": "us-east-1",
    }


def test_T2_the_same_outcome_again_is_an_equal_status() -> None:
    for outcome in (rest(), rest(False, "Taken", "it is taken", link=None)):
        old = status(outcome)
        assert status(outcome, old, NOW + DAY) == old
        assert status_patch(old, status(outcome, old, NOW + DAY)) is None


def test_T2_conditions_of_others_stay_where_they_are() -> None:
    """Else each side would write anew what the other wrote, without end."""
    theirs = {"type": "Scanned", "status": "True"}
    first = status(rest())
    for old in ([theirs, *first["conditions"]], [*first["conditions"], theirs]):
        assert status(rest(), {**first, "conditions": old})["conditions"] == old
    assert status(rest(), {"conditions": [theirs]})["conditions"] == [theirs, *first["conditions"]]
    many = [{"type": f"T{n}", "status": "True"} for n in range(8)]
    assert status(rest(), {"conditions": many})["conditions"] == [*many[:7], *first["conditions"]]


def test_T2_the_time_of_a_condition_is_that_of_its_last_change() -> None:
    first = status(rest(False, "Taken", "a", link=None))
    second = status(rest(False, "Reserved", "b", link=None), first, NOW + DAY, generation=2)
    assert condition(second)["lastTransitionTime"] == format_instant(NOW)
    assert condition(second)["observedGeneration"] == 2
    third = status(rest(), second, NOW + 2 * DAY)
    assert condition(third)["lastTransitionTime"] == format_instant(NOW + 2 * DAY)


@pytest.mark.parametrize(
    ("link", "state", "expires"),
    [
        (linked(expires_at=None), "active", "never"),
        (linked(expires_at=NOW + 1), "expiring", format_instant(NOW + 1)),
        (linked(expires_at=NOW), "expired", format_instant(NOW)),
        (linked(state=State.DISABLED, disabled="abuse", expires_at=None), "disabled", "never"),
        (
            linked(state=State.TOMBSTONED, tombstoned_at=NOW, cause=Cause.DELETED, expires_at=None),
            "tombstoned",
            "never",
        ),
    ],
)
def test_T2_the_state_is_as_people_are_shown_it(link: Link, state: str, expires: str) -> None:
    got = status(rest(link=link))
    assert (got["state"], got["expiresAt"]) == (state, expires)


def test_T2_an_object_without_a_link_has_no_url() -> None:
    old = status(rest())
    got = status(rest(False, "HomeDeleted", "gone", link=None, home=""), old)
    assert set(got) == {"observedGeneration", "conditions"}
    patch = status_patch(old, got)
    assert patch is not None
    gone = dict.fromkeys(("code", "url", "state", "expiresAt", "home"))
    assert patch["status"] == {**got, **gone}


@pytest.mark.parametrize("reason", sorted(UNSEEN))
def test_T2_what_could_not_be_looked_at_stays_as_it_was_known(reason: str) -> None:
    old = status(rest())
    got = status(rest(False, reason, "the store is away", link=None, home=""), old)
    facts = ("code", "url", "state", "expiresAt", "home")
    assert [got[name] for name in facts] == [old[name] for name in facts]
    assert condition(got)["status"] == "False"
    assert set(status(rest(False, reason, "", link=None, home=""))) == {
        "observedGeneration",
        "conditions",
    }


def test_T2_a_message_is_bounded() -> None:
    exact, longer = "x" * MAX_MESSAGE, "x" * 40_000
    assert condition(status(rest(False, "Taken", exact)))["message"] == exact
    cut = condition(status(rest(False, "Taken", longer)))["message"]
    assert len(cut) == MAX_MESSAGE
    assert cut.endswith("x…")


@pytest.mark.parametrize("reason", [*Reason, *UNSEEN])
def test_T2_reasons_have_the_form_that_kubernetes_wants(reason: str) -> None:
    assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason)


@pytest.mark.parametrize(
    "old",
    [
        {"url": "https://elsewhere.example/x"},
        {"conditions": []},
        {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "1970"}]},
        {"code": "other", "state": "nonsense"},
    ],
    ids=str,
)
def test_T2_a_status_edited_by_hand_is_mended(old: dict[str, Any]) -> None:
    right = status(rest())
    edited = {**right, **old}
    got = status(rest(), edited)
    patch = status_patch(edited, got)
    assert patch is not None
    assert patch["status"] == right == got


def body(**changes: Any) -> dict[str, Any]:
    outcome = changes.pop("outcome", rest())
    metadata = {"generation": 2, "finalizers": ["other.example/x", FINALIZER]} | changes
    return {"metadata": metadata, "status": status(outcome, generation=2)}


@pytest.mark.parametrize(
    ("changes", "settled"),
    [
        ({}, True),
        ({"outcome": rest(False, "Taken", "", link=None)}, True),
        ({"outcome": rest(True, "Mirrored", "")}, True),
        *[({"outcome": rest(False, reason, "")}, False) for reason in sorted(UNSEEN)],
        ({"generation": 3}, False),
        ({"finalizers": []}, False),
        ({"deletionTimestamp": "2026-12-01T00:00:00Z"}, False),
        ({"annotations": None}, True),
        ({"annotations": {"other.example/x": "y"}}, True),
        ({"annotations": {ALLOW_DELETE: "true"}}, True),
        ({"annotations": {ALLOW_DELETE: "yes"}}, False),
        ({"annotations": {"shortlink.platform/later": "x"}}, False),
        ({"annotations": {TAKE_OVER: "us-east-1"}}, False),  # it is still home
        ({"annotations": {TAKE_OVER: "eu-west-1"}}, True),  # it was taken from
    ],
    ids=str,
)
def test_T2_what_has_to_be_looked_at(changes: dict[str, Any], settled: bool) -> None:
    assert is_settled(body(**changes)) is settled


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"observedGeneration": 2},
        {"observedGeneration": 2, "conditions": []},
        {
            "observedGeneration": 2,
            "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}],
        },
    ],
    ids=str,
)
def test_T2_nothing_is_settled_without_a_condition_of_its_own_generation(status: Any) -> None:
    assert not is_settled({**body(), "status": status})


def test_T2_a_policy_in_force() -> None:
    got = policy_status_of(None, (), 4, None, NOW)
    assert set(got) == {"observedGeneration", "conditions"}
    assert got["observedGeneration"] == 4
    assert (condition(got)["status"], condition(got)["reason"]) == ("True", "InForce")
    assert policy_status_of(None, (), 4, got, NOW + DAY) == got


def test_T2_a_policy_that_is_refused_says_what_goes_on() -> None:
    refusal = Refusal(Reason.INVALID_POLICY, "spec.grace is 1h", "spec.grace")
    told = condition(policy_status_of(refusal, ("eu-west-1",), 1, None, NOW))
    assert (told["status"], told["reason"]) == ("False", "InvalidPolicy")
    assert told["message"] == "spec.grace is 1h. The last good policy stays in force."


def test_T2_a_policy_that_another_region_does_not_have_says_which() -> None:
    got = policy_status_of(None, ("eu-west-1", "ap-southeast-1"), 1, None, NOW)
    assert (condition(got)["status"], condition(got)["reason"]) == (
        "False",
        "DiffersBetweenRegions",
    )
    assert "eu-west-1, ap-southeast-1 has another" in condition(got)["message"]


def test_waiting_then_ready_keeps_the_url_all_along() -> None:
    ready = status(rest())
    waiting = status(rest(False, WAITING_FOR_QUORUM, "no quorum", link=None), ready, NOW + DAY)
    again = status(rest(), waiting, NOW + 2 * DAY)
    assert again == {
        **ready,
        "conditions": [{**condition(ready), "lastTransitionTime": format_instant(NOW + 2 * DAY)}],
    }
    assert waiting["code"] == LINK.code
