"""Links and what the domain says when it refuses."""

from shortlink.links.model import as_metadata
from shortlink.links.refusal import Reason, Refusal, Refused


def test_S2_equal_mappings_make_equal_metadata() -> None:
    assert as_metadata({"b": "2", "a": "1"}) == as_metadata({"a": "1", "b": "2"})
    assert as_metadata({"b": "2", "a": "1"}) == (("a", "1"), ("b", "2"))


def test_W1_a_refusal_that_is_raised_says_why() -> None:
    refusal = Refusal(Reason.TAKEN, "promo is taken", "alias")
    assert Refused(refusal).refusal is refusal
    assert str(Refused(refusal)) == "promo is taken"
