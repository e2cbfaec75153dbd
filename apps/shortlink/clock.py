"""Time, passed in: the system's clocks in service, a hand-set one in tests and the tour."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks in milliseconds: `wall` since the Unix epoch (UTC), which may be set or jump,
    for what people wrote down; `steady` since any moment, which only goes forward, for ages.
    """

    wall: Callable[[], int]
    steady: Callable[[], int]


def _wall() -> int:
    return time.time_ns() // 1_000_000


def _steady() -> int:
    return time.monotonic_ns() // 1_000_000


SYSTEM_CLOCK = Clock(_wall, _steady)


class HandClock:
    """A clock that stands still until it is told to go on. `clock` is what others are given."""

    def __init__(self, at: int) -> None:
        self.at = at
        self._steady = 0
        self.clock = Clock(lambda: self.at, lambda: self._steady)

    def advance(self, milliseconds: int) -> None:
        """Let time pass on both clocks."""
        self.at += milliseconds
        self._steady += milliseconds
