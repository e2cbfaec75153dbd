"""What the state machine sets going, and how it is stopped at a store call."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from shortlink.clock import HandClock
from shortlink.links.model import Link
from tests.fakes import Crash, Kept
from tests.property.ledger import Deed


@dataclass(frozen=True)
class Interruption:
    """At the `number`-th store call, before it is carried out or after."""

    number: int
    after: bool
    dies: bool


INTERRUPTIONS = st.none() | st.builds(Interruption, st.integers(1, 6), st.booleans(), st.booleans())


class Act:
    """A deed being done: a task that stops at its interruption until it is let go on.

    It is the gate of its own store, where it reports to the ledger each row that it wrote.
    """

    def __init__(
        self,
        deed: Deed,
        clock: HandClock,
        report: Callable[[Deed], None],
        interruption: Interruption | None,
    ) -> None:
        self.deed = deed
        self.task: asyncio.Task[Link | None] | None = None
        self.held: asyncio.Future[None] | None = None
        self._clock = clock
        self._report = report
        self._interruption = interruption
        self._calls = 0

    async def __call__(self, method: str, done: bool) -> None:
        stop = self._interruption
        if done:
            self._report(self.deed)
        else:
            self._calls += 1
        if stop is not None and (self._calls, done) == (stop.number, stop.after):
            if stop.dies:
                raise Crash
            self.held = asyncio.get_running_loop().create_future()
            await self.held
            self.held = None
        if done:
            self.deed.decided = self._clock.at


class SlowStore:
    """The store as a redirect process reads it: `slow` reads wait, with what they found before
    (`stale`) or will find after."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.slow: bool | None = None
        self.waiting: list[asyncio.Future[None]] = []

    async def get(self, code: str) -> Link | None:
        stale, self.slow = self.slow, None
        link = self._kept.links.get(code)
        if stale is not None:
            future = asyncio.get_running_loop().create_future()
            self.waiting.append(future)
            await future
            if not stale:
                link = self._kept.links.get(code)
        return link

    async def ping(self) -> None:
        """It answers."""
