"""The drills' judges see what is wrong."""

import random
from dataclasses import replace

import pytest

from shortlink.links.model import Link, State
from shortlink.store.port import Claim
from tests.drills.operator_steps import STEPS, Judge, Stored
from tests.drills.operator_wpt import Outcome, differences
from tests.samples import TARGET, a_link
from tests.wpt_cases import Case

KEY = "ann/promo"
LINK = a_link(claim=KEY)
CLAIM = Claim(KEY, "promo", 1, "t1", "us-east-1", "uid-1")
OBJECT = {
    "metadata": {"namespace": "ann", "name": "promo", "uid": "uid-1"},
    "spec": {"target": TARGET},
    "status": {"code": "promo"},
}


def judged(links: list[Link], claim: Claim | None) -> list[str]:
    judge = Judge(STEPS, random.Random(1))
    judge.judge("a kill", Stored(links, {} if claim is None else {KEY: claim}), [OBJECT])
    return judge.broken


def test_L5_an_object_with_its_link_and_claim_is_right() -> None:
    assert judged([LINK], CLAIM) == []
    gone = a_link(code="old", state=State.TOMBSTONED)
    assert judged([LINK, gone], CLAIM) == []


@pytest.mark.parametrize(
    ("links", "claim"),
    [
        ([LINK], None),
        ([LINK], replace(CLAIM, uid="uid-0")),
        ([LINK, a_link(code="other")], replace(CLAIM, code="other")),
        ([LINK], replace(CLAIM, token="t0")),
        ([], CLAIM),
        ([replace(LINK, target="https://example.com/old")], CLAIM),
        ([replace(LINK, state=State.TOMBSTONED)], CLAIM),
        ([LINK, a_link(code="second", token="t2")], CLAIM),
    ],
)
def test_L5_each_thing_that_is_wrong_with_an_object_is_told(
    links: list[Link], claim: Claim | None
) -> None:
    assert judged(links, claim)


def test_L5_the_place_that_was_hit_least_is_next_until_all_were_hit_enough() -> None:
    judge = Judge(STEPS, random.Random(1))
    seen = []
    while point := judge.next("deleted", 2):
        judge.kills[point] += 1
        seen.append(point)
    assert len(set(seen[:4])) == 4
    assert len(seen) == 8
    assert len([point for point in judge.points if point.what == "deleted"]) == 4


GOOD, BAD = Case("http://a", "http://a/"), Case("http://a b", None)
USER = Case("http://:b@www.example.com", "http://:b@www.example.com/")


@pytest.mark.parametrize(
    ("case", "where", "said", "right"),
    [
        (GOOD, "redirected", "http://a/", True),
        (GOOD, "redirected", "http://a", False),
        (GOOD, "operator", "InvalidTarget: no", False),
        (BAD, "API server", "spec.target is invalid", True),
        (BAD, "operator", "InvalidTarget: no URL", True),
        (BAD, "operator", "Broken: a bug", False),
        (BAD, "redirected", "http://a%20b/", False),
        (USER, "operator", "InvalidTarget: it has a user name or password", True),
        (USER, "operator", "InvalidTarget: no URL", False),
    ],
)
def test_S2_a_case_is_right_only_as_the_embedded_platform_has_it(
    case: Case, where: str, said: str, right: bool
) -> None:
    assert (differences(case, Outcome(where, said)) == []) is right
