"""Plain reads and writes through the first data centre that answers, home first."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from shortlink.clock import Clock
from shortlink.links.policy import SECOND
from shortlink.store.cassandra.session import Level, Row, Sessions, Statement, Unreachable

T = TypeVar("T")

_AVOIDED = 5 * SECOND
"""For how long a data centre that did not answer is asked last."""


class Reach:
    """What may be asked of any data centre: `home` first, then the others by name."""

    def __init__(self, sessions: Sessions, home: str, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._order = [home, *sorted(set(sessions) - {home})]
        self._failed_at: dict[str, int] = {}

    async def run(self, cql: str, values: Sequence[object], level: Level) -> Sequence[Row]:
        """The rows of `cql`. Raises Unreachable when no data centre answers."""
        now = self._clock.steady()
        failure = Unreachable("no data centre is known")
        for name in sorted(self._order, key=lambda each: self._is_avoided(each, now)):
            try:
                return await self._sessions[name].execute(Statement(cql, level), values)
            except Unreachable as error:
                self._failed_at[name] = now
                failure = error
        raise failure

    def _is_avoided(self, name: str, now: int) -> bool:
        return name in self._failed_at and now - self._failed_at[name] < _AVOIDED


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of all `calls`, run at once. Raises the first failure after all have ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
