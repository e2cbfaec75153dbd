"""What the drill of two leaders takes for a wrong write."""

import pytest

from shortlink.links.model import State
from tests.drills.two_leaders import GONE, Write, wrong_writes

JOURNAL = [GONE, "a", "b", "c", GONE, "d", "e", GONE]


def wrong(*targets: str, journal: list[str] = JOURNAL) -> int:
    """How many of a link's writes, GONE for a tombstone, are wrong."""
    served, writes = "", []
    for number, target in enumerate(targets):
        state = State.ACTIVE if target else State.TOMBSTONED
        served = target or served
        writes.append(Write(number + 1, state, served))
    return len(wrong_writes(journal, writes))


@pytest.mark.parametrize(
    "targets",
    [
        ["a", "b", "c", GONE, "d", "e", GONE],
        ["a", GONE, "d", "d", GONE],
        ["b", "b", GONE, GONE, "e", GONE],
        ["c", "d"],
        ["a", GONE],
        [],
    ],
)
def test_a_link_that_follows_its_object_is_right_whatever_it_left_out(targets: list[str]) -> None:
    assert wrong(*targets) == 0


@pytest.mark.parametrize(
    "targets",
    [
        ["b", "a"],  # back
        ["a", "b", "a", "c"],
        ["c", GONE, "c", "d"],  # restored as it was before
        ["e", GONE, "e"],  # back without its object
        ["e", GONE, "d"],
        ["e", "c", GONE],
        ["d", GONE, "d"],
        ["x"],
    ],
)
def test_a_link_that_goes_back_or_comes_back_is_wrong(targets: list[str]) -> None:
    assert wrong(*targets) == 1


def test_a_tombstone_is_wrong_while_nobody_deleted_the_object() -> None:
    assert wrong("a", GONE, "b", journal=[GONE, "a", "b"]) == 1
