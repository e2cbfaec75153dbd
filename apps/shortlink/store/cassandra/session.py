"""What the adapter asks of a Cassandra driver: one session for each data centre."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from shortlink.links.codes import Entropy
from shortlink.store.port import StoreUnavailable

TIMEOUT = 2.0
"""Seconds until a coordinator that does not answer is given up."""

FIRST = 3.0
"""Seconds that opening a session waits for its data centre."""

LAST_PAUSE = 10.0
"""Seconds between attempts to connect, at most."""

C = TypeVar("C")

Row = tuple[Any, ...]
"""A row's values, in the order in which the statement names its columns."""


class Level(StrEnum):
    """How many replicas have to answer; the last two order conditional writes."""

    LOCAL_ONE = "LOCAL_ONE"
    LOCAL_QUORUM = "LOCAL_QUORUM"
    QUORUM = "QUORUM"
    EACH_QUORUM = "EACH_QUORUM"
    ALL = "ALL"
    LOCAL_SERIAL = "LOCAL_SERIAL"
    SERIAL = "SERIAL"


@dataclass(frozen=True, slots=True)
class Statement:
    """CQL with `?` for each value, its tables named with their keyspace, for `USE` and prepared
    statements part ways when a node comes back. `serial` is set for conditional writes alone.
    `timeout` is in seconds.
    """

    cql: str
    level: Level
    serial: Level | None = None
    timeout: float = TIMEOUT


class Unreachable(StoreUnavailable):
    """The data centre did not answer as asked: too few replicas, a time-out, no connection.

    A write may have happened all the same, or may happen later.
    """


def refused(datacenter: str, statement: Statement, error: Exception) -> str:
    """Of a table that is not there. A node that comes back may not know it yet, so that this is
    no reason not to ask another data centre."""
    return (
        f"{datacenter} can't run {statement.cql!r}: {error}; retry later, and if `shortlink"
        " prepare` of this release was never run, run it"
    )


def unanswered(datacenter: str, error: Exception) -> str:
    """Of a statement whose outcome is unknown."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{datacenter} did not answer: {said}; retry later"


class Session(Protocol):
    """Connections to the coordinators of one data centre; local levels mean that one."""

    datacenter: str

    async def execute(self, statement: Statement, values: Sequence[object] = ()) -> Sequence[Row]:
        """The rows, 5,000 at most. Raises Unreachable within the statement's time; never
        retried by itself.
        """

    async def applied(self, statement: Statement, values: Sequence[object] = ()) -> bool:
        """Run a conditional write: whether its condition held. Raises Unreachable: unknown."""

    async def close(self) -> None:
        """Let go of all connections."""


Sessions = Mapping[str, Session]
"""By data centre. One that can't be reached now has a session all the same, which raises."""


def jittered(pause: float, entropy: Entropy) -> float:
    """Between half of `pause` and all of it, so that those who failed together retry apart."""
    return pause * (0.5 + int.from_bytes(entropy(2), "big") / 2**17)


class Connecting(Generic[C]):
    """A driver's connection to one data centre, attempted in the background until it is there.

    Pauses between attempts double up to LAST_PAUSE.
    """

    def __init__(
        self, datacenter: str, connect: Callable[[], Awaitable[C]], entropy: Entropy
    ) -> None:
        self._datacenter = datacenter
        self._connect = connect
        self._entropy = entropy
        self._why = "the first attempt to connect is still under way"
        self._tried = asyncio.Event()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._attempts(), name=f"connecting to {datacenter}")

    async def first(self) -> None:
        """Wait for the first attempt to end, FIRST seconds at most."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._tried.wait(), FIRST)

    def now(self) -> C:
        """The connection. Raises Unreachable when there is none."""
        if self._closing.is_set():
            raise Unreachable(f"the session to {self._datacenter} was closed; open the store again")
        connection = self._task.result() if self._task.done() else None
        if connection is None:
            raise Unreachable(f"{self._datacenter} can't be reached: {self._why}; retry later")
        return connection

    async def close(self) -> C | None:
        """End the attempts; the connection that there is, to be closed. None the second time."""
        if self._closing.is_set():
            return None
        self._closing.set()
        return await self._task

    async def _attempts(self) -> C | None:
        pause = 1.0
        while not self._closing.is_set():
            try:
                return await self._connect()
            except Exception as error:  # of any kind, as of a host's name that can't be resolved
                self._why = f"{type(error).__name__}: {error}"
            finally:
                self._tried.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), jittered(pause, self._entropy))
            pause = min(2 * pause, LAST_PAUSE)
        return None
