"""LinkStore on a SQL database, by SQLAlchemy Core (S5).

One thread writes: it takes all the writes that wait and commits them as one transaction, so
that many callers share the cost of a sync. A few threads read, each statement on its own, so
a read sees every write that was acknowledged before it began.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import (
    Connection,
    Engine,
    Insert,
    Row,
    Select,
    Table,
    bindparam,
    delete,
    literal,
    select,
    update,
)
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from shortlink.links.codes import SLOTS
from shortlink.links.model import Event, Link
from shortlink.store import schema
from shortlink.store.port import Claim, Due, StoreError
from shortlink.store.postgres import Postgres
from shortlink.store.schema import as_event, as_link, event_row, link_row
from shortlink.store.sqlite import Sqlite
from shortlink.store.workers import Job, Workers

READERS = 2
_WRITES_PER_COMMIT = 256
_READS_PER_TURN = 16

_ATTEMPTS = 3
_PAUSE = 0.05
"""Seconds, at most and times the attempt's number, before a failed group is tried again."""

_SLOT_KEY = "slot_key"
_POLICY = "policy/"

_Attempt = Callable[[Job, Connection], None]

# Statements are built once: building one costs more than running it.
_links, _due, _events, _claims = schema.links, schema.due, schema.events, schema.claims
_GET = select(_links).where(_links.c.code == bindparam("code"))
_CHANGE = (
    update(_links)
    .where(
        _links.c.code == bindparam("old_code"),
        _links.c.generation == bindparam("old_generation"),
        _links.c.version == bindparam("old_version"),
    )
    .values({column: bindparam(column.name) for column in _links.c if column is not _links.c.code})
)
_BY_OWNER = (
    select(_links)
    .where(_links.c.owner == bindparam("owner"), _links.c.code > bindparam("after"))
    .order_by(_links.c.code)
    .limit(bindparam("most"))
)
_DUE = (
    select(_due)
    .where(_due.c.at <= bindparam("until"))
    .order_by(_due.c.at, _due.c.code)
    .limit(bindparam("most"))
)
_DONE = delete(_due).where(_due.c.at == bindparam("at"), _due.c.code == bindparam("code"))
_PENDING = select(_events).order_by(_events.c.seq).limit(bindparam("most"))
_PUBLISHED = delete(_events).where(_events.c.id == bindparam("published"))
_CLAIM = select(_claims).where(_claims.c.key == bindparam("key"))
_CLAIMS = (
    select(_claims)
    .where(_claims.c.key > bindparam("after"))
    .order_by(_claims.c.key)
    .limit(bindparam("most"))
)
_SLOT_KEY_IN_FORCE = select(schema.installation.c.value).where(
    schema.installation.c.name == _SLOT_KEY
)
_KEEP_POLICY = (
    update(schema.installation)
    .where(schema.installation.c.name == bindparam("kept"))
    .values(value=bindparam("new"))
)
_POLICIES = select(schema.installation).where(schema.installation.c.name.startswith(_POLICY))
_PING = select(literal(1))


class Database(Protocol):
    """What differs from one database to the next. `where` names it in messages; `writer` makes
    transactions, and `reader` lets each statement stand alone.
    """

    where: str
    writer: Engine
    reader: Engine

    def add(self, table: Table) -> Insert:
        """Insert rows into `table`; a row that is there already stays as it is."""

    def check_place(self) -> None:
        """Raise StoreUnavailable if what was opened is no longer what its name leads to."""

    def passing(self, error: DBAPIError) -> bool:
        """Whether the same calls may well succeed if they are repeated now."""

    def explain(self, error: DBAPIError) -> StoreError:
        """What a failed call comes to, with what to do about it."""

    def dispose(self) -> None:
        """Close all connections."""


def open_sql_store(path: Path, *, as_it_is: bool = False) -> "SqlStore":
    """The store in the SQLite file at `path`, made or brought to this release's version.

    `as_it_is`: it has to be there and of this version, and opening it writes nothing.

    Blocks for as long as that takes, and up to `sqlite.LOCK_WAIT` for the file's lock.
    Raises StoreUnsuitable, StoreUnavailable and StoreFull.
    """
    database = Sqlite(path, READERS)
    try:
        if as_it_is:
            database.check()
        else:
            database.prepare()
    except BaseException:
        database.dispose()
        raise
    return SqlStore(database)


