"""This process's own cache of ready answers (K1): small, brief, and newest wins.

An entry's age counts from the moment its store read began and nothing prolongs it. Of two
values of one code the newer (generation, version) stays, whichever comes last, so that a slow
reader can't put back what was replaced.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from shortlink.clock import Clock
from shortlink.links.answers import Answer, answer
from shortlink.links.model import LIVE, Link
from shortlink.links.policy import CACHE_BOUND, SECOND

CAPACITY = 10_000
"""Entries (K1)."""

NEGATIVE_BOUND = 1 * SECOND
"""The longest age, in milliseconds, of an entry that redirects nowhere (K3)."""

FILL_LIMIT = 2 * SECOND
"""A read that began longer ago than this many milliseconds fills no cache."""

NEVER = 2**63 - 1

R = TypeVar("R")

Render = Callable[[Answer, int | None], R]
"""Makes what is kept from an answer and from the milliseconds between the end of the entry's
life and the link's expiry (None: it never expires)."""


class Entry(Generic[R]):
    """One answer. `began`, `written` and `fresh_until` are on the steady clock, `expires_at`
    on the wall clock, all in milliseconds; `stamp` is (0, 0) for a code that no link has.
    """

    __slots__ = ("began", "expires_at", "fresh_until", "response", "stamp", "written")

    def __init__(
        self,
        response: R,
        stamp: tuple[int, int],
        began: int,
        written: int,
        fresh_until: int,
        expires_at: int,
    ) -> None:
        self.response = response
        self.stamp = stamp
        self.began = began
        self.written = written
        self.fresh_until = fresh_until
        self.expires_at = expires_at


class MemoryCache(Generic[R]):
    """At most `capacity` entries by request path (`b"/code"`).

    `refused` counts fills that were not kept. `entries` is for reading, by those who check
    `fresh_until` and `expires_at` themselves.
    """

    def __init__(self, clock: Clock, render: Render[R], capacity: int = CAPACITY) -> None:
        self.entries: OrderedDict[bytes, Entry[R]] = OrderedDict()
        self.refused = 0
        self._clock = clock
        self._render = render
        self._capacity = capacity
        self._floor = -NEVER

    def get(self, code: str) -> Entry[R] | None:
        """The entry for `code` while it may be served.

        One whose link has just expired may not: it could have been extended in the store.
        """
        entry = self.entries.get(_key(code))
        return entry if entry is not None and self._servable(entry) else None

    def peek(self, code: str) -> Entry[R] | None:
        """Whatever is kept for `code`, servable or not."""
        return self.entries.get(_key(code))

    def put(
        self, link: Link | None, code: str, read_began: int, asked: int | None = None
    ) -> Entry[R] | None:
        """Fill with what a store read, begun at `read_began` (steady), found for `code`.

        `asked` is when another cache was asked that had kept what was read: then FILL_LIMIT
        counts from there, for that cache keeps only the newest.

        Returns the entry to answer with: the newest known, kept or not. None when the store
        gave something older than what is known, and what is known is too old to be served.
        """
        new = self._entry(link, read_began)
        old = self.peek(code)
        if old is not None and (old.stamp, old.began) > (new.stamp, new.began):
            self.refused += 1
            if self._servable(old):
                return old
            return None if old.stamp > new.stamp else new
        waited = new.written - (read_began if asked is None else asked)
        if waited > FILL_LIMIT or (old is None and read_began <= self._floor):
            self.refused += 1
            return new
        self._install(code, new)
        return new

    def changed(self, link: Link) -> None:
        """Install what `link` was just changed to by this process, unless newer is known.

        Its age counts from the decision, which came before the write, so that a slow write
        doesn't lengthen it.
        """
        deciding = max(0, self._clock.wall() - link.changed_at)
        new = self._entry(link, self._clock.steady() - deciding)
        old = self.peek(link.code)
        if old is None or (old.stamp, old.began) <= (new.stamp, new.began):
            self._install(link.code, new)

    def _servable(self, entry: Entry[R]) -> bool:
        clock = self._clock
        return clock.steady() < entry.fresh_until and clock.wall() < entry.expires_at

    def _entry(self, link: Link | None, began: int) -> Entry[R]:
        wall, steady = self._clock.wall(), self._clock.steady()
        said = answer(link, wall)
        fresh_until = began + (CACHE_BOUND if said.target else NEGATIVE_BOUND)
        expires_at = None
        if link is not None and link.state in LIVE and wall < (link.expires_at or 0):
            expires_at = link.expires_at
        spare = None if expires_at is None else expires_at - (wall + fresh_until - steady)
        return Entry(
            response=self._render(said, spare),
            stamp=(0, 0) if link is None else link.stamp,
            began=began,
            written=steady,
            fresh_until=fresh_until,
            expires_at=NEVER if expires_at is None else expires_at,
        )

    def _install(self, code: str, entry: Entry[R]) -> None:
        key = _key(code)
        self.entries[key] = entry
        self.entries.move_to_end(key)
        if len(self.entries) > self._capacity:
            # The entry written first goes first: none lives past 5 s, so it is the nearest to
            # its end, and a hit needs no bookkeeping.
            _, evicted = self.entries.popitem(last=False)
            # Whoever began to read before this was written may carry what it had replaced.
            self._floor = max(self._floor, evicted.written)


def _key(code: str) -> bytes:
    return b"/" + code.encode("ascii")
