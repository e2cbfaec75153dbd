"""Conditional writes, whose outcome is unknown after any error, carried to a known one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shortlink.clock import Clock
from shortlink.links.codes import Entropy
from shortlink.store.cassandra.session import Session, Statement, Unreachable, jittered
from shortlink.store.port import StoreUnavailable

T = TypeVar("T")

DEADLINE = 4_000
"""Milliseconds until a write that is still unknown is given up."""

_FIRST_PAUSE = 0.05
_LAST_PAUSE = 0.8


def there(read: Callable[[], Awaitable[T | None]]) -> Callable[[], Awaitable[T]]:
    """`read`, for a write that only a row can refuse: one that is gone by now leaves the outcome
    unknown, and the write is sent again.
    """

    async def found() -> T:
        row = await read()
        if row is None:
            raise Unreachable("it was refused by a row that can't be found any more")
        return row

    return found


class Conditional:
    """Repeats a write until it is known what became of it."""

    def __init__(
        self,
        clock: Clock,
        entropy: Entropy,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._sleep = sleep

    async def write(
        self,
        session: Session,
        statement: Statement,
        values: Sequence[object],
        read: Callable[[], Awaitable[T]],
    ) -> tuple[bool, T | None]:
        """(True, None) when the write was applied, (False, row) when `row` refused it.

        That row may be the work of an earlier attempt, so compare it with what was written.
        `read` gives it at the statement's serial level through the same data centre. Reading
        alone would prove nothing, for a write that failed may be applied later; so the same
        write is sent again until it is applied, or refused by a row that can be read. Raises
        StoreUnavailable after DEADLINE; the write may then still happen.
        """
        give_up = self._clock.steady() + DEADLINE
        pause = _FIRST_PAUSE
        while True:
            try:
                async with asyncio.timeout((give_up - self._clock.steady()) / 1_000):
                    if await session.applied(statement, values):
                        return True, None
                    return False, await read()
            except (Unreachable, TimeoutError) as error:
                wait = jittered(pause, self._entropy)
                if self._clock.steady() + wait * 1_000 >= give_up:
                    raise StoreUnavailable(
                        f"it is not known whether a write through {session.datacenter} happened:"
                        f" {error}; repeat the same call"
                    ) from error
            await self._sleep(wait)
            pause = min(2 * pause, _LAST_PAUSE)
