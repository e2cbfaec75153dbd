"""The work queue: which objects have to be looked at, each once and by one worker at a time.

It is bounded by the number of objects, since a key that waits already is not added again. What
fails waits longer each time. While the store or the API server is away, one key at a time finds
out whether it is back; all others wait for that instead of failing one after the other.
"""

import asyncio
import heapq
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from shortlink.clock import Clock
from shortlink.store.port import StoreError, StoreUnavailable
from shortlink_operator.cluster import ClusterError, Unreachable
from shortlink_operator.lease import Deposed

WORKERS: Final = 16

HANDLE_SECONDS: Final = 120.0
"""How long one look at one object may take: far above the deadlines of all that it waits for."""

STUCK_SECONDS: Final = 300.0
"""Without any look ended, though some are due, the workers are taken to hang."""

BACKOFF_FIRST: Final = 0.5
BACKOFF_CAP: Final = 300.0
PROBE_CAP: Final = 5.0
"""Seconds: between two tries of the same key, and of any while a dependency is away."""
_DOUBLINGS: Final = 20

_OUTAGE: Final = 5.0
"""Seconds that something was away before what failed meanwhile is due at once when it is back.
Else a single key that always fails so would be tried again after each one that goes well."""
_SPREAD: Final = 1.0

_TICK: Final = 0.1
"""Seconds by which a delayed key may be late."""

_STALE: Final = 64

log = structlog.get_logger()

Handle = Callable[[str], Awaitable[float | None]]
"""Looks at one object: seconds until it has to be looked at again, None: when something is new."""


class Unfinished(Exception):
    """An object could not be brought to rest; its status says why."""


_TOLD: Final = StoreError | ClusterError | TimeoutError | Unfinished
"""Errors whose messages say all there is."""


@dataclass(slots=True)
class _Entry:
    """A key that waits. `due` and `since` (when it was first wanted) are steady seconds;
    `place` is its place in a line, older ones do not count any more.
    """

    due: float
    since: float
    swept: bool
    place: int = -1


@dataclass(frozen=True, slots=True)
class Depth:
    """How many keys are due, wait for their time, and are looked at now; and for how many
    seconds the oldest of those that are due has been.
    """

    due: int
    later: int
    running: int
    oldest: float


