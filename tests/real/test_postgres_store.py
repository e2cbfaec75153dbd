"""What is PostgreSQL's own in the SQL store, on a real server that is killed and frozen."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from shortlink.links.model import EventKind, Link, event
from shortlink.store import schema, workers
from shortlink.store.port import Claim, StoreFull, StoreUnavailable, StoreUnsuitable
from shortlink.store.sql import SqlStore, open_postgres_store
from tests.contract.postgres_server import Server
from tests.samples import NOW, a_link


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    return server.fresh_database()


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    store = open_postgres_store(url)
    yield store
    await store.close()


def name(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


def raise_on_insert(server: Server, url: str, table: str, body: str) -> None:
    """Let inserts into `table` run `body`, in PL/pgSQL."""
    server.execute(
        name(url),
        f"CREATE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {body} RETURN NEW; END $$",
    )
    server.execute(
        name(url),
        f"CREATE TRIGGER planted BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION planted()",
    )


# Durability, and servers that fail


async def test_a_commit_waits_for_the_servers_log_though_its_default_is_not_to_M4(
    server: Server, url: str
) -> None:
    server.execute(name(url), f"ALTER DATABASE {name(url)} SET synchronous_commit = off")
    store = open_postgres_store(url)
    raise_on_insert(server, url, "links", "NEW.owner := current_setting('synchronous_commit');")
    await store.create(a_link(), (), ())
    held = await store.get("promo")
    await store.close()
    assert held is not None
    assert held.owner == "on"


async def test_a_killed_server_loses_no_acknowledged_write_and_is_used_again_M4(
    server: Server, store: SqlStore
) -> None:
    acknowledged: list[Link] = []
    failed = asyncio.Event()

    async def writer(number: int) -> None:
        for n in range(1_000_000):
            link = a_link(code=f"w{number}x{n}")
            try:
                acknowledged.append(await store.create(link, (), ()))
            except StoreUnavailable:
                failed.set()
                return

    writers = [asyncio.ensure_future(writer(number)) for number in range(8)]
    while len(acknowledged) < 200:
        await asyncio.wait(writers, timeout=0.01)
    server.stop(signal.SIGQUIT)
    await asyncio.gather(*writers)
    assert failed.is_set()
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await store.get("promo")
    server.start()
    assert await asyncio.gather(*(store.get(link.code) for link in acknowledged)) == acknowledged
    assert await store.create(a_link(), (), ()) == a_link()


async def test_connections_that_were_cut_cost_nobody_an_error(
    server: Server, url: str, store: SqlStore
) -> None:
    await store.create(a_link(), (), ())
    await store.ping()
    server.execute(
        name(url),
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid != pg_backend_pid()",
    )
    got, changed = await asyncio.gather(
        store.get("promo"), store.change(a_link(), a_link(version=2), (), ())
    )
    assert got in (a_link(), a_link(version=2))
    assert changed == a_link(version=2)


async def test_a_frozen_server_is_unavailable_by_the_deadline_and_then_used_again(
    server: Server, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create(a_link(), (), ())
    monkeypatch.setattr(workers, "DEADLINE", 0.2)
    backends = [
        pid
        for (pid,) in server.execute(
            "postgres", "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
    ]
    for pid in backends:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.2 s"):
            await store.create(a_link(code="other"), (), ())
    finally:
        for pid in backends:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    assert await store.create(a_link(code="other"), (), ()) == a_link(code="other")


# What the server says


async def test_a_full_disk_refuses_writes_and_reads_go_on(
    server: Server, url: str, store: SqlStore
) -> None:
    await store.create(a_link(), (), ())
    raise_on_insert(
        server, url, "links", "RAISE EXCEPTION 'could not extend' USING ERRCODE = '53100';"
    )
    with pytest.raises(StoreFull, match="free space on its disk"):
        await store.create(a_link(code="other"), (), ())
    assert await store.get("promo") == a_link()


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_writes_that_others_were_in_the_way_of_are_tried_again(
    server: Server, url: str, state: str
) -> None:
    pauses: list[int] = []
    opened = open_postgres_store(url)
    store = SqlStore(opened._database, pauses.append)
    server.execute(name(url), "CREATE SEQUENCE tries")  # which no rollback takes back
    raise_on_insert(
        server,
        url,
        "links",
        f"IF nextval('tries') < 3 THEN RAISE EXCEPTION 'in the way' USING ERRCODE = '{state}';"
        " END IF;",
    )
    link = a_link()
    told = event(EventKind.CREATED, link, NOW)
    assert await store.create(link, (told,), (NOW,)) == link
    assert pauses == [1, 2]
    assert await store.pending(10) == [told]
    await store.close()
    await opened.close()


async def test_two_processes_that_cross_each_others_writes_both_end_well(
    url: str, store: SqlStore
) -> None:
    other = open_postgres_store(url)
    links = [a_link(code=f"code{n}") for n in range(50)]
    await asyncio.gather(*(store.create(link, (), ()) for link in links))
    news = [a_link(code=link.code, version=2) for link in links]
    there = (store.change(old, new, (), ()) for old, new in zip(links, news, strict=True))
    back = (
        other.change(old, new, (), ())
        for old, new in zip(reversed(links), reversed(news), strict=True)
    )
    outcomes = await asyncio.gather(*there, *back)
    await other.close()
    assert {link.version for link in outcomes} == {2}


# Opening


def test_a_database_of_a_newer_release_is_refused_and_left_alone_S6(
    server: Server, url: str
) -> None:
    asyncio.run(open_postgres_store(url).close())
    server.execute(name(url), "INSERT INTO schema_version VALUES (99)")
    with pytest.raises(StoreUnsuitable, match=r"postgresql://postgres@/test.* version 99"):
        open_postgres_store(url)
    ours = [(n + 1,) for n in range(len(schema.MIGRATIONS))]
    assert server.execute(name(url), "SELECT * FROM schema_version ORDER BY 1") == [*ours, (99,)]


def test_another_programs_database_is_refused_and_left_alone(server: Server, url: str) -> None:
    server.execute(name(url), "CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StoreUnsuitable, match=r"another program's database .*bookmarks"):
        open_postgres_store(url)
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    assert server.execute(name(url), tables) == [("bookmarks",)]


def test_a_database_of_another_encoding_is_refused(server: Server) -> None:
    server.execute(
        "postgres",
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
        " LOCALE_PROVIDER libc TEMPLATE template0",
    )
    with pytest.raises(StoreUnsuitable, match=r"latin is encoded as LATIN1"):
        open_postgres_store(server.url("latin"))


def test_a_database_that_is_not_there_is_unavailable(server: Server) -> None:
    with pytest.raises(StoreUnavailable, match='database "none" does not exist'):
        open_postgres_store(server.url("none"))


def test_a_database_that_can_only_be_read_is_refused(server: Server, url: str) -> None:
    asyncio.run(open_postgres_store(url).close())
    server.execute("postgres", f"ALTER DATABASE {name(url)} SET default_transaction_read_only = on")
    with pytest.raises(StoreUnsuitable, match=r"can only be read .* name the primary"):
        open_postgres_store(url)


async def test_processes_that_migrate_at_once_do_no_harm_S6(server: Server, url: str) -> None:
    opened = await asyncio.gather(*(asyncio.to_thread(open_postgres_store, url) for _ in range(8)))
    for store in opened:
        await store.close()
    versions = [(version + 1,) for version in range(len(schema.MIGRATIONS))]
    assert server.execute(name(url), "SELECT version FROM schema_version") == versions


async def test_a_claim_of_version_1_is_nobodys_after_the_upgrade_S6(
    server: Server, url: str
) -> None:
    await open_postgres_store(url).close()
    for statement in (
        "ALTER TABLE claims DROP COLUMN cluster, DROP COLUMN uid, DROP COLUMN retain",
        "DELETE FROM schema_version WHERE version > 1",
        "INSERT INTO claims VALUES ('team/promo', 'promo', 1, 'token')",
    ):
        server.execute(name(url), statement)
    store = open_postgres_store(url)
    held = Claim("team/promo", "promo", 1, "token")
    whose = Claim("team/promo", "promo", 1, "token", "us-east-1", "uid", True)
    assert await store.find_claim(held.key) == held
    assert await store.reclaim(held, whose) is True
    assert await store.find_claim(held.key) == whose
    await store.close()
