"""What is the SQL store's own: its file, its locks, its threads and its migrations."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import DBAPIError

from shortlink.links.model import EventKind, Link, event
from shortlink.store import schema, workers
from shortlink.store import sqlite as sqlite_module
from shortlink.store.port import Claim, StoreError, StoreFull, StoreUnavailable, StoreUnsuitable
from shortlink.store.sql import READERS, SqlStore, open_sql_store
from tests.samples import NOW, a_link

VERSIONS = [(version + 1,) for version in range(len(schema.MIGRATIONS))]
TABLES = {"links", "due", "events", "claims", "installation", "schema_version"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "links.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqlStore]:
    store = open_sql_store(path)
    yield store
    await store.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that are opened wait 50 ms for the file's lock."""
    monkeypatch.setattr(sqlite_module, "LOCK_WAIT", 0.05)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process writes, and doesn't end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def tables(path: Path) -> set[str]:
    names = rows(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    return {name for (name,) in names if not name.startswith("sqlite_")}


def overwrite(path: Path, start: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


def started(code: str, path: Path) -> subprocess.Popen[str]:
    """A Python process that runs `code` with `path` as its argument."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


# Durability


async def test_commits_are_synced_to_a_write_ahead_log_M4(path: Path) -> None:
    opened: list[sqlite3.Connection] = []

    def remember(connection: sqlite3.Connection, _record: object) -> None:
        opened.append(connection)

    sqlalchemy_event.listen(Engine, "connect", remember)
    try:
        store = open_sql_store(path)
        await store.create(a_link(), (), ())
    finally:
        sqlalchemy_event.remove(Engine, "connect", remember)
    modes = {connection.execute("PRAGMA journal_mode").fetchone()[0] for connection in opened}
    syncs = [connection.execute("PRAGMA synchronous").fetchone()[0] for connection in opened]
    await store.close()
    assert modes == {"wal"}
    assert set(syncs) == {2}


_WRITES_UNTIL_KILLED = """
import asyncio, sys
from pathlib import Path
from shortlink.store.sql import open_sql_store
from tests.samples import a_link

async def main():
    store = open_sql_store(Path(sys.argv[1]))
    async def writer(name):
        for n in range(1_000_000):
            link = a_link(code=f"{name}x{n}")
            await store.create(link, (), ())
            print(link.code, flush=True)
    await asyncio.gather(*map(writer, range(8)))

asyncio.run(main())
"""


async def test_a_killed_process_loses_no_acknowledged_write_M4(path: Path) -> None:
    process = started(_WRITES_UNTIL_KILLED, path)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(300)]
    process.kill()
    told += process.stdout.readlines()
    process.communicate()
    acknowledged = {line.strip() for line in told if line.endswith("\n")}
    store = open_sql_store(path)
    kept = {link.code for link in await store.by_owner("ann", "", 1_000_000)}
    await store.close()
    assert len(acknowledged) >= 300
    assert acknowledged <= kept


# Errors that say what to do


@pytest.mark.usefixtures("impatient")
async def test_a_file_that_another_process_locks_is_unavailable(path: Path) -> None:
    store = open_sql_store(path)
    with locked(path):
        with pytest.raises(StoreUnavailable, match=r"links\.db is locked by another process"):
            await store.create(a_link(), (), ())
        with pytest.raises(StoreUnavailable, match="is locked by another process"):
            open_sql_store(path)
        assert await store.get("promo") is None  # reads go on
    assert await store.create(a_link(), (), ()) == a_link()
    await store.close()


class Hopeful(sqlite_module.Sqlite):
    """Takes every failure for one that passes, as a server's may."""

    def passing(self, _error: DBAPIError) -> bool:
        return True


async def hopeful(path: Path, pause: Callable[[int], None]) -> SqlStore:
    await open_sql_store(path).close()
    database = Hopeful(path, READERS)
    database.prepare()
    return SqlStore(database, pause)


@pytest.mark.usefixtures("impatient")
async def test_what_may_pass_is_tried_again_a_few_times_and_then_told(path: Path) -> None:
    pauses: list[int] = []
    store = await hopeful(path, pauses.append)
    with locked(path), pytest.raises(StoreUnavailable, match="is locked"):
        await store.create(a_link(), (), ())
    assert pauses == [1, 2]
    await store.close()


@pytest.mark.usefixtures("impatient")
async def test_writes_that_met_what_passes_all_succeed_in_the_end(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as holder:

        def let_go(_attempt: int) -> None:
            holder.execute("ROLLBACK")

        store = await hopeful(path, let_go)
        holder.execute("BEGIN IMMEDIATE")
        links = [a_link(code=f"code{n}") for n in range(20)]
        held = await asyncio.gather(*(store.create(link, (), ()) for link in links))
        assert held == links
        await store.close()


@pytest.mark.usefixtures("impatient")
async def test_writes_that_fail_together_each_get_an_error_of_their_own(path: Path) -> None:
    store = open_sql_store(path)
    with locked(path):
        errors = await asyncio.gather(
            *(store.create(a_link(code=f"code{n}"), (), ()) for n in range(10)),
            return_exceptions=True,
        )
    await store.close()
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert len({id(error) for error in errors}) == 10


async def test_a_full_disk_refuses_writes_and_reads_go_on(path: Path) -> None:
    connections: list[sqlite3.Connection] = []

    def shrink(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 30")
        connections.append(connection)

    sqlalchemy_event.listen(Engine, "connect", shrink)
    try:
        store = open_sql_store(path)
        target = "https://example.com/" + "x" * 2000
        links = [a_link(code=f"code{n}", target=target) for n in range(200)]
        kept: list[Link] = []

        async def fill() -> None:
            for link in links:
                kept.append(await store.create(link, (), ()))

        with pytest.raises(StoreFull, match=r"no room for a write to .*links\.db: free space"):
            await fill()
        together = await asyncio.gather(
            *(store.create(link, (), ()) for link in links), return_exceptions=True
        )
        assert StoreFull in map(type, together)
        assert {type(each) for each in together} <= {StoreFull, Link}
        assert [await store.get(link.code) for link in kept] == kept
        for connection in connections:
            connection.execute("PRAGMA max_page_count = 100000")
        assert await asyncio.gather(*(store.create(link, (), ()) for link in links)) == links
        await store.close()
    finally:
        sqlalchemy_event.remove(Engine, "connect", shrink)


@pytest.mark.parametrize("content", [b"hello", b"no database at all\n" * 500])
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreUnsuitable, match=r"links\.db is not a SQLite database; move it"):
        open_sql_store(path)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


async def test_a_damaged_database_is_refused(path: Path) -> None:
    store = open_sql_store(path)
    await asyncio.gather(*(store.create(a_link(code=f"code{n}"), (), ()) for n in range(100)))
    await store.close()
    overwrite(path, 100, b"\xff" * 3996)  # the page that describes the tables
    with pytest.raises(StoreUnsuitable, match=r"is damaged .* restore it from a backup"):
        open_sql_store(path)


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    content = path.read_bytes()
    with pytest.raises(StoreUnsuitable, match=r"another program's database .*bookmarks"):
        open_sql_store(path)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


def test_a_database_of_a_newer_release_is_refused_and_left_alone_S6(path: Path) -> None:
    asyncio.run(open_sql_store(path).close())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO schema_version VALUES (99)")
    content = path.read_bytes()
    ours = len(schema.MIGRATIONS)
    with pytest.raises(StoreUnsuitable, match=rf"version 99.* up to {ours}\..* newer release"):
        open_sql_store(path)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


@contextmanager
def unprivileged() -> Iterator[Path]:
    """A directory of a user who, unlike root, can be denied access; we are that user."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        was = os.geteuid()
        nobody = 65534 if was == 0 else was
        os.chown(directory, nobody, -1)
        os.seteuid(nobody)
        try:
            yield directory
        finally:
            directory.chmod(0o700)
            os.seteuid(was)


async def test_a_directory_that_is_not_writable_is_refused(path: Path) -> None:
    await open_sql_store(path).close()  # imports what is read on first use
    with unprivileged() as directory:
        directory.chmod(0o500)
        with pytest.raises(StoreUnsuitable, match=r"can't be opened for writing .* directory"):
            open_sql_store(directory / "links.db")


async def test_a_file_that_is_not_writable_is_refused(path: Path) -> None:
    await open_sql_store(path).close()  # imports what is read on first use
    with unprivileged() as directory:
        file = directory / "links.db"
        await open_sql_store(file).close()
        file.chmod(stat.S_IRUSR)
        with pytest.raises(StoreUnsuitable, match=r"links\.db can't be opened for writing"):
            open_sql_store(file)


@pytest.mark.parametrize("name", ["no/such/links.db", "", "file/links.db"])
def test_a_path_where_no_file_can_be_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnsuitable, match="can't be opened for writing"):
        open_sql_store(tmp_path / name)


async def test_a_path_is_only_a_path(tmp_path: Path) -> None:
    for name in ("a ?b=c#d%20e.db", "file:x", ":memory:", "ü.db"):
        store = open_sql_store(tmp_path / name)
        await store.create(a_link(), (), ())
        await store.close()
        assert rows(tmp_path / name, "SELECT count(*) FROM links") == [(1,)]


# The file's place


def remove(path: Path) -> None:
    path.unlink()


def move_away(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def move_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def put_a_file_where_the_folder_was(path: Path) -> None:
    move_the_folder(path)
    path.parent.touch()


def replace_by_another_store(path: Path) -> None:
    path.with_name("other.db").replace(path)


GONE = [remove, move_away, move_the_folder, put_a_file_where_the_folder_was]


@pytest.mark.parametrize("used", [True, False], ids=["used before", "just opened"])
@pytest.mark.parametrize("goes", [*GONE, replace_by_another_store])
async def test_a_file_that_is_gone_or_another_acknowledges_nothing_M4(
    tmp_path: Path, goes: Callable[[Path], None], used: bool
) -> None:
    """What is written to a removed file is gone with the process."""
    path = tmp_path / "data" / "links.db"
    path.parent.mkdir()
    other = open_sql_store(path.with_name("other.db"))
    await other.create(a_link(code="others"), (), ())
    await other.close()
    store = open_sql_store(path)
    if used:
        await store.create(a_link(), (), ())
    goes(path)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.create(a_link(code="lost"), (), ()),
        lambda: store.change(a_link(), a_link(version=2), (), ()),
        lambda: store.get("promo"),
        lambda: store.get("others"),
        lambda: store.claims("", 10),
        lambda: store.done((), ()),
        store.ping,
    ]
    for call in calls * 2:
        with pytest.raises(StoreUnavailable, match=r"links\.db was removed or replaced .* start"):
            await call()
    together = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
    assert {type(one) for one in together} == {StoreUnavailable}
    await store.close()
    if goes is move_away:  # without its log the file has nothing of its own yet
        os.rename(path.with_name("moved.db"), path)
    for name in glob(f"{tmp_path}/**/*.db", recursive=True):
        written = "SELECT code FROM links WHERE code = 'lost' OR version = 2"
        assert rows(Path(name), written) == []


async def test_a_file_that_was_put_back_is_used_again(store: SqlStore, path: Path) -> None:
    await store.create(a_link(), (), ())
    move_away(path)
    with pytest.raises(StoreUnavailable):
        await store.get("promo")
    os.rename(path.with_name("moved.db"), path)
    assert await store.get("promo") == a_link()
    assert await store.change(a_link(), a_link(version=2), (), ()) == a_link(version=2)


# Opened as it is


def as_it_is(path: Path) -> tuple[bytes, int, list[str]]:
    """The file's content and time, and what else there is beside it."""
    return path.read_bytes(), path.stat().st_mtime_ns, os.listdir(path.parent)


async def test_a_store_opened_as_it_is_can_be_read_and_is_left_as_it_is(path: Path) -> None:
    store = open_sql_store(path)
    await store.create(a_link(), (), (NOW,))
    await store.close()
    before = as_it_is(path)
    reader = open_sql_store(path, as_it_is=True)
    assert await reader.get("promo") == a_link()
    assert await reader.pending(10) == []
    await reader.close()
    assert as_it_is(path) == before


@pytest.mark.usefixtures("impatient")
async def test_a_store_is_opened_as_it_is_while_another_process_writes(
    store: SqlStore, path: Path
) -> None:
    await store.create(a_link(), (), ())
    with locked(path):
        reader = open_sql_store(path, as_it_is=True)
        assert await reader.get("promo") == a_link()
        await reader.close()


async def test_a_store_of_another_version_is_not_opened_as_it_is_S6(path: Path) -> None:
    await open_sql_store(path).close()
    for change, says in (
        ("INSERT INTO schema_version VALUES (99)", r"version 99.* newer release"),
        ("DELETE FROM schema_version", r"version 0, of an older release; start the demo"),
    ):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(change)
        before = as_it_is(path)
        with pytest.raises(StoreUnsuitable, match=says):
            open_sql_store(path, as_it_is=True)
        assert as_it_is(path) == before


def test_a_file_that_is_not_there_is_not_made_when_opened_as_it_is(path: Path) -> None:
    with pytest.raises(StoreUnsuitable, match=r"there is no .*links\.db"):
        open_sql_store(path, as_it_is=True)
    assert os.listdir(path.parent) == []


def test_what_is_no_store_is_not_opened_as_it_is(path: Path) -> None:
    path.write_bytes(b"no database at all\n" * 500)
    with pytest.raises(StoreUnsuitable, match="is not a SQLite database"):
        open_sql_store(path, as_it_is=True)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreUnsuitable, match="can't be opened"):
        open_sql_store(path, as_it_is=True)


# Migrations


class _Cut(Exception):
    """Stands for a crash."""


async def test_a_migration_that_was_cut_off_anywhere_completes_when_run_again_S6(
    tmp_path: Path,
) -> None:
    done = False
    survived = 0
    while not done:
        left = survived

        def cut(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            nonlocal left
            if statement.lstrip().upper().startswith(("CREATE", "INSERT")):
                if left == 0:
                    raise _Cut
                left -= 1

        path = tmp_path / f"{survived}.db"
        sqlalchemy_event.listen(Engine, "before_cursor_execute", cut)
        try:
            with suppress(_Cut):
                await open_sql_store(path).close()
                done = True
        finally:
            sqlalchemy_event.remove(Engine, "before_cursor_execute", cut)
        await open_sql_store(path).close()
        assert tables(path) == TABLES
        assert rows(path, "SELECT version FROM schema_version") == VERSIONS
        survived += 1
    assert survived > len(TABLES) + 1  # each table, the index, and the version were cut once


async def test_a_step_that_was_half_done_completes_when_run_again_S6(path: Path) -> None:
    await open_sql_store(path).close()
    for missing in TABLES - {"schema_version"}:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"DROP TABLE {missing}")
            connection.execute("DELETE FROM schema_version")
        await open_sql_store(path).close()
        assert tables(path) == TABLES


def go_back_to_version_1(path: Path) -> None:
    """With a claim in it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for column in ("cluster", "uid", "retain"):
            connection.execute(f"ALTER TABLE claims DROP COLUMN {column}")
        connection.execute("DELETE FROM schema_version WHERE version > 1")
        connection.execute("INSERT INTO claims VALUES ('team/promo', 'promo', 1, 'token')")


async def test_a_claim_of_version_1_is_nobodys_and_outlives_an_upgrade_cut_off_anywhere_S6(
    tmp_path: Path,
) -> None:
    held = Claim("team/promo", "promo", 1, "token")
    for survived in range(5):
        left = survived

        def cut(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            nonlocal left
            if statement.upper().startswith(("ALTER", "INSERT")):
                if left == 0:
                    raise _Cut
                left -= 1

        path = tmp_path / f"{survived}.db"
        await open_sql_store(path).close()
        go_back_to_version_1(path)
        sqlalchemy_event.listen(Engine, "before_cursor_execute", cut)
        try:
            with suppress(_Cut):
                await open_sql_store(path).close()
        finally:
            sqlalchemy_event.remove(Engine, "before_cursor_execute", cut)
        store = open_sql_store(path)
        assert await store.claims("", 10) == [held]
        assert await store.reclaim(held, replace(held, uid="u", retain=True)) is True
        await store.close()
        assert rows(path, "SELECT version FROM schema_version") == VERSIONS


async def test_an_older_process_goes_on_with_claims_after_the_upgrade_S6(path: Path) -> None:
    await open_sql_store(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO claims (key, code, generation, token) VALUES (1, 2, 3, 4)")
    store = open_sql_store(path)
    assert await store.find_claim("1") == Claim("1", "2", 3, "4")
    await store.close()


async def test_steps_run_once_and_in_order_S6(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
    await open_sql_store(path).close()
    ran: list[str] = []
    steps = tuple(
        lambda connection, name=name: ran.append(name) for name in ("first", "second", "third")
    )
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    for _ in range(2):
        await open_sql_store(path).close()
    assert ran == ["second", "third"]
    assert rows(path, "SELECT version FROM schema_version") == [(1,), (2,), (3,)]


async def test_processes_that_migrate_at_once_do_no_harm_S6(path: Path) -> None:
    opener = (
        "import asyncio, sys; from pathlib import Path\n"
        "from shortlink.store.sql import open_sql_store\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "asyncio.run(open_sql_store(Path(sys.argv[1])).close())"
    )
    processes = [started(opener, path) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in processes] == [""] * 4
    assert {process.returncode for process in processes} == {0}
    assert tables(path) == TABLES
    assert rows(path, "SELECT version FROM schema_version") == VERSIONS


async def test_a_new_file_that_another_process_is_making_is_waited_for_S6(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as maker:
        maker.execute("BEGIN IMMEDIATE")

        def finish(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement == "BEGIN IMMEDIATE" and maker.in_transaction:
                maker.execute("ROLLBACK")

        sqlalchemy_event.listen(Engine, "before_cursor_execute", finish)
        try:
            await open_sql_store(path).close()
        finally:
            sqlalchemy_event.remove(Engine, "before_cursor_execute", finish)
    assert tables(path) == TABLES


# Threads, bounds and deadlines


async def test_a_closed_store_leaves_no_thread_and_no_open_file(path: Path) -> None:
    before = set(threading.enumerate())
    store = open_sql_store(path)
    await asyncio.gather(*(store.create(a_link(code=f"code{n}"), (), ()) for n in range(50)))
    assert await store.get("code7") is not None
    assert set(threading.enumerate()) > before
    await store.close()
    await store.close()
    assert set(threading.enumerate()) == before
    assert os.listdir(path.parent) == [path.name]  # the last connection removed the log


@pytest.mark.parametrize("content", [b"no database", None])
def test_a_store_that_could_not_be_opened_leaves_no_thread(
    path: Path, content: bytes | None
) -> None:
    before = set(threading.enumerate())
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(StoreUnsuitable):
        open_sql_store(path)
    assert set(threading.enumerate()) == before


async def test_a_closed_store_is_unavailable(store: SqlStore) -> None:
    await store.close()
    with pytest.raises(StoreUnavailable, match="was closed"):
        await store.get("promo")
    with pytest.raises(StoreUnavailable, match="was closed"):
        await store.create(a_link(), (), ())


async def test_a_call_that_finds_too_many_waiting_is_refused_at_once(
    store: SqlStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WAITING", 5)
    with locked(path):
        calls = [
            asyncio.ensure_future(store.create(a_link(code=f"code{n}"), (), ())) for n in range(300)
        ]
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert waiting
        with pytest.raises(StoreUnavailable, match=r"5 calls wait for .*links\.db already"):
            await done.pop()
    await asyncio.gather(*calls, return_exceptions=True)
    assert await store.create(a_link(), (), ()) == a_link()


async def test_a_call_without_an_answer_by_its_deadline_is_unavailable(
    store: SqlStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "DEADLINE", 0.05)
    with locked(path), pytest.raises(StoreUnavailable, match=r"did not answer within 0\.05 s"):
        await store.create(a_link(), (), ())
    monkeypatch.undo()
    # The outcome is unknown, and the same call again tells it.
    assert await store.create(a_link(), (), ()) == a_link()


async def test_a_caller_that_gives_up_disturbs_nobody(store: SqlStore, path: Path) -> None:
    with locked(path):
        gone = asyncio.ensure_future(store.create(a_link(code="gone1"), (), ()))
        stays = asyncio.ensure_future(store.create(a_link(code="stays1"), (), ()))
        await asyncio.sleep(0)  # both have begun
        gone.cancel()
    assert (await stays).code == "stays1"
    with suppress(asyncio.CancelledError):
        await gone


@pytest.mark.parametrize(
    "bad",
    [
        {"owner": "\ud800"},
        {"code": "\udfff"},
        {"expires_at": 2**70},
        {"target": None},
        {"tags": (object(),)},
    ],
)
async def test_a_value_that_cannot_be_stored_fails_its_own_call_only(
    store: SqlStore, bad: dict[str, Any]
) -> None:
    links = [a_link(code=f"code{n}") for n in range(20)]
    outcomes = await asyncio.gather(
        *(store.create(link, (), (NOW,)) for link in links[:10]),
        store.create(a_link(**bad), (), (NOW,)),
        *(store.create(link, (), (NOW,)) for link in links[10:]),
        return_exceptions=True,
    )
    error = outcomes.pop(10)
    assert isinstance(error, Exception)
    assert not isinstance(error, StoreError)
    assert outcomes == links
    assert {hint.code for hint in await store.due(NOW, 100)} == {link.code for link in links}


async def test_a_write_that_fails_half_way_leaves_nothing_of_itself(store: SqlStore) -> None:
    link = a_link()
    told = event(EventKind.CREATED, link, NOW)
    outcome, beside = await asyncio.gather(
        store.create(link, (told, replace(told, id="unfit", at=2**70)), (NOW,)),
        store.create(a_link(code="beside"), (), ()),
        return_exceptions=True,
    )
    assert isinstance(outcome, OverflowError)
    assert await store.get(link.code) is None
    assert await store.pending(10) == []
    assert await store.due(NOW, 10) == []
    assert await store.get("beside") == beside


async def test_a_lone_surrogate_in_a_read_fails_it_cleanly(store: SqlStore) -> None:
    with pytest.raises(UnicodeEncodeError):
        await store.get("\ud800")
    await store.ping()


def test_one_store_serves_several_event_loops_in_turn(path: Path) -> None:
    store = open_sql_store(path)
    assert asyncio.run(store.create(a_link(), (), ())) == a_link()
    assert asyncio.run(store.get("promo")) == a_link()
    asyncio.run(store.close())


def test_a_loop_that_ended_while_a_call_waited_disturbs_nobody(path: Path) -> None:
    store = open_sql_store(path)

    async def abandon() -> None:
        call = asyncio.ensure_future(store.create(a_link(), (), ()))
        await asyncio.sleep(0)  # it has begun
        assert not call.done()

    with locked(path):
        asyncio.run(abandon())
    assert asyncio.run(store.create(a_link(code="next"), (), ())).code == "next"
    asyncio.run(store.close())
