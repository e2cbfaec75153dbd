"""Connections to Redis: several commands a round trip, and a deadline for each."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from redis.asyncio.connection import Connection, parse_url
from redis.exceptions import RedisError, ResponseError

from shortlink.cache.breaker import Breaker

CONNECT_DEADLINE = 2.0
"""Seconds, with TLS and AUTH."""

Command = tuple[str | bytes | int, ...]

_FORM = (
    "write it as redis://host:6379 or rediss://user:password@host:6379, with what is no letter"
    " or digit in user and password as %XX"
)


class Wire(Protocol):
    """A connection. After a call that failed or was cancelled it can only be closed."""

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        """The replies; an error that the server replied with is in its place among them.

        Raises RedisError and OSError.
        """

    async def close(self) -> None:
        """Let go at once of the connection."""


Connect = Callable[[], Awaitable[Wire]]
"""Makes a connection, or raises RedisError or OSError."""


class RedisWire:
    """A connection of the `redis` package, without its pool and its repeating of commands."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        await self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [await self._reply() for _ in commands]

    async def _reply(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


def connector(url: str) -> tuple[str, Connect]:
    """The server's name for messages, without secrets, and what connects to it.

    Raises ValueError, without the URL, when that is none.
    """
    try:
        options: dict[str, Any] = {**parse_url(url)}
        kind = options.pop("connection_class", Connection)
        options |= {
            "driver_info": None,  # a command that Redis 7.0 doesn't know
            "protocol": 2,
            "socket_connect_timeout": CONNECT_DEADLINE,
            "socket_timeout": None,  # whoever calls has a deadline
        }
        if not options.get("host") and not options.get("path"):
            raise ValueError
        kind(**options)
    except (ValueError, TypeError, RedisError):
        raise ValueError(f"the cache's address is no Redis URL; {_FORM}") from None

    async def connect() -> Wire:
        connection = kind(**options)
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return RedisWire(connection)

    where = options.get("path") or f"{options['host']}:{options.get('port', 6379)}"
    return where, connect


class Line:
    """A connection that is made anew when it is lost. One call at a time."""

    def __init__(self, connect: Connect, breaker: Breaker) -> None:
        self._connect = connect
        self._breaker = breaker
        self._wire: Wire | None = None
        self._connecting: asyncio.Task[bool] | None = None

    def ready(self) -> bool:
        """Whether a call may be made now; if there is no connection, begin to make one."""
        if self._breaker.open:
            return False
        if self._wire is None and self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._open())
        return self._wire is not None

    async def opened(self) -> bool:
        """`ready`, once a connection that has to be made was made, or was not."""
        if not self.ready() and self._connecting is not None:
            await asyncio.wait([self._connecting])
        return self.ready()

    async def call(self, commands: Sequence[Command], deadline: float) -> list[Any] | None:
        """The replies by the deadline (seconds), or None, as without a connection."""
        wire = self._wire
        if wire is None:
            return None
        try:
            async with asyncio.timeout(deadline):
                replies = await wire.call(commands)
        except (RedisError, OSError, TimeoutError) as error:
            self._breaker.failed(error)
            await self._drop()
            return None
        except BaseException:  # cancelled: its replies would be taken for another's
            await self._drop()
            raise
        refused = [reply for reply in replies if isinstance(reply, ResponseError)]
        if refused:
            self._breaker.failed(refused[0])
            return None
        self._breaker.worked()
        return replies

    async def close(self) -> None:
        """Let go of the connection."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        await self._drop()

    async def _open(self) -> bool:
        try:
            async with asyncio.timeout(CONNECT_DEADLINE):
                self._wire = await self._connect()
        except (RedisError, OSError, TimeoutError) as error:
            self._breaker.failed(error)
        finally:
            self._connecting = None
        return self._wire is not None

    async def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()