class Queue:
    """Calls `handle` for each key that is added, until stopped.

    `handled` is told how many seconds after it was first wanted a key was dealt with.
    """

    def __init__(
        self,
        handle: Handle,
        clock: Clock,
        handled: Callable[[float], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._handle = handle
        self._steady = clock.steady
        self._handled = handled
        self._sleep = sleep
        self._chance = chance
        self._entries: dict[str, _Entry] = {}
        self._line: asyncio.PriorityQueue[tuple[bool, bool, int, str]] = asyncio.PriorityQueue()
        self._later: list[tuple[float, int, str]] = []
        self._has_later = asyncio.Event()
        self._places = itertools.count()
        self._running: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._half_open = asyncio.Lock()
        self._trips = 0
        self._away_since = 0.0
        self._stranded: set[str] = set()
        self._moved = self._now()
        self._stopping = False
        self._deposed: Deposed | None = None

    def add(self, key: str, after: float = 0.0, *, swept: bool = False) -> None:
        """Have `key` looked at in `after` seconds; of two times for one key the earlier counts.

        One that is looked at now is looked at once more afterwards. What was `swept` up comes
        behind all that was reported.
        """
        due = self._now() + after
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(due, due, swept)
        elif due >= entry.due and (swept or not entry.swept):
            return
        else:
            entry.due, entry.since = min(due, entry.due), min(due, entry.since)
            entry.swept = entry.swept and swept
        if key not in self._running:
            self._line_up(key, entry)

    async def run(self) -> None:
        """Look at keys until `stop`, and return when those looked at then are done with.

        Raises Deposed when a look was refused because another operator leads.
        """
        async with asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(self._work(), name="queue") for _ in range(WORKERS)]
            promoting = tasks.create_task(self._promote(), name="queue's clock")
            await asyncio.wait(workers)
            promoting.cancel()
        if self._deposed is not None:
            raise self._deposed

    def stop(self) -> None:
        """Begin no more looks."""
        self._stopping = True
        for _ in range(WORKERS):  # wakes those that wait for a key
            self._line.put_nowait((False, False, -1, ""))

    def depth(self) -> Depth:
        """How much there is to do."""
        now = self._now()
        due = [entry.since for entry in self._entries.values() if entry.due <= now]
        later = len(self._entries) - len(due)
        return Depth(len(due), later, len(self._running), now - min(due, default=now))

    def is_stuck(self) -> bool:
        """Whether no look has ended for STUCK_SECONDS though some are due."""
        now = self._now()
        waiting = [entry.due for entry in self._entries.values() if entry.due <= now]
        begun = min([*waiting, *self._running.values()], default=now)
        return now - max(begun, self._moved) > STUCK_SECONDS

    def _now(self) -> float:
        return self._steady() / 1000

    def _line_up(self, key: str, entry: _Entry) -> None:
        entry.place = next(self._places)
        if entry.due <= self._now():
            self._put(key, entry)
            return
        heapq.heappush(self._later, (entry.due, entry.place, key))
        self._has_later.set()
        if len(self._later) > 2 * len(self._entries) + _STALE:
            self._later = [place for place in self._later if self._counts(*place[1:])]
            heapq.heapify(self._later)

    def _put(self, key: str, entry: _Entry) -> None:
        # Behind all that never failed: what only some objects suffer from may not hold others up.
        self._line.put_nowait((key in self._failures, entry.swept, entry.place, key))

    def _counts(self, place: int, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.place == place

    async def _promote(self) -> None:
        while True:
            await self._has_later.wait()
            now = self._now()
            while self._later and self._later[0][0] <= now:
                _, place, key = heapq.heappop(self._later)
                if self._counts(place, key):
                    self._put(key, self._entries[key])
            if self._later:
                await self._sleep(min(self._later[0][0] - now, _TICK))
            else:
                self._has_later.clear()

    async def _work(self) -> None:
        while not self._stopping:
            if not self._trips:
                await self._next(probing=False)
                continue
            async with self._half_open:
                if self._trips and not self._stopping:
                    await self._sleep(self._backoff(self._trips, PROBE_CAP))
                    self._hurry()
                    await self._next(probing=True)

    def _hurry(self) -> None:
        """Have something to find out by, though all that failed would wait longer yet."""
        waiting = [key for key in self._stranded if key in self._entries]
        if waiting and self._line.empty():
            key = min(waiting, key=lambda each: self._entries[each].due)
            self.add(key, swept=self._entries[key].swept)

    async def _next(self, *, probing: bool) -> None:
        place = await self._line.get()
        if self._trips and not probing:
            self._line.put_nowait(place)
        elif self._counts(*place[2:]):
            await self._look(place[3])

    async def _look(self, key: str) -> None:
        entry = self._entries.pop(key)
        self._running[key] = self._now()
        deadline = asyncio.timeout(HANDLE_SECONDS)
        try:
            async with deadline:
                again = await self._handle(key)
        except Deposed as error:
            self._deposed = error
            self.stop()
        except Exception as error:  # one object's trouble may not stop all others
            self._failed(key, entry, error)
        else:
            self._succeeded(key, entry, again)
        finally:
            del self._running[key]
            if not deadline.expired():
                self._moved = self._now()
            if (added := self._entries.get(key)) is not None:
                self._line_up(key, added)

    def _failed(self, key: str, entry: _Entry, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        after = self._backoff(failures, BACKOFF_CAP)
        if isinstance(error, StoreUnavailable | Unreachable):
            if not self._trips:
                self._away_since = self._now()
            self._trips += 1
            self._stranded.add(key)
        log.warning(
            "object not handled, it is tried again",
            key=key,
            failures=failures,
            seconds=round(after, 1),
            error=str(error) or repr(error),
            exc_info=not isinstance(error, _TOLD),
        )
        self.add(key, after, swept=entry.swept)
        added = self._entries[key]
        added.since = min(added.since, entry.since)

    def _succeeded(self, key: str, entry: _Entry, again: float | None) -> None:
        now = self._now()
        self._failures.pop(key, None)
        self._stranded.discard(key)
        self._handled(now - entry.since)
        if again is not None:
            self.add(key, again)
        if self._trips:
            self._trips = 0
            if now - self._away_since >= _OUTAGE:
                for other in self._stranded:
                    self._failures[other] = 1
                    self.add(other, self._chance() * _SPREAD)
            self._stranded.clear()

    def _backoff(self, failures: int, cap: float) -> float:
        longest: float = min(BACKOFF_FIRST * 2 ** min(failures - 1, _DOUBLINGS), cap)
        return longest * (1 - self._chance() / 2)
