"""What is SQLite's own in the SQL store: files, pragmas, locks, and what its errors mean."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Insert, Table, create_engine, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError

from shortlink.store.port import StoreError, StoreFull, StoreUnavailable, StoreUnsuitable
from shortlink.store.schema import MIGRATIONS, check_version, migrate

LOCK_WAIT = 2.0
"""Seconds that a write waits for another process to let go of the file."""

_WAL_ATTEMPTS = 10

_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_NO_ACCESS = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}
_NO_STORE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}


class Sqlite:
    """A database file: `writer` begins transactions with the write lock, `reader` has none.

    Write-ahead logging lets readers and the one writer go on side by side, also in several
    processes. A commit returns after the log was synced, so it survives a loss of power.
    """

    def __init__(self, path: Path, readers: int) -> None:
        self.where = str(path.absolute())
        self._inode: int | None = None
        self.writer = self._engine(1)
        event.listen(self.writer, "connect", _configure)
        event.listen(self.writer, "begin", _begin_immediate)
        self.reader = self._engine(readers, isolation_level="AUTOCOMMIT")

    def _engine(self, connections: int, **options: Any) -> Engine:
        return create_engine(
            URL.create("sqlite", database=self.where),
            connect_args={"timeout": LOCK_WAIT},
            pool_size=connections,
            max_overflow=0,
            pool_timeout=LOCK_WAIT,
            **options,
        )

    def add(self, table: Table) -> Insert:
        """Insert rows into `table`; a row that is there already stays as it is."""
        return insert(table).on_conflict_do_nothing()

    def prepare(self) -> None:
        """Make the file a store of this release's version, or leave it as it is and raise.

        Raises StoreUnsuitable, StoreUnavailable and StoreFull.
        """
        with self._opening(), self.reader.connect() as connection:
            check_version(connection, self.where)
            self._use_wal(connection)
        with self._opening():
            migrate(self.writer, self.where)
        self._inode = self._there()

    def check(self) -> None:
        """Make sure, by reading alone, that the file is a store of this release's version.

        Raises StoreUnsuitable and StoreUnavailable.
        """
        self._inode = self._there()
        if self._inode is None:  # SQLite would make it
            raise StoreUnsuitable(f"there is no {self.where}: start a demo, or name another file")
        with self._opening(), self.reader.connect() as connection:
            version = check_version(connection, self.where)
        if version < len(MIGRATIONS):
            raise StoreUnsuitable(
                f"{self.where} has schema version {version}, of an older release; start the demo"
                f" of this one once, which brings it to {len(MIGRATIONS)}"
            )

    @contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if _code(error) in _NO_ACCESS | _NO_STORE:
                raise StoreUnsuitable(self._meaning(error)) from error
            raise self.explain(error) from error

    def check_place(self) -> None:
        """Raise StoreUnavailable if the file that was opened is no longer at its path.

        A removed file can be written, and is gone with the process.
        """
        if self._there() != self._inode:
            raise StoreUnavailable(
                f"{self.where} was removed or replaced while in use; put it back, or stop and"
                " start again on what is there now"
            )

    def _there(self) -> int | None:
        try:
            return os.stat(self.where).st_ino
        except OSError:
            return None

    def passing(self, _error: DBAPIError) -> bool:
        """Never: the driver waited for the lock already, and nothing else passes by itself."""
        return False

    def explain(self, error: DBAPIError) -> StoreError:
        """What a failed call comes to, with what to do about it."""
        kind = StoreFull if _code(error) == sqlite3.SQLITE_FULL else StoreUnavailable
        return kind(self._meaning(error))

    def dispose(self) -> None:
        """Close all connections."""
        self.writer.dispose()
        self.reader.dispose()

    def _use_wal(self, connection: Connection) -> None:
        for attempt in range(1, _WAL_ATTEMPTS + 1):
            try:
                mode = connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar_one()
            except DBAPIError as error:
                if _code(error) not in _LOCKED or attempt == _WAL_ATTEMPTS:
                    raise
                # Another process is at the same point. The change of mode waits for no lock,
                # but the beginning of a write transaction does.
                with self.writer.begin():
                    continue
            if mode != "wal":
                raise StoreUnsuitable(
                    f"{self.where} is on a file system without shared memory, which a store"
                    " needs; name a file on a local disk"
                )
            return

    def _meaning(self, error: DBAPIError) -> str:
        code = _code(error)
        if code in _LOCKED:
            return (
                f"{self.where} is locked by another process, for more than {LOCK_WAIT:g} s; try"
                f" again, and if that doesn't help stop its holder (`fuser {self.where}`)"
            )
        if code == sqlite3.SQLITE_FULL:
            return f"no room for a write to {self.where}: free space on its disk, then repeat it"
        if code in _NO_ACCESS:
            return (
                f"{self.where} can't be opened for writing ({error.orig}): make sure that its"
                f" directory exists, that user {os.geteuid()}"
                " may write both, or name another file"
            )
        if code == sqlite3.SQLITE_NOTADB:
            return f"{self.where} is not a SQLite database; move it away, or name another file"
        if code == sqlite3.SQLITE_CORRUPT:
            return f"{self.where} is damaged ({error.orig}); restore it from a backup"
        return f"{self.where} did not answer ({error.orig}); check its disk, then try again"


def _code(error: DBAPIError) -> int:
    # The low byte is the primary result code (https://www.sqlite.org/rescode.html).
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    # The driver would begin transactions by itself, without the lock.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")
    # macOS: ask the disk, too, to keep what it was given.
    connection.execute("PRAGMA fullfsync=ON")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
