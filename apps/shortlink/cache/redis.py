"""The cache that a region's processes share (K1, K5): Redis, where the newest record stays.

A value is `GENERATION VERSION MOMENT RECORD`. The moment is Redis's own time before the store
read that found the record began: a look-up gives it out, and the fill that follows it brings it
back. So ages are counted by Redis alone, on one clock, and a command that was long under way
makes nothing younger. A reader takes from the moment at which it asked the age that Redis says.

Redirects are answered from here. What redirects nowhere is kept too, as a marker that no older
record gets past, and nothing is ever deleted; whoever finds a marker reads the store. A record
goes when it is CACHE_BOUND old, and none is put back that was read more than FILL_LIMIT ago.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from shortlink.cache.breaker import Breaker
from shortlink.cache.memory import FILL_LIMIT
from shortlink.cache.second import Looked
from shortlink.cache.wire import Command, Connect, Line, connector
from shortlink.clock import Clock
from shortlink.links.answers import answer
from shortlink.links.model import Link
from shortlink.links.policy import CACHE_BOUND

DEADLINE = 0.05
WRITE_DEADLINE = 1.0
"""Seconds for a round trip that a visitor waits for, and for one that nobody does."""

QUEUE = 1_024
"""Writes that may wait."""

_WRITES_PER_TRIP = 64
_PREFIX = b"shortlink:1:"  # of another form of values, another number

_NEWEST = Path(__file__).with_name("newest.lua").read_text()
_TIME: Command = ("TIME",)
_NOT_ASKED = Looked()

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Counts:
    """Since the start. Of look-ups, each in one of: `hits`, `misses`, `unreadable` (values that
    are no record of ours), `errors` (no answer in time), `skipped` (not asked). Of writes:
    `kept`, `refused` (too old, or newer was kept), `write_errors`, `write_skipped`, and
    `dropped`, for which the queue had no room.
    """

    hits: int = 0
    misses: int = 0
    unreadable: int = 0
    errors: int = 0
    skipped: int = 0
    kept: int = 0
    refused: int = 0
    write_errors: int = 0
    write_skipped: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class _Write:
    """A record, and when its read began: `moment` on Redis's clock, or `began` on ours."""

    link: Link
    moment: int | None
    began: int


def open_cache(
    url: str, clock: Clock, to_text: Callable[[Link], str], from_text: Callable[[str], Link]
) -> "RedisCache":
    """The cache at `url` (`redis://` or `rediss://`); it connects when it is first used.

    `to_text` and `from_text` make a record of a link and back, the latter with ValueError for
    other texts. Raises ValueError, without the URL, when that is none.
    """
    where, connect = connector(url)
    return RedisCache(where, connect, clock, to_text, from_text, random.random)


