"""Hints in the order of time: buckets of an hour or less, each in a few partitions.

A bucket is announced in an index before the first hint goes into it, so that whoever looks for
what is due finds all buckets without scanning the table. Hints are dropped one by one, each
under the id of its own writing, so that dropping one never takes a later one with it. A bucket
leaves the index after it was read in every data centre and found empty, an hour after its
end and after the last writing into it.

Reads are the home region's. Every ten seconds they ask every data centre, which finds hints that
were written while this one was away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from zlib import crc32

from shortlink.clock import Clock
from shortlink.links.codes import Entropy
from shortlink.links.policy import HOUR, MINUTE, SECOND
from shortlink.store.cassandra.reach import Reach, together
from shortlink.store.cassandra.session import Level, Sessions, Unreachable

SHARDS = 4
"""Partitions of a bucket: spreads an hour of many hints over the nodes."""

_EVERYWHERE = 10 * SECOND
_PERIOD = 10 * MINUTE
_ALWAYS = ""
"""The id under which a bucket is announced whose time is still to come."""

_KEPT_OPEN = HOUR
_REMEMBERED = 10_000
_OPENINGS = 5_000

HINTS = """CREATE TABLE IF NOT EXISTS {keyspace}.hints (
    kind text, bucket text, at bigint, code text, id text, ids text, event text,
    PRIMARY KEY ((kind, bucket), at, code, id)
) WITH gc_grace_seconds = 10800"""
# A dropped hint that comes back does no harm, so its tombstone is kept for no longer than
# Cassandra keeps its own hints for a node that is away.


@dataclass(frozen=True, slots=True)
class Hint:
    """That something is to be done about `code` at `at` (ms UTC).

    `id` tells each writing from every other, in the order of one process's. `ids` are events
    that wait in the code's row, `event` is the text of one that no row carries.
    """

    at: int
    code: str
    id: str
    ids: tuple[str, ...] = ()
    event: str = ""


class Buckets:
    """The hints of one `kind`, in buckets of `width` ms."""

    def __init__(
        self,
        sessions: Sessions,
        home: str,
        keyspace: str,
        clock: Clock,
        entropy: Entropy,
        kind: str,
        width: int,
    ) -> None:
        self._reach = Reach(sessions, home, clock)
        self._clock = clock
        self._kind = kind
        self._width = width
        self._writer = entropy(8).hex()
        self._numbers = count()
        self._announced: set[tuple[int, str]] = set()
        self._empty: set[int] = set()
        self._everywhere_at: int | None = None
        hints = f"{keyspace}.hints"
        self._put = (
            f"INSERT INTO {hints} (kind, bucket, at, code, id, ids, event)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        self._take = (
            f"SELECT at, code, id, ids, event FROM {hints}"
            " WHERE kind = ? AND bucket = ? AND at <= ? LIMIT ?"
        )
        self._find = (
            f"SELECT at, code, id, ids, event FROM {hints}"
            f" WHERE kind = ? AND bucket = ? AND at = ? AND code = ? LIMIT {_OPENINGS}"
        )
        self._drop = (
            f"DELETE FROM {hints} WHERE kind = ? AND bucket = ? AND at = ? AND code = ? AND id = ?"
        )

    def hint(self, at: int, code: str, ids: tuple[str, ...] = (), event: str = "") -> Hint:
        """A hint that was never written, to be added."""
        return Hint(at, code, f"{next(self._numbers):012}.{self._writer}", ids, event)

    async def add(self, hints: Sequence[Hint]) -> None:
        """Keep `hints`, their buckets announced before them. Raises Unreachable."""
        buckets = {self._announcement(hint.at) for hint in hints}
        await together(
            self._write("open", self._kind, Hint(bucket, "", id_))
            for bucket, id_ in buckets - self._announced
        )
        if len(self._announced) > _REMEMBERED:
            self._announced.clear()
        self._announced |= buckets
        self._empty -= {bucket for bucket, _ in buckets}
        await together(self._write(self._kind, self._partition(hint), hint) for hint in hints)

    async def read(self, until: int, limit: int) -> list[Hint]:
        """At most `limit` hints with `at` <= `until`, earliest first. Raises Unreachable."""
        now = self._clock.steady()
        if self._everywhere_at is None or now - self._everywhere_at >= _EVERYWHERE:
            self._everywhere_at = now
            try:
                return await self._read(until, limit, Level.EACH_QUORUM)
            except Unreachable:
                pass  # one is away: its hints come when it is back, and all buckets wait
        return await self._read(until, limit, Level.LOCAL_QUORUM)

    async def find(self, at: int, code: str) -> list[Hint]:
        """All hints for `code` at just `at`. Raises Unreachable."""
        partition = self._partition(Hint(at, code, ""))
        values = (self._kind, partition, at, code)
        rows = await self._reach.run(self._find, values, Level.LOCAL_QUORUM)
        return [_as_hint(*row) for row in rows]

    async def drop(self, hints: Sequence[Hint]) -> None:
        """Forget `hints`, as they were read or written. Raises Unreachable."""
        await together(self._delete(self._kind, self._partition(hint), hint) for hint in hints)

    async def _read(self, until: int, limit: int, level: Level) -> list[Hint]:
        values = ("open", self._kind, until // self._width, _OPENINGS)
        openings = [_as_hint(*row) for row in await self._reach.run(self._take, values, level)]
        everywhere = level is Level.EACH_QUORUM
        found: list[Hint] = []
        for number in sorted({opening.at for opening in openings}):
            if len(found) >= limit:
                break
            if number in self._empty and not everywhere:
                continue
            shards = await together(
                self._reach.run(self._take, (self._kind, f"{number}.{shard}", until, limit), level)
                for shard in range(SHARDS)
            )
            hints = [_as_hint(*row) for rows in shards for row in rows]
            found += sorted(hints, key=lambda hint: (hint.at, hint.id))
            # What was not asked for may be in it still.
            over = min(until, self._clock.wall()) - (number + 1) * self._width
            if everywhere and not hints and over > MINUTE:
                self._empty.add(number)
                if over > _KEPT_OPEN:
                    await self._close(number, openings)
        return found[:limit]

    async def _close(self, number: int, openings: Sequence[Hint]) -> None:
        late = self._clock.wall() - _PERIOD - _KEPT_OPEN
        old = [
            opening
            for opening in openings
            if opening.at == number and (opening.id == _ALWAYS or int(opening.id) * _PERIOD < late)
        ]
        await together(self._delete("open", self._kind, opening) for opening in old)
        if len(old) == sum(opening.at == number for opening in openings):
            self._empty.discard(number)

    def _announcement(self, at: int) -> tuple[int, str]:
        # A bucket that is about to leave the index is announced anew, under the time of writing,
        # for the one who closes it may have looked into it just before.
        now, number = self._clock.wall(), at // self._width
        if number * self._width > now + _KEPT_OPEN:
            return number, _ALWAYS
        return number, str(now // _PERIOD)

    def _partition(self, hint: Hint) -> str:
        return f"{hint.at // self._width}.{crc32(hint.code.encode()) % SHARDS}"

    async def _write(self, kind: str, bucket: str, hint: Hint) -> None:
        values = (kind, bucket, hint.at, hint.code, hint.id, " ".join(hint.ids), hint.event)
        await self._reach.run(self._put, values, Level.LOCAL_QUORUM)

    async def _delete(self, kind: str, bucket: str, hint: Hint) -> None:
        values = (kind, bucket, hint.at, hint.code, hint.id)
        await self._reach.run(self._drop, values, Level.LOCAL_QUORUM)


def _as_hint(at: int, code: str, id_: str, ids: str, event: str) -> Hint:
    return Hint(at, code, id_, tuple(ids.split()), event)
