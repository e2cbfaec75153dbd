"""Hints, written before the row they are about: what falls due, whose it is, what to publish.

A hint without a row is harmless, for the row decides. All are plain writes, through another
data centre when the home region's does not answer.
"""

from collections.abc import Sequence

from shortlink.clock import Clock
from shortlink.links.codes import Entropy
from shortlink.links.model import Event, Link
from shortlink.links.policy import HOUR, MINUTE
from shortlink.store.cassandra.buckets import HINTS, Buckets, Hint
from shortlink.store.cassandra.reach import Reach, together
from shortlink.store.cassandra.session import Level, Sessions
from shortlink.store.port import Due

TABLES = (HINTS,)

OUTBOX_WIDTH = 10 * MINUTE


class Hints:
    """The hints that a process in the region `home` keeps and works through."""

    def __init__(
        self, sessions: Sessions, home: str, keyspace: str, clock: Clock, entropy: Entropy
    ) -> None:
        self._clock = clock
        self._reach = Reach(sessions, home, clock)
        self._due = Buckets(sessions, home, keyspace, clock, entropy, "due", HOUR)
        self._outbox = Buckets(
            sessions, home, keyspace, clock, entropy, f"outbox.{home}", OUTBOX_WIDTH
        )
        self._seen: dict[Due, list[Hint]] = {}
        # The owner index is one partition for each owner: a single bucket, `at` 0.
        self._put_owner = (
            f"INSERT INTO {keyspace}.hints (kind, bucket, at, code, id)"
            " VALUES ('owner', ?, 0, ?, '')"
        )
        self._take_owner = (
            f"SELECT code FROM {keyspace}.hints"
            " WHERE kind = 'owner' AND bucket = ? AND at = 0 AND code > ? LIMIT ?"
        )

    async def announce(self, link: Link, events: Sequence[Event], due: Sequence[int]) -> None:
        """Before `link` is written: list it under its owner, its due times and its events."""
        told = tuple(event.id for event in events)
        outbox = [self._outbox.hint(self._clock.wall(), link.code, told)] if told else []
        await together(
            (
                self._own(link),
                self._due.add([self._due.hint(at, link.code) for at in due]),
                self._outbox.add(outbox),
            )
        )

    async def due(self, until: int, limit: int) -> Sequence[Due]:
        """Hints with `at` <= `until`, earliest first. Raises Unreachable."""
        self._seen = {}
        for hint in await self._due.read(until, limit):
            self._seen.setdefault(Due(hint.at, hint.code), []).append(hint)
        return sorted(self._seen, key=lambda due: (due.at, due.code))

    async def done(self, due: Sequence[Due], again: Sequence[Due]) -> None:
        """Drop `due` as they were last read, after `again` were kept. Raises Unreachable."""
        old = await together(self._written(one) for one in due)
        await self._due.add([self._due.hint(one.at, one.code) for one in set(again)])
        await self._due.drop([hint for hints in old for hint in hints])

    async def owned(self, owner: str, after: str, limit: int) -> Sequence[str]:
        """Codes that `owner` held once, behind `after`; each one's row says who holds it now."""
        values = (owner, after, limit)
        rows = await self._reach.run(self._take_owner, values, Level.LOCAL_QUORUM)
        return [code for (code,) in rows]

    async def _own(self, link: Link) -> None:
        await self._reach.run(self._put_owner, (link.owner, link.code), Level.LOCAL_QUORUM)

    async def _written(self, due: Due) -> list[Hint]:
        # What came since they were read stays.
        seen = self._seen.pop(due, None)
        return await self._due.find(due.at, due.code) if seen is None else seen