class RedisCache:
    """A SecondLevel, and a listener of Management. Belongs to the loop that it is used in.

    `chance` gives numbers from 0 to 1, for the jitter of pauses while Redis doesn't answer.
    """

    def __init__(
        self,
        where: str,
        connect: Connect,
        clock: Clock,
        to_text: Callable[[Link], str],
        from_text: Callable[[str], Link],
        chance: Callable[[], float],
    ) -> None:
        self.counts = Counts()
        self.breakers = {
            line: Breaker(f"{where} ({line})", clock.steady, chance) for line in ("reads", "writes")
        }
        self._clock = clock
        self._to_text = to_text
        self._from_text = from_text
        self._reads = Line(connect, self.breakers["reads"])
        self._writes = Line(connect, self.breakers["writes"])
        self._asked: list[tuple[str, asyncio.Future[Looked]]] = []
        self._waiting: deque[_Write] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    async def get(self, code: str) -> Looked:
        """What is kept for `code`, if it redirects; all who ask at once share a round trip.

        It takes DEADLINE at most, and as much again when a round trip was just under way.
        """
        if self._closed or not self._reads.ready():
            self.counts.skipped += 1
            return _NOT_ASKED
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Looked] = loop.create_future()
        self._asked.append((code, future))
        if self._reading is None:
            self._reading = loop.create_task(self._read())
        return await future

    def fill(self, link: Link, moment: int) -> None:
        """Keep what the store read that followed a look-up has found."""
        self._add(_Write(link, moment, 0))

    def changed(self, link: Link) -> None:
        """Keep what `link` was just changed to (K1, K4), soon: nobody waits for it.

        Its age counts from the decision, as it does in memory.
        """
        deciding = max(0, self._clock.wall() - link.changed_at)
        self._add(_Write(link, None, self._clock.steady() - deciding))

    async def close(self) -> None:
        """Stop, and let go of the connections. What still waits is not written."""
        self._closed = True
        tasks = [task for task in (self._reading, self._writing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, future in self._asked:
            if not future.done():
                future.set_result(_NOT_ASKED)
        await self._reads.close()
        await self._writes.close()

    # Reading

    async def _read(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, []
                await self._look_up(asked)
        finally:
            self._reading = None

    async def _look_up(self, asked: list[tuple[str, asyncio.Future[Looked]]]) -> None:
        looked = [_NOT_ASKED] * len(asked)
        try:
            if not self._reads.ready():
                self.counts.skipped += len(asked)
                return
            sent = self._clock.steady()
            keys = [_key(code) for code, _ in asked]
            replies = await self._reads.call([("MGET", *keys), _TIME], DEADLINE)
            if replies is None:
                self.counts.errors += len(asked)
                return
            values, now = replies[0], _moment(replies[1])
            looked = [
                self._looked(value, code, now, sent)
                for value, (code, _) in zip(values, asked, strict=True)
            ]
        except Exception:
            _log.exception("look-up in the cache failed unexpectedly")
            self.counts.errors += len(asked)
        finally:
            for (_, future), found in zip(asked, looked, strict=True):
                if not future.done():  # who asked may have gone
                    future.set_result(found)

    def _looked(self, value: bytes | None, code: str, now: int, sent: int) -> Looked:
        missed = Looked(moment=now)
        if value is None:
            self.counts.misses += 1
            return missed
        try:
            generation, version, moment, text = value.split(b" ", 3)
            link = self._from_text(text.decode())
            if link.code != code or link.stamp != (int(generation), int(version)):
                raise ValueError(f"it is of {link.code} {link.stamp}")
            age = now - int(moment)
        except ValueError:
            self.counts.unreadable += 1
            return missed
        # An age below 0: Redis's clock was set back, and what the age really is nobody knows.
        if 0 <= age < CACHE_BOUND and answer(link, self._clock.wall()).target:
            self.counts.hits += 1
            return Looked(link, sent - age, now)
        self.counts.misses += 1
        return missed

    # Writing

    def _add(self, write: _Write) -> None:
        if self._closed or len(self._waiting) >= QUEUE:
            self.counts.dropped += 1
            return
        self._waiting.append(write)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting:
                most = min(_WRITES_PER_TRIP, len(self._waiting))
                await self._keep([self._waiting.popleft() for _ in range(most)])
        except Exception:
            _log.exception("write to the cache failed unexpectedly")
        finally:
            self._writing = None

    async def _keep(self, writes: list[_Write]) -> None:
        if not await self._writes.opened():
            self.counts.write_skipped += len(writes)
            return
        ours = 0
        replies: list[Any] | None
        if any(write.moment is None for write in writes):
            replies = await self._writes.call([_TIME], WRITE_DEADLINE)
            if replies is None:
                self.counts.write_errors += len(writes)
                return
            # Our steady clock's zero on Redis's clock, or earlier.
            ours = _moment(replies[0]) - self._clock.steady()
        replies = await self._writes.call(
            [self._command(write, ours) for write in writes], WRITE_DEADLINE
        )
        if replies is None:
            self.counts.write_errors += len(writes)
            return
        self.counts.kept += replies.count(1)
        self.counts.refused += replies.count(0)

    def _command(self, write: _Write, ours: int) -> Command:
        link = write.link
        moment = ours + write.began if write.moment is None else write.moment
        return (
            *("EVAL", _NEWEST, 1, _key(link.code)),
            *(link.generation, link.version, moment, self._to_text(link)),
            *(FILL_LIMIT, CACHE_BOUND),
        )


def _key(code: str) -> bytes:
    return _PREFIX + code.encode("ascii")


def _moment(time: list[bytes]) -> int:
    seconds, microseconds = time
    return int(seconds) * 1_000 + int(microseconds) // 1_000
