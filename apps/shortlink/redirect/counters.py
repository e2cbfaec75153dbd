"""Counts and bounded records that the hot path adds to; others read them later."""

from bisect import bisect_left
from collections import deque

from shortlink.redirect.responses import STATUSES

READ_BOUNDS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2000)
"""Upper ends of the buckets of store reads, in milliseconds."""

CLICKS = 10_000
GONE_CODES = 256


class Counters:
    """Counts since the start.

    `quick_hits`: requests answered without asking the service, by status; `answers`: all
    others. `hits` and `misses` are of the cache, `quick_hits` not included. `reads`: of the
    store; `read_errors`: those that failed.
    """

    __slots__ = (
        "answers",
        "hits",
        "misses",
        "quick_hits",
        "read_buckets",
        "read_errors",
        "read_total",
        "reads",
    )

    def __init__(self) -> None:
        self.quick_hits = dict.fromkeys(STATUSES, 0)
        self.answers = dict.fromkeys(STATUSES, 0)
        self.hits = 0
        self.misses = 0
        self.reads = 0
        self.read_errors = 0
        self.read_buckets = [0] * (len(READ_BOUNDS) + 1)
        self.read_total = 0

    def read_took(self, milliseconds: int) -> None:
        """Count a store read that has ended, well or not."""
        self.read_buckets[bisect_left(READ_BOUNDS, milliseconds)] += 1
        self.read_total += milliseconds


Click = tuple[str, int, int]
"""Code, generation, and the time in milliseconds UTC."""


class Clicks:
    """The clicks not yet taken by their consumer (R3): at most `capacity`; the rest are
    counted in `dropped`, for a slow consumer may never slow a redirect.
    """

    __slots__ = ("_capacity", "_ring", "dropped")

    def __init__(self, capacity: int = CLICKS) -> None:
        self.dropped = 0
        self._capacity = capacity
        self._ring: deque[tuple[bytes, int, int]] = deque()

    def add(self, path: bytes, generation: int, at: int) -> None:
        """Keep one click on the link at `path` (`b"/code"`)."""
        if len(self._ring) < self._capacity:
            self._ring.append((path, generation, at))
        else:
            self.dropped += 1

    def drain(self) -> list[Click]:
        """Take all that are kept, oldest first."""
        taken, self._ring = self._ring, deque()
        return [(path[1:].decode("ascii"), generation, at) for path, generation, at in taken]


class GoneHits:
    """Visits of gone links, for the audit log (R2), added up so that a flood of them makes
    few lines. At most `capacity` codes between two `drain`s; hits past it are in `dropped`.
    """

    def __init__(self, capacity: int = GONE_CODES) -> None:
        self.dropped = 0
        self._capacity = capacity
        self._hits: dict[tuple[str, int], int] = {}

    def add(self, code: str, generation: int) -> None:
        """Count one visit."""
        key = (code, generation)
        if key in self._hits or len(self._hits) < self._capacity:
            self._hits[key] = self._hits.get(key, 0) + 1
        else:
            self.dropped += 1

    def drain(self) -> dict[tuple[str, int], int]:
        """Take the visits by (code, generation)."""
        taken, self._hits = self._hits, {}
        return taken
