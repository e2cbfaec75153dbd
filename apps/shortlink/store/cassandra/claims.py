"""Objects' claims on codes, each a conditional write at SERIAL (DESIGN: no second link)."""

import asyncio
from collections.abc import Callable, Sequence
from hashlib import blake2b

from shortlink.store.cassandra.conditional import Conditional, there
from shortlink.store.cassandra.session import Level, Row, Session, Statement
from shortlink.store.port import Claim

BUCKETS = 64
"""Partitions. Conditional writes of one partition wait for one another."""

_COLUMNS = ("code", "generation", "creation", "cluster", "uid", "retain")


class Claims:
    """The table `claims`, through the data centre that `seat` names for each call."""

    def __init__(
        self, seat: Callable[[], Session], keyspace: str, conditional: Conditional
    ) -> None:
        self._seat = seat
        self._conditional = conditional
        self._table = table = f"{keyspace}.claims"
        self._levels = levels = (Level.LOCAL_QUORUM, Level.SERIAL)
        held = f"bucket = ? AND key = ? IF {' AND '.join(f'{name} = ?' for name in _COLUMNS)}"
        new = ", ".join(f"{name} = ?" for name in _COLUMNS)
        self._replace = Statement(f"UPDATE {table} SET {new} WHERE {held}", *levels)
        self._release = Statement(f"DELETE FROM {table} WHERE {held}", *levels)
        columns = f"SELECT key, {', '.join(_COLUMNS)} FROM {table}"
        self._one = Statement(f"{columns} WHERE bucket = ? AND key = ?", Level.SERIAL)
        self._page = Statement(
            f"{columns} WHERE bucket = ? AND key > ? LIMIT ?", Level.LOCAL_QUORUM
        )

    async def claim(self, claim: Claim) -> Claim:
        """As LinkStore has it."""
        session = self._seat()
        _, held = await self._conditional.write(
            session, *self._add(claim), there(lambda: self._find(session, claim.key))
        )
        return claim if held is None else held

    async def reclaim(self, old: Claim, new: Claim | None) -> bool:
        """As LinkStore has it."""
        session = self._seat()
        where = (_bucket(old.key), old.key, *_values(old))
        won, held = await self._conditional.write(
            session,
            self._release if new is None else self._replace,
            where if new is None else (*_values(new), *where),
            lambda: self._find(session, old.key),
        )
        return won or held == new

    async def find(self, key: str) -> Claim | None:
        """The claim in force for `key`, or None."""
        return await self._find(self._seat(), key)

    async def page(self, after: str, limit: int) -> Sequence[Claim]:
        """Claims by key, starting behind the key `after`."""
        session = self._seat()

        async def rows(bucket: int) -> Sequence[Row]:
            return await session.execute(self._page, (bucket, after, limit))

        pages = await asyncio.gather(*(rows(bucket) for bucket in range(BUCKETS)))
        # By code point, as Cassandra orders text.
        claims = sorted((_claim(row) for page in pages for row in page), key=lambda each: each.key)
        return claims[:limit]

    async def _find(self, session: Session, key: str) -> Claim | None:
        rows = await session.execute(self._one, (_bucket(key), key))
        return _claim(rows[0]) if rows else None

    def _add(self, claim: Claim) -> tuple[Statement, Sequence[object]]:
        # A null that is inserted is a tombstone, which every page would read.
        row = {
            name: value
            for name, value in zip(_COLUMNS, _values(claim), strict=True)
            if value is not None
        }
        cql = (
            f"INSERT INTO {self._table} (bucket, key, {', '.join(row)})"
            f" VALUES ({', '.join('?' * (len(row) + 2))}) IF NOT EXISTS"
        )
        return Statement(cql, *self._levels), (_bucket(claim.key), claim.key, *row.values())


def _bucket(key: str) -> int:
    return blake2b(key.encode(), digest_size=1).digest()[0] % BUCKETS


def _values(claim: Claim) -> tuple[object, ...]:
    """By column. What is as by default is null, as in the rows of version 1."""
    whose = (claim.cluster or None, claim.uid or None, claim.retain or None)
    return (claim.code, claim.generation, claim.token, *whose)


def _claim(row: Row) -> Claim:
    key, code, generation, token, cluster, uid, retain = row
    return Claim(key, code, generation, token, cluster or "", uid or "", retain or False)
