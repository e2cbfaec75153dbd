"""Work that a process does again and again: nothing but its cancellation ends it."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shortlink.clock import Clock
from shortlink.store.port import StoreError

DEADLINE: Final = 600.0
"""Seconds without progress after which a loop is taken to hang. It is far above the deadlines
of all that works wait for, since an answer to that is the end of the process."""

_BACKOFF_FIRST: Final = 1.0
_BACKOFF_CAP: Final = 10.0
"""Seconds."""
_DOUBLINGS: Final = 6

log = structlog.get_logger()


@dataclass(slots=True)
class Loop:
    """`work` is done, then `pause` seconds pass, of which up to the share `jitter` is left out.
    `moved` and `succeeded` (steady) are when it last ended, well or not, or told of progress;
    and when it last ended well.
    """

    name: str
    work: Callable[[], Awaitable[None]]
    pause: float
    jitter: float = 0.0
    rounds: int = 0
    failures: int = 0
    moved: int = 0
    succeeded: int = 0


class Loops(Collector):
    """The loops of a process, and their series. `failing` has, by name, what went wrong last
    in each that has not gone well since.
    """

    def __init__(
        self,
        loops: Sequence[Loop],
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.failing: dict[str, str] = {}
        self._loops = loops
        self._steady = clock.steady
        self._sleep = sleep
        self._chance = chance
        for loop in loops:
            loop.moved = loop.succeeded = self._steady()

    async def run(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for loop in self._loops:
                tasks.create_task(self._forever(loop), name=f"loop {loop.name}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Go on beside what is done meanwhile."""
        running = asyncio.create_task(self.run(), name="loops")
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])

    def progressed(self, name: str) -> None:
        """Tell that this loop's work, which may take long, is not stuck."""
        for loop in self._loops:
            if loop.name == name:
                loop.moved = self._steady()

    def hung(self) -> list[str]:
        """The loops that made no progress for longer than DEADLINE and their pause."""
        now = self._steady()
        return [
            loop.name for loop in self._loops if now - loop.moved > (DEADLINE + loop.pause) * 1000
        ]

    def collect(self) -> Iterable[Metric]:
        """The series (O1)."""
        rounds = CounterMetricFamily(
            "shortlink_loop_rounds", "Rounds ended, well or not.", labels=["loop"]
        )
        failures = CounterMetricFamily(
            "shortlink_loop_failures", "Rounds that failed.", labels=["loop"]
        )
        age = GaugeMetricFamily(
            "shortlink_loop_success_age_seconds",
            "Since a round last ended well; since the start where none did.",
            labels=["loop"],
        )
        now = self._steady()
        for loop in self._loops:
            rounds.add_metric([loop.name], loop.rounds)
            failures.add_metric([loop.name], loop.failures)
            age.add_metric([loop.name], (now - loop.succeeded) / 1000)
        return rounds, failures, age

    async def _forever(self, loop: Loop) -> None:
        """After failures wait longer, with jitter, up to a cap."""
        failures = 0
        while True:
            try:
                await loop.work()
                failures = 0
                self.failing.pop(loop.name, None)
                loop.succeeded = self._steady()
            except Exception as error:  # a loop that ends would stop the lifecycle unseen
                failures += 1
                loop.failures += 1
                self.failing[loop.name] = str(error) or repr(error)
                log.error(
                    "loop failed",
                    loop=loop.name,
                    failures=failures,
                    error=self.failing[loop.name],
                    exc_info=not isinstance(error, StoreError),  # a store's says all there is
                )
            loop.rounds += 1
            loop.moved = self._steady()
            if failures:
                first = min(loop.pause, _BACKOFF_FIRST)
                backoff = min(first * 2 ** min(failures, _DOUBLINGS), _BACKOFF_CAP)
                await self._sleep(backoff * (1 - self._chance() / 2))
            else:
                await self._sleep(loop.pause * (1 - loop.jitter * self._chance()))
