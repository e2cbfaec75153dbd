"""What is PostgreSQL's own in the SQL store: its address, time-outs, and what its errors mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Engine, Insert, Table, create_engine, event, make_url
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import ArgumentError, DBAPIError, ProgrammingError

from shortlink.store.port import StoreError, StoreFull, StoreUnavailable, StoreUnsuitable
from shortlink.store.schema import migrate

if TYPE_CHECKING:
    from psycopg import Connection

CONNECT_TIMEOUT = 2
"""Seconds; libpq takes no less."""

STATEMENT_TIMEOUT = 4_000
LOCK_TIMEOUT = 2_000
SILENCE_TIMEOUT = 10_000
"""Milliseconds. The last ends a transaction whose process went silent, so that its locks go."""

MIGRATION_TIMEOUT = 60_000
"""Milliseconds to wait while another process brings the database to this release's version."""

_MIGRATING = int.from_bytes(b"SHORTLNK")
"""The advisory lock of a process that does so."""

# A server that vanished without a word is noticed after some 10 s, not the system's hours.
_NOTICE_SILENCE = {
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

# SQLSTATE (https://www.postgresql.org/docs/15/errcodes-appendix.html)
_PASSING = {"40001", "40P01"}  # serialization failure, deadlock
_FULL = "53100"
_TOO_SLOW = {"57014", "55P03"}  # the time-outs of statements and locks
_READ_ONLY = "25006"
_NOT_ALLOWED = "42501"

_URL_FORM = (
    "write it as postgresql://user:password@host:5432/database, with what is no letter or digit"
    " in user and password as %XX"
)


class Postgres:
    """The database at `url`: `writer` makes transactions (read committed), `reader` has none.

    A commit returns after the server's log was synced. Connections that broke are replaced
    when they are next needed, so a server that comes back is used again.
    """

    def __init__(self, url: str, readers: int) -> None:
        """Connects to nothing yet. Raises StoreUnsuitable; neither it nor `where` has secrets."""
        self._url = _parsed(url)
        # The query, too, can have secrets.
        self.where = self._url.set(query={}, drivername="postgresql").render_as_string()
        self.writer = self._engine(1)
        self.reader = self._engine(readers, isolation_level="AUTOCOMMIT")

    def _engine(self, connections: int, **options: Any) -> Engine:
        engine = create_engine(
            self._url,
            connect_args={"connect_timeout": CONNECT_TIMEOUT, **_NOTICE_SILENCE},
            pool_size=connections,
            max_overflow=0,
            **options,
        )
        event.listen(engine, "connect", _configure)
        return engine

    def add(self, table: Table) -> Insert:
        """Insert rows into `table`; a row that is there already stays as it is."""
        return insert(table).on_conflict_do_nothing()

    def prepare(self) -> None:
        """Make the database a store of this release's version, or leave it as it is and raise.

        Of several processes that do so at once, one goes first. Raises StoreUnsuitable,
        StoreUnavailable and StoreFull.
        """
        with self._opening(), self.reader.connect() as connection:
            connection.detach()  # so that it ends here, and the lock with it
            encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
            if encoding != "UTF8":
                raise StoreUnsuitable(
                    f"{self.where} is encoded as {encoding}, which lacks letters; make a database"
                    " with ENCODING 'UTF8'"
                )
            connection.exec_driver_sql(
                f"SET lock_timeout = 0; SET statement_timeout = {MIGRATION_TIMEOUT}"
            )
            connection.exec_driver_sql(f"SELECT pg_advisory_lock({_MIGRATING})")
            migrate(self.writer, self.where)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            state = _state(error)
            # Without a state: the URL's query has an option that there isn't.
            if state in (_READ_ONLY, _NOT_ALLOWED) or (
                state is None and isinstance(error, ProgrammingError)
            ):
                raise StoreUnsuitable(self._meaning(error)) from error
            raise self.explain(error) from error

    def check_place(self) -> None:
        """A server keeps its databases in place itself."""

    def passing(self, error: DBAPIError) -> bool:
        """Whether the same calls may well succeed now: others were in the way, or a connection
        broke, which those that have been idle tell only when they are used.
        """
        return error.connection_invalidated or _state(error) in _PASSING

    def explain(self, error: DBAPIError) -> StoreError:
        """What a failed call comes to, with what to do about it."""
        kind = StoreFull if _state(error) == _FULL else StoreUnavailable
        return kind(self._meaning(error))

    def dispose(self) -> None:
        """Close all connections."""
        self.writer.dispose()
        self.reader.dispose()

    def _meaning(self, error: DBAPIError) -> str:
        state, said = _state(error), " ".join(str(error.orig).split())
        if state == _FULL:
            return f"no room for a write to {self.where}: free space on its disk, then repeat it"
        if state == _READ_ONLY:
            return f"{self.where} can only be read ({said}); name the primary server"
        if state == _NOT_ALLOWED:
            return f"{self.where} refuses its user ({said}); grant CREATE on its schema"
        if state in _TOO_SLOW:
            return (
                f"{self.where} took too long ({said}); see what holds it up in pg_stat_activity,"
                " then repeat the call"
            )
        return f"{self.where} did not answer ({said}); check the server, then repeat the call"


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreUnsuitable(f"the store's address is no URL; {_URL_FORM}") from None
    # A password's own @ would make its rest a part of the host, which is shown.
    if parsed.get_backend_name() not in ("postgresql", "postgres") or "@" in (parsed.host or ""):
        raise StoreUnsuitable(f"the store's address is no PostgreSQL URL; {_URL_FORM}")
    return parsed.set(drivername="postgresql+psycopg")


def _state(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def _configure(connection: "Connection[Any]", _record: object) -> None:
    connection.execute(
        f"SET synchronous_commit = on; SET statement_timeout = {STATEMENT_TIMEOUT};"
        f" SET lock_timeout = {LOCK_TIMEOUT};"
        f" SET idle_in_transaction_session_timeout = {SILENCE_TIMEOUT}"
    )
    connection.commit()
