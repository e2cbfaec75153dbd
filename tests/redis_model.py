"""Redis as far as the cache uses it, in memory: what the real one is compared with, too."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from shortlink.cache.wire import Command, Wire


class Model:
    """The server. Time stands still until `now` (milliseconds) is changed.

    `down` refuses connections and breaks those that are open; `held` keeps replies back while
    it is set, though what was asked is carried out only once it is cleared, as by a process
    that was stopped. `trips` are the commands' names, a list for each round trip.
    """

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now
        self.values: dict[bytes, bytes] = {}
        self.ends: dict[bytes, int] = {}
        self.down = False
        self.refuses: Exception | None = None
        self.running = asyncio.Event()
        self.running.set()
        self.trips: list[list[str]] = []
        self.connections = 0

    async def connect(self) -> Wire:
        if self.down:
            raise RedisConnectionError("refused")
        self.connections += 1
        return _ModelWire(self)

    def carry_out(self, command: Command) -> Any:
        name, *arguments = command
        if self.refuses is not None and name != "TIME":
            return self.refuses
        if name == "TIME":
            return [b"%d" % (self.now // 1_000), b"%d" % (self.now % 1_000 * 1_000 + 999)]
        if name == "MGET":
            return [self._value(key) for key in arguments]
        assert name == "EVAL"
        _script, _keys, key, *rest = arguments
        assert isinstance(key, bytes)
        return self.keep(key, *rest)

    def keep(
        self,
        key: bytes,
        generation: Any,
        version: Any,
        moment: Any,
        text: Any,
        fill_limit: Any,
        bound: Any,
    ) -> int:
        """What newest.lua has to do."""
        age = self.now - moment
        if not 0 <= age <= fill_limit:
            return 0
        held = self._value(key)
        *stamp, _ = (held or b"").split(b" ", 3)
        ours = len(stamp) == 3 and all(word.isdigit() for word in stamp)
        if ours and tuple(map(int, stamp)) > (generation, version, moment):
            return 0
        self.values[key] = f"{generation} {version} {moment} {text}".encode()
        self.ends[key] = self.now + bound - age
        return 1

    def _value(self, key: Any) -> bytes | None:
        return self.values.get(key) if self.now < self.ends.get(key, 2**62) else None


class _ModelWire:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._closed = False

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        model = self._model
        assert not self._closed
        if model.down:
            raise RedisConnectionError("connection lost")
        model.trips.append([str(command[0]) for command in commands])
        await model.running.wait()
        return [model.carry_out(command) for command in commands]

    async def close(self) -> None:
        self._closed = True
