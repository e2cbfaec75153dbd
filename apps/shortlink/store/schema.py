"""The SQL store's tables, how rows and domain values turn into each other, and migrations (S6)."""

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Table,
    delete,
    false,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.schema import CreateColumn

from shortlink.links.model import Cause, Event, EventKind, Link, State
from shortlink.store.port import StoreUnsuitable

metadata = MetaData()

# Ordered and told apart by its bytes, which is SQLite's own way; PostgreSQL's is the database's.
Text = sqlalchemy.Text().with_variant(sqlalchemy.Text(collation="C"), "postgresql")

links = Table(
    "links",
    metadata,
    Column("code", Text, primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("permanent", Boolean, nullable=False),
    Column("custom", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("token", Text, nullable=False),
    Column("claim", Text),
    Column("tombstoned_at", BigInteger),
    Column("cause", Text),
    Column("disabled", Text),
    Column("tags", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("former", Text, nullable=False),
    Index("links_by_owner", "owner", "code"),
)

due = Table(
    "due",
    metadata,
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("code", Text, primary_key=True),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    # SQLite numbers rows by itself only where the type is INTEGER, which has 64 bits there.
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("target", Text, nullable=False),
    sqlite_autoincrement=True,
)

claims = Table(
    "claims",
    metadata,
    Column("key", Text, primary_key=True),
    Column("code", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("token", Text, nullable=False),
    Column("cluster", Text, nullable=False, server_default=""),
    Column("uid", Text, nullable=False, server_default=""),
    Column("retain", Boolean, nullable=False, server_default=false()),
)

installation = Table(
    "installation",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
)


def link_row(link: Link) -> dict[str, Any]:
    """The values of `link`'s columns. Labels are JSON, in their order."""
    return {
        "code": link.code,
        "generation": link.generation,
        "version": link.version,
        "state": link.state.value,
        "owner": link.owner,
        "target": link.target,
        "permanent": link.permanent,
        "custom": link.custom,
        "created_at": link.created_at,
        "changed_at": link.changed_at,
        "expires_at": link.expires_at,
        "token": link.token,
        "claim": link.claim,
        "tombstoned_at": link.tombstoned_at,
        "cause": None if link.cause is None else link.cause.value,
        "disabled": link.disabled,
        "tags": json.dumps(link.tags),
        "metadata": json.dumps(link.metadata),
        "former": json.dumps(link.former),
    }


def as_link(row: Row[Any]) -> Link:
    """The link that a whole row of `links` holds, its columns in the table's order."""
    # By place, for a redirect's miss waits for this, and names would take five times as long.
    (
        code,
        generation,
        version,
        state,
        owner,
        target,
        permanent,
        custom,
        created_at,
        changed_at,
        expires_at,
        token,
        claim,
        tombstoned_at,
        cause,
        disabled,
        tags,
        pairs,
        former,
    ) = tuple(row)
    return Link(
        code=code,
        generation=generation,
        version=version,
        state=State(state),
        owner=owner,
        target=target,
        permanent=permanent,
        custom=custom,
        created_at=created_at,
        changed_at=changed_at,
        expires_at=expires_at,
        token=token,
        claim=claim,
        tombstoned_at=tombstoned_at,
        cause=None if cause is None else Cause(cause),
        disabled=disabled,
        tags=_texts(tags),
        metadata=() if pairs == "[]" else tuple((name, text) for name, text in json.loads(pairs)),
        former=_texts(former),
    )


def _texts(kept: str) -> tuple[str, ...]:
    return () if kept == "[]" else tuple(json.loads(kept))


def event_row(event: Event) -> dict[str, Any]:
    """The values of `event`'s columns; the database numbers it."""
    return {
        "id": event.id,
        "kind": event.kind.value,
        "code": event.code,
        "generation": event.generation,
        "version": event.version,
        "at": event.at,
        "owner": event.owner,
        "target": event.target,
    }


def as_event(row: Row[Any]) -> Event:
    """The event that a row of `events` holds."""
    return Event(
        id=row.id,
        kind=EventKind(row.kind),
        code=row.code,
        generation=row.generation,
        version=row.version,
        at=row.at,
        owner=row.owner,
        target=row.target,
    )


def _create_tables(connection: Connection) -> None:
    metadata.create_all(connection)


def _add_whose_claims_are(connection: Connection) -> None:
    there = {column["name"] for column in inspect(connection).get_columns(claims.name)}
    for name in ("cluster", "uid", "retain"):
        if name not in there:
            column = CreateColumn(claims.c[name]).compile(connection)
            connection.exec_driver_sql(f"ALTER TABLE {claims.name} ADD COLUMN {column}")


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_create_tables, _add_whose_claims_are)
"""Step n brings version n to n + 1. Each looks at what is there and does only what is missing,
for it may have been cut off half-way; so on a new database, where the first step makes the
tables as they are today, the later ones find nothing to do."""


def check_version(connection: Connection, where: str) -> int:
    """The schema version found; 0 in an empty database. Writes nothing.

    Raises StoreUnsuitable when the database is of a newer release or another program's.
    """
    tables = inspect(connection).get_table_names()
    if schema_version.name not in tables:
        if tables:
            raise StoreUnsuitable(
                f"{where} is another program's database (it has the table {tables[0]}); name"
                " another"
            )
        return 0
    version = connection.scalar(select(func.max(schema_version.c.version))) or 0
    if version > len(MIGRATIONS):
        raise StoreUnsuitable(
            f"{where} has schema version {version}, of a newer release; this one knows versions"
            f" up to {len(MIGRATIONS)}. Run the newer release, or name another database. Nothing"
            " was changed"
        )
    return version


def migrate(engine: Engine, where: str) -> None:
    """Bring the database to this release's version; each step is a transaction of its own.

    Ends with a write of nothing, so a database that can only be read is found here.
    Raises StoreUnsuitable as `check_version` does, and DBAPIError.
    """
    current = -1
    while current < len(MIGRATIONS):
        with engine.begin() as connection:
            current = check_version(connection, where)
            if current < len(MIGRATIONS):
                # It comes first: it marks the database as ours if a step is cut off.
                schema_version.create(connection, checkfirst=True)
                MIGRATIONS[current](connection)
                connection.execute(insert(schema_version), {"version": current + 1})
            else:
                connection.execute(delete(schema_version).where(false()))
