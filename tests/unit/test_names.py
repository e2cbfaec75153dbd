"""Custom aliases, and the labels on links (G7)."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlink.links.names import (
    MAX_LABEL,
    MAX_LABELS,
    MAX_VALUE,
    RESERVED,
    check_alias,
    check_labels,
    is_code,
    is_reserved,
    suggestions,
)
from shortlink.links.refusal import Reason


@pytest.mark.parametrize(
    "alias",
    ["abc", "a" * 20, "000", "ABC", "Promo2027", "shiitake", "assess", "class", "Essex", "cockpit"],
)
def test_G7_a_plain_alias_is_accepted(alias: str) -> None:
    assert check_alias(alias) is None


@pytest.mark.parametrize(
    "alias",
    [
        "",
        "ab",
        "a" * 21,
        "a-b",
        "a_b",
        "a b",
        "abc ",
        "abc\n",
        "abc\x00",
        "../x",
        "a/b",
        "abc%41",
        "caf\u00e9",
        "\u0430bc",  # Cyrillic
        "\uff41bc",  # full width
        "\u0661\u0662\u0663",  # digits, but not ASCII's
        "ab\u200dc",  # zero-width joiner
        "abc\ud800",
    ],
)
def test_G7_what_is_no_alias(alias: str) -> None:
    refusal = check_alias(alias)
    assert refusal is not None
    assert (refusal.reason, refusal.field) == (Reason.INVALID_ALIAS, "alias")
    assert not is_code(alias)


@pytest.mark.parametrize(
    "alias",
    [
        "api",
        "API",
        "Admin",
        "health",
        "metrics",
        "robots",
        "WWW",
        "shit",
        "Sh1t",
        "xFUCKx",
        "a55h0le",
    ],
)
def test_G7_reserved_and_rude_words_are_refused_in_any_case(alias: str) -> None:
    refusal = check_alias(alias)
    assert refusal is not None
    assert refusal.reason is Reason.RESERVED


@given(st.sampled_from(sorted(RESERVED)), st.lists(st.booleans(), min_size=20, max_size=20))
def test_G7_every_spelling_of_a_reserved_word_is_reserved(word: str, upper: list[bool]) -> None:
    spelt = "".join(
        letter.upper() if up else letter for letter, up in zip(word, upper, strict=False)
    )
    assert is_reserved(spelt)
    assert is_code(spelt), "a reserved word that no alias can be need not be listed"


@given(st.text(max_size=25))
def test_G7_suggestions_are_aliases_that_could_be_had(alias: str) -> None:
    offered = list(suggestions(alias))
    assert offered
    assert len(set(offered)) == len(offered)
    assert all(check_alias(one) is None for one in offered)


@pytest.mark.parametrize(
    ("alias", "first"),
    [
        ("promo", "promo1"),
        ("api", "api1"),
        ("a" * 20, "a" * 17 + "1"),
        ("", "my1"),
        ("---", "my1"),
        ("x", "x10"),
        ("shit", "shi1"),
    ],
)
def test_G7_the_likeliest_suggestion_comes_first(alias: str, first: str) -> None:
    assert next(suggestions(alias)) == first
    assert len(list(islice(suggestions(alias), 5))) == 5


FULL = "x" * MAX_LABEL


@pytest.mark.parametrize(
    ("tags", "metadata"),
    [
        ([], []),
        (["a"] * MAX_LABELS, [("k", "v")] * MAX_LABELS),
        ([FULL], [(FULL, "v" * MAX_VALUE)]),
        (["na\u00efve \u2603"], [("\u6f22", "\U0001f600")]),
    ],
)
def test_S2_labels_within_their_bounds_are_kept(
    tags: list[str], metadata: list[tuple[str, str]]
) -> None:
    assert check_labels(tags, metadata) is None


@pytest.mark.parametrize(
    ("tags", "metadata", "field"),
    [
        (["a"] * (MAX_LABELS + 1), [], "tags"),
        ([""], [], "tags"),
        ([FULL + "x"], [], "tags"),
        (["a\nb"], [], "tags"),
        (["a\u202eb"], [], "tags"),
        (["\ud800"], [], "tags"),
        ([], [("k", "v")] * (MAX_LABELS + 1), "metadata"),
        ([], [("", "v")], "metadata"),
        ([], [(FULL + "x", "v")], "metadata"),
        ([], [("k", "")], "metadata"),
        ([], [("k", "v" * (MAX_VALUE + 1))], "metadata"),
        ([], [("k", "\x1b[31m")], "metadata"),
    ],
)
def test_S2_P2_labels_out_of_bounds_are_refused(
    tags: list[str], metadata: list[tuple[str, str]], field: str
) -> None:
    refusal = check_labels(tags, metadata)
    assert refusal is not None
    assert (refusal.reason, refusal.field) == (Reason.INVALID_LABELS, field)
