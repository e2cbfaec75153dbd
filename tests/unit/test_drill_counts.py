from collections import Counter

import pytest

from tests.drills.acknowledged import Acknowledged, Held, differences, found
from tests.drills.races import Race, untrue
from tests.drills.site import Answer, percentile, table
from tests.drills.visitors import broken_promises, visited, written

A, B, C = "https://a.example/", "https://b.example/", "https://c.example/"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Answer(302, A), "right"),
        (Answer(302, B), "wrong"),
        (Answer(404), "wrong"),
        (Answer(410), "wrong"),
        (Answer(500), "wrong"),
        (Answer(503), "503"),
        (Answer(0, lost="late"), "late"),
        (Answer(0, lost="refused"), "refused"),
    ],
)
def test_a_visit_to_a_live_link_is_right_only_when_it_leads_there(
    answer: Answer, result: str
) -> None:
    assert visited(answer, A) == result


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Answer(201), "ok"),
        (Answer(409), "wrong"),
        (Answer(503), "503"),
        (Answer(0, lost="cut"), "cut"),
    ],
)
def test_a_write_is_ok_only_with_the_status_that_says_so(answer: Answer, result: str) -> None:
    assert written(answer, 201) == result


def test_an_acknowledged_change_leaves_one_value() -> None:
    links = Acknowledged()
    links.created("code", A)
    (link,) = links.links
    links.begin(link, B)
    assert link.may == {A, B}
    links.end(link, True, B)
    assert link.may == {B}
    assert differences(link, {"east": A, "west": B}) != []
    assert differences(link, {"east": B, "west": B}) == []


def test_a_change_without_an_answer_may_be_either_but_the_same_everywhere() -> None:
    link = Held("code", {A})
    links = Acknowledged([link])
    links.begin(link, None)
    links.end(link, False, None)
    assert not link.known
    assert differences(link, {"east": A, "west": A}) == []
    assert differences(link, {"east": None, "west": None}) == []
    assert differences(link, {"east": A, "west": None}) != []
    assert differences(link, {"east": C, "west": C}) != []


def test_an_acknowledged_link_that_is_unknown_is_lost() -> None:
    assert differences(Held("code", {A}), {"east": found(404, None)}) != []
    with pytest.raises(ValueError, match="503"):
        found(503, None)


@pytest.mark.parametrize(
    ("told", "holds", "wrong"),
    [
        ((201, 409, 409), A, False),
        ((503, 409, 409), A, False),  # it won, and was never told
        ((503, 503, 0), None, False),
        ((201, 201, 409), A, True),
        ((201, 409, 409), B, True),
        ((409, 409, 201), A, True),
        ((409, 503, 503), None, True),
        ((201, 409, 409), None, True),
        ((503, 409, 409), "https://stranger.example/", True),
        ((500, 409, 409), A, True),
    ],
)
def test_a_race_is_true_when_all_were_told_what_is_so(
    told: tuple[int, ...], holds: str | None, wrong: bool
) -> None:
    assert bool(untrue(Race("alias", told, (A, B, C), holds))) == wrong


def test_percentiles_are_values_that_were_measured() -> None:
    assert [percentile([4, 1, 3, 2], share) for share in (0, 0.5, 0.75, 0.99, 1)] == [1, 2, 3, 4, 4]


def test_a_table_lines_its_columns_up() -> None:
    assert table(("what", "n"), [("visits", 5), ("births", 12)]).splitlines() == [
        "what     n",
        "visits   5",
        "births  12",
    ]


def test_a_phase_holds_only_with_the_promised_results() -> None:
    assert broken_promises("p", "birth", Counter(ok=3), goes_on=True) == []
    assert broken_promises("p", "birth", Counter(ok=3, late=1), goes_on=True) != []
    assert broken_promises("p", "birth", Counter({"503": 2}), goes_on=False) == []
    assert broken_promises("p", "birth", Counter(ok=1), goes_on=False) != []
    assert broken_promises("p", "birth", Counter(), goes_on=True) != []