def open_postgres_store(url: str) -> "SqlStore":
    """The store in the PostgreSQL database at `url`, brought to this release's version.

    Blocks for as long as that takes. Raises StoreUnsuitable, StoreUnavailable and StoreFull;
    no message has the password.
    """
    database = Postgres(url, READERS)
    try:
        database.prepare()
    except BaseException:
        database.dispose()
        raise
    return SqlStore(database)


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, _PAUSE * attempt))  # noqa: S311


class SqlStore:
    """Keeps the promises of `LinkStore` in `database`, whose schema is up to date.

    `pause` is called in a worker's thread between attempts, with the number of those made.
    """

    def __init__(self, database: Database, pause: Callable[[int], None] = _pause) -> None:
        self._database = database
        self._pause = pause
        self._writer = Workers(
            database.where, 1, _WRITES_PER_COMMIT, partial(self._serve, database.writer, _write)
        )
        self._readers = Workers(
            database.where, READERS, _READS_PER_TURN, partial(self._serve, database.reader, _read)
        )
        self._add_link, self._add_due, self._add_event, self._add_claim, self._add_installation = (
            database.add(table).execution_options(preserve_rowcount=True)
            for table in (_links, _due, _events, _claims, schema.installation)
        )

    # Links

    async def install(self, slot_key: bytes) -> bytes:
        def write(connection: Connection) -> bytes:
            connection.execute(self._add_installation, {"name": _SLOT_KEY, "value": slot_key})
            key: bytes = connection.scalars(_SLOT_KEY_IN_FORCE).one()
            return key

        return await self._writer.run(write)

    async def keep_policy(self, region: str, text: str) -> None:
        def write(connection: Connection) -> None:
            row = {"name": f"{_POLICY}{region}", "value": text.encode()}
            if connection.execute(self._add_installation, row).rowcount == 0:
                connection.execute(_KEEP_POLICY, {"kept": row["name"], "new": row["value"]})

        await self._writer.run(write)

    async def policies(self) -> Mapping[str, str]:
        rows = await self._all(_POLICIES, {})
        return {row.name.removeprefix(_POLICY): row.value.decode() for row in rows}

    async def create(self, link: Link, events: Sequence[Event], due: Sequence[int]) -> Link:
        def write(connection: Connection) -> Link:
            if connection.execute(self._add_link, link_row(link)).rowcount == 0:
                return as_link(connection.execute(_GET, {"code": link.code}).one())
            self._keep(connection, events, [Due(at, link.code) for at in due])
            return link

        return await self._writer.run(write)

    async def change(
        self, old: Link, new: Link, events: Sequence[Event], due: Sequence[int]
    ) -> Link:
        def write(connection: Connection) -> Link:
            row = link_row(new)
            row["old_code"] = row.pop("code")
            row |= {"old_generation": old.generation, "old_version": old.version}
            if connection.execute(_CHANGE, row).rowcount == 0:
                held = connection.execute(_GET, {"code": old.code}).one_or_none()
                if held is None:
                    raise KeyError(old.code)
                return as_link(held)
            self._keep(connection, events, [Due(at, new.code) for at in due])
            return new

        return await self._writer.run(write)

    async def get(self, code: str) -> Link | None:
        row = await self._one(_GET, {"code": code})
        return None if row is None else as_link(row)

    async def views(self, code: str) -> Mapping[str, Link | StoreError | None]:
        return {}

    async def by_owner(self, owner: str, after: str, limit: int) -> Sequence[Link]:
        rows = await self._all(_BY_OWNER, {"owner": owner, "after": after, "most": limit})
        return [as_link(row) for row in rows]

    # Hints

    async def due(self, until: int, limit: int) -> Sequence[Due]:
        rows = await self._all(_DUE, {"until": until, "most": limit})
        return [Due(row.at, row.code) for row in rows]

    async def done(self, due: Sequence[Due], again: Sequence[Due]) -> None:
        def write(connection: Connection) -> None:
            if due:
                connection.execute(_DONE, [{"at": hint.at, "code": hint.code} for hint in due])
            self._keep(connection, (), again)

        await self._writer.run(write)

    # Events

    async def announce(self, event: Event) -> None:
        await self._writer.run(lambda connection: self._keep(connection, (event,), ()))

    async def pending(self, limit: int) -> Sequence[Event]:
        return [as_event(row) for row in await self._all(_PENDING, {"most": limit})]

    async def published(self, ids: Sequence[str]) -> None:
        def write(connection: Connection) -> None:
            if ids:
                connection.execute(_PUBLISHED, [{"published": id_} for id_ in ids])

        await self._writer.run(write)

    # Claims

    async def claim(self, claim: Claim) -> Claim:
        def write(connection: Connection) -> Claim:
            # Another process may release the claim between the two statements.
            while connection.execute(self._add_claim, asdict(claim)).rowcount == 0:
                held = connection.execute(_CLAIM, {"key": claim.key}).one_or_none()
                if held is not None:
                    return _as_claim(held)
            return claim

        return await self._writer.run(write)

    async def reclaim(self, old: Claim, new: Claim | None) -> bool:
        def write(connection: Connection) -> bool:
            # Looked at only afterwards: then it is known whether another call was the same.
            same = [column == getattr(old, column.name) for column in _claims.c]
            if new is None:
                done = connection.execute(delete(_claims).where(*same))
            else:
                done = connection.execute(update(_claims).where(*same).values(asdict(new)))
            if done.rowcount == 1:
                return True
            row = connection.execute(_CLAIM, {"key": old.key}).one_or_none()
            return (None if row is None else _as_claim(row)) == new

        return await self._writer.run(write)

    async def claims(self, after: str, limit: int) -> Sequence[Claim]:
        rows = await self._all(_CLAIMS, {"after": after, "most": limit})
        return [_as_claim(row) for row in rows]

    async def find_claim(self, key: str) -> Claim | None:
        row = await self._one(_CLAIM, {"key": key})
        return None if row is None else _as_claim(row)

    # The store itself

    async def slots(self) -> Collection[int]:
        return range(SLOTS)

    async def ping(self) -> None:
        await self._one(_PING, {})

    async def close(self) -> None:
        try:
            await self._writer.close()
        finally:
            await self._readers.close()
            self._database.dispose()

    def _keep(self, connection: Connection, events: Sequence[Event], due: Sequence[Due]) -> None:
        if events:
            connection.execute(self._add_event, [event_row(event) for event in events])
        if due:
            connection.execute(self._add_due, [{"at": hint.at, "code": hint.code} for hint in due])

    async def _one(self, statement: Select[Any], values: dict[str, Any]) -> Row[Any] | None:
        return await self._readers.run(
            lambda connection: connection.execute(statement, values).one_or_none()
        )

    async def _all(self, statement: Select[Any], values: dict[str, Any]) -> Sequence[Row[Any]]:
        return await self._readers.run(
            lambda connection: connection.execute(statement, values).all()
        )

    def _serve(self, engine: Engine, work: _Attempt, jobs: Sequence[Job]) -> None:
        # Repeating is safe though the outcome is unknown: LinkStore's writes promise it.
        for attempt in range(1, _ATTEMPTS + 1):
            for job in jobs:
                job.result = job.error = None
            try:
                with engine.begin() as connection:
                    self._database.check_place()
                    for job in jobs:
                        work(job, connection)
                return
            except DBAPIError as error:
                if attempt == _ATTEMPTS or not self._database.passing(error):
                    for job in jobs:
                        if job.error is None:
                            job.error = self._database.explain(error)
                            job.error.__cause__ = error
                    return
                self._pause(attempt)
                if len(jobs) > 1 and not error.connection_invalidated:
                    # Two groups that cross each other's rows would do so again.
                    for job in jobs:
                        self._serve(engine, work, [job])
                    return


def _read(job: Job, connection: Connection) -> None:
    """Do `job`. Raises what is no fault of its own, for that may concern the whole group.

    A value that the database can't take is a ValueError.
    """
    try:
        job.result = job.work(connection)
    except (DataError, IntegrityError) as error:
        job.error = ValueError(str(error.orig))
        job.error.__cause__ = error
    except DBAPIError:
        raise
    except Exception as error:
        job.error = error


def _write(job: Job, connection: Connection) -> None:
    """As `_read`; what a failed job wrote is undone, and the others' writes stay."""
    # In plain SQL, because SQLAlchemy's own savepoints would take a third of a create's time.
    connection.exec_driver_sql("SAVEPOINT job")
    _read(job, connection)
    if job.error is not None:
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT job")
    connection.exec_driver_sql("RELEASE SAVEPOINT job")


def _as_claim(row: Row[Any]) -> Claim:
    return Claim(*tuple(row))
