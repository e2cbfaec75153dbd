"""Generated codes: their form, their slots, and that no code is likelier than another (G1, G2)."""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlink.links.codes import (
    ALPHABET,
    LENGTH,
    SLOTS,
    SPACE,
    RandomCodes,
    SlotMap,
    decode,
    encode,
)
from shortlink.links.names import RESERVED, is_code

KEY = bytes(range(16))
NUMBERS = st.integers(0, SPACE - 1)
LIMIT = 2**64 - 2**64 % SPACE


def test_G1_the_code_space_is_the_requirements() -> None:
    assert SPACE == 3_521_614_606_208
    assert SPACE % SLOTS == 0
    assert len(set(ALPHABET)) == 62
    assert sorted(ALPHABET) == list(ALPHABET), "codes sort as their numbers do"
    assert encode(0) == "0000000"
    assert encode(SPACE - 1) == "zzzzzzz"
    assert encode(62) == "0000010"


@given(NUMBERS)
def test_G1_each_number_is_one_code(number: int) -> None:
    code = encode(number)
    assert is_code(code)
    assert len(code) == LENGTH
    assert decode(code) == number


@pytest.mark.parametrize("text", ["", "abcdef", "abcdefgh", "abc-efg", "abc\u0660efg", "abcdef "])
def test_G1_what_is_no_generated_code_has_no_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"not 7 characters|substring not found"):
        decode(text)


def test_G1_the_slot_map_can_never_change() -> None:
    """Golden values: with another map, two regions could try the same generated code."""
    slots = SlotMap(KEY)
    codes = ("0000000", "0000001", "zzzzzzz", "Ab3dE6g", "metrics", "1111111", "kubectl")
    assert [slots.slot(code) for code in codes] == [6, 29, 9, 38, 43, 38, 10]
    other = SlotMap(bytes(16))
    assert [other.slot(code) for code in codes] == [7, 38, 16, 18, 42, 55, 0]


@given(st.integers(0, 2**42 - 1), st.integers(0, 2**42 - 1), st.binary(min_size=16, max_size=16))
def test_G1_the_slot_maps_permutation_maps_no_two_numbers_to_one(
    a: int, b: int, key: bytes
) -> None:
    permuted = SlotMap(key)._permuted
    assert (permuted(a) == permuted(b)) == (a == b)
    assert 0 <= permuted(a) < 2**42


def chi_square(counts: Counter[int], cells: int) -> float:
    expected = counts.total() / cells
    return sum((counts[cell] - expected) ** 2 for cell in range(cells)) / expected


@pytest.mark.parametrize("key", [KEY, bytes(16), b"\xff" * 16])
@pytest.mark.parametrize("neighbours", [True, False])
def test_G1_slots_are_of_equal_size(key: bytes, neighbours: bool) -> None:
    """Chi-square with 63 degrees of freedom: over 130 happens once in a million samples."""
    slots = SlotMap(key)
    chance = Random(1)
    numbers = range(12_800) if neighbours else [chance.randrange(SPACE) for _ in range(12_800)]
    counts = Counter(slots.slot(encode(number)) for number in numbers)
    assert chi_square(counts, SLOTS) < 130


def fed(*numbers: int) -> Callable[[int], bytes]:
    left: Iterator[int] = iter(numbers)

    def entropy(count: int) -> bytes:
        return next(left).to_bytes(count, "big")

    return entropy


def all_slots(entropy: Callable[[int], bytes]) -> RandomCodes:
    return RandomCodes(SlotMap(KEY), range(SLOTS), entropy)


@pytest.mark.parametrize(
    ("drawn", "code"),
    [
        ((0,), "0000000"),
        ((SPACE - 1,), "zzzzzzz"),
        ((SPACE,), "0000000"),
        ((LIMIT - 1,), "zzzzzzz"),
        ((LIMIT, 1), "0000001"),
        ((2**64 - 1, LIMIT, 2), "0000002"),
    ],
)
def test_G2_numbers_past_the_last_whole_multiple_are_drawn_again(
    drawn: tuple[int, ...], code: str
) -> None:
    """Each code has exactly LIMIT / 62^7 of the 64-bit numbers: no modulo bias."""
    assert LIMIT % SPACE == 0
    assert LIMIT + SPACE > 2**64
    assert all_slots(fed(*drawn)).draw() == code


@pytest.mark.parametrize(
    "word", [*sorted(w for w in RESERVED if len(w) == LENGTH), "METRICS", "aShit00", "fUcKing"]
)
def test_G7_a_reserved_word_is_never_drawn(word: str) -> None:
    assert all_slots(fed(decode(word), 7)).draw() == "0000007"


def test_G7_some_reserved_words_are_as_long_as_a_code() -> None:
    assert "metrics" in RESERVED
    assert len("metrics") == LENGTH


def test_G2_only_codes_of_owned_slots_are_drawn() -> None:
    slots = SlotMap(KEY)
    draw = RandomCodes(slots, {3, 60}, Random(2).randbytes).draw
    drawn = Counter(slots.slot(draw()) for _ in range(200))
    assert set(drawn) == {3, 60}


def test_G1_G2_every_character_is_as_likely_at_every_place() -> None:
    """Chi-square with 61 degrees of freedom: over 130 happens once in two million samples."""
    draw = all_slots(Random(3).randbytes).draw
    codes = [draw() for _ in range(12_400)]
    assert len(set(codes)) == len(codes)
    for place in range(LENGTH):
        counts = Counter(ALPHABET.index(code[place]) for code in codes)
        assert chi_square(counts, 62) < 130, place


@pytest.mark.parametrize("owned", [(), {-1}, {64}, {0, 99}])
def test_G1_slots_that_do_not_exist_are_not_owned(owned: set[int]) -> None:
    with pytest.raises(ValueError, match="own at least one slot, each of 0 to 63"):
        RandomCodes(SlotMap(KEY), owned, Random(4).randbytes)


@pytest.mark.parametrize("key", [b"", bytes(15), bytes(17)])
def test_G1_a_slot_key_has_sixteen_bytes(key: bytes) -> None:
    with pytest.raises(ValueError, match="a slot key has 16 bytes"):
        SlotMap(key)
