"""parse_target on the URL Standard's conformance cases (P2, S2)."""

import pytest

from shortlink.links.refusal import Refusal
from shortlink.links.targets import parse_target
from tests.wpt_cases import REFUSED, Case, cases


def test_S2_the_cases_are_all_there() -> None:
    assert len(cases()) == 267
    assert sum(case.href is None for case in cases()) == 154


@pytest.mark.parametrize("case", cases(), ids=lambda case: ascii(case.input))
def test_S2_P2_a_target_is_what_the_url_standard_says(case: Case) -> None:
    verdict = parse_target(case.input, frozenset())
    assert (None if isinstance(verdict, Refusal) else verdict) == case.stored


@pytest.mark.parametrize(("text", "why"), REFUSED.items(), ids=ascii)
def test_P2_each_exception_is_needed_and_refused_for_its_reason(text: str, why: str) -> None:
    """A row that the standard refuses anyway, or that is no longer refused, has to go."""
    assert any(case.input == text and case.href is not None for case in cases())
    verdict = parse_target(text, frozenset())
    assert isinstance(verdict, Refusal)
    assert why in verdict.message
