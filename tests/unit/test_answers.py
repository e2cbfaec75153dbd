"""What visitors are answered (R1, R2)."""

import pytest

from shortlink.links.answers import DELETED, DISABLED, EXPIRED, UNKNOWN, Answer, answer
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import DAY, YEAR
from tests.samples import NOW, TARGET, a_link

PAST = {"expires_at": NOW}
FOUND = Answer(302, TARGET)


def gone(state: State, cause: Cause | None, **changes: object) -> Link:
    return a_link(state=state, cause=cause, tombstoned_at=NOW - DAY, **changes)


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (None, UNKNOWN),
        (a_link(), FOUND),
        (a_link(expires_at=None), FOUND),
        (a_link(expires_at=NOW + 1), FOUND),
        (a_link(**PAST), EXPIRED),
        (a_link(expires_at=None, permanent=True), Answer(301, TARGET)),
        (a_link(permanent=True), FOUND),  # R1: 301 only for what never expires
        (a_link(permanent=True, **PAST), EXPIRED),
        (a_link(state=State.DISABLED, disabled="spam"), DISABLED),
        (a_link(state=State.DISABLED, disabled="spam", **PAST), EXPIRED),
        *(
            (gone(state, cause, **more), EXPIRED if cause is Cause.EXPIRED else DELETED)
            for state in (State.TOMBSTONED, State.QUARANTINED, State.FREE)
            for cause in (Cause.EXPIRED, Cause.DELETED)
            for more in ({}, PAST, {"expires_at": None}, {"disabled": "spam"})
        ),
    ],
)
def test_R1_R2_the_answer_for_each_link(link: Link | None, expected: Answer) -> None:
    assert answer(link, NOW) == expected


def test_R2_statuses_and_reasons_that_people_read() -> None:
    answers = (UNKNOWN, EXPIRED, DELETED, DISABLED)
    assert [one.status for one in answers] == [404, 410, 410, 451]
    assert all(one.reason and not one.target for one in answers)


def test_R2_an_expired_link_is_answered_so_from_its_very_millisecond() -> None:
    link = a_link(expires_at=NOW)
    assert [answer(link, NOW + late).status for late in (-1, 0, 1, YEAR)] == [302, 410, 410, 410]
