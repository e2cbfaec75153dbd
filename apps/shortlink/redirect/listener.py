"""What the connections of one listening socket share: where answers come from, and the time."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shortlink.cache.memory import Entry
from shortlink.clock import Clock
from shortlink.redirect.counters import Clicks, Counters
from shortlink.redirect.responses import Response, heads
from shortlink.redirect.service import Then

if TYPE_CHECKING:
    from shortlink.redirect.protocol import Connection

Route = Callable[[bytes, bool, Then], Response | None]
"""(request target, whether it is a HEAD, then) -> the response, or None and `then` gets it."""


class Now:
    """The time, and `heads`: the status lines with its Date, made anew once a second.

    The clocks are read again when `turn` has changed. It is the loop's own time, which uvloop
    keeps for a turn of the loop (in whole milliseconds), so all that arrives in one turn shares
    one reading; asyncio's changes with every call.
    """

    __slots__ = ("_clock", "_read_at", "_second", "heads", "steady", "turn", "wall")

    def __init__(self, clock: Clock, turn: Callable[[], float]) -> None:
        self.wall = self.steady = 0
        self.heads: dict[int, bytes] = {}
        self.turn = turn
        self._read_at = -1.0
        self._second = -1
        self._clock = clock

    def read(self) -> "Now":
        """Itself, as of this turn."""
        turn = self.turn()
        if turn != self._read_at:
            self._read_at = turn
            self.wall, self.steady = self._clock.wall(), self._clock.steady()
            if self.wall // 1000 != self._second:
                self._second = self.wall // 1000
                self.heads = heads(self.wall)
        return self


@dataclass(slots=True, eq=False)
class Listener:
    """What all connections of one listening socket share. `entries` are answered without
    asking `route`; `most` bounds `connections`.
    """

    route: Route
    now: Now
    most: int
    counters: Counters = field(default_factory=Counters)
    entries: Mapping[bytes, Entry[Response]] = field(default_factory=dict)
    clicks: Clicks | None = None
    draining: bool = False
    closing: bool = False
    connections: "set[Connection]" = field(default_factory=set)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it closes and all connections are gone."""

    def opened(self, connection: "Connection") -> int:
        """Take in `connection`; how many are now over the bound."""
        self.connections.add(connection)
        return len(self.connections) - self.most

    def closed(self, connection: "Connection") -> None:
        """Forget `connection`."""
        self.connections.discard(connection)
        self._tell_if_empty()

    def drain(self) -> None:
        """From now on every connection ends with its next answer."""
        self.draining = True
        self.entries = {}
        for connection in self.connections:
            connection.answer_strictly()

    def close(self) -> None:
        """Drain; and as no connections come any more, let go of silent ones soon."""
        self.drain()
        self.closing = True
        self._tell_if_empty()

    def sweep(self, now: int) -> None:
        """End what has taken too long by `now` (steady)."""
        for connection in tuple(self.connections):
            connection.sweep(now)

    def abort(self) -> None:
        """Cut off whoever is left."""
        for connection in tuple(self.connections):
            connection.abort()

    def _tell_if_empty(self) -> None:
        if self.closing and not self.connections:
            self.empty.set()
