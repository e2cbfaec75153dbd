"""The stores under contract: `--stores sqlite,memory,postgresql,cassandra,cassandra-native`.

PostgreSQL is started from what is installed, Cassandra is the running platform's (`make up`);
`--away REGION` kills one region's for as long as the tests run.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from shortlink.clock import SYSTEM_CLOCK
from shortlink.store.opening import open_store as open_by_address
from shortlink.store.port import LinkStore
from shortlink.store.sql import open_sql_store
from tests.fakes import Kept, MemoryStore

Opener = Callable[[], Awaitable[LinkStore]]
"""Opens one and the same store, again on each call, as another process would."""

STORES = "sqlite,memory"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stores", default=STORES, help="stores under contract, with commas")
    parser.addoption("--away", help="the region whose Cassandra is dead meanwhile")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "open_store" in metafunc.fixturenames:
        # Without a path to here among its arguments, pytest knows the option's default alone.
        names = metafunc.config.getoption("--stores", STORES).split(",")
        if unknown := [name for name in names if name not in ADAPTERS]:
            raise pytest.UsageError(f"--stores knows {', '.join(ADAPTERS)}, not {unknown}")
        metafunc.parametrize("open_store", names, indirect=True)


async def sqlite(_request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    async def open_() -> LinkStore:
        return open_sql_store(tmp_path / "links.db")

    return open_


async def memory(_request: pytest.FixtureRequest, _tmp_path: Path) -> Opener:
    kept = Kept()

    async def open_() -> LinkStore:
        return MemoryStore(kept)

    return open_


async def postgresql(request: pytest.FixtureRequest, _tmp_path: Path) -> Opener:
    url = request.getfixturevalue("postgres_server").fresh_database()

    async def open_() -> LinkStore:
        return await open_by_address(url, None, SYSTEM_CLOCK)

    return open_


async def cassandra(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    return await _cassandra(request, native=False)


async def cassandra_native(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    return await _cassandra(request, native=True)


async def _cassandra(request: pytest.FixtureRequest, *, native: bool) -> Opener:
    from tests.contract.cassandra_keyspaces import HOME

    keyspace = request.getfixturevalue("cassandra_keyspace")
    await keyspace.empty()

    async def open_() -> LinkStore:
        return await open_by_address(keyspace.address, HOME, SYSTEM_CLOCK, native=native)

    return open_


ADAPTERS: dict[str, Callable[[pytest.FixtureRequest, Path], Awaitable[Opener]]] = {
    "sqlite": sqlite,
    "memory": memory,
    "postgresql": postgresql,
    "cassandra": cassandra,
    "cassandra-native": cassandra_native,
}


# Servers are imported where they are asked for, for most runs have none.


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[object]:
    from tests.contract.postgres_server import Server

    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def cassandra_keyspace(request: pytest.FixtureRequest) -> Iterator[object]:
    from tests.contract.cassandra_keyspaces import Keyspace

    keyspace = Keyspace(away=request.config.getoption("--away"))
    yield keyspace
    keyspace.drop()


@pytest.fixture
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens the store under test; what it opened is closed in the end."""
    opener = await ADAPTERS[request.param](request, tmp_path)
    opened = []

    async def open_() -> LinkStore:
        store = await opener()
        opened.append(store)
        return store

    yield open_
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: Opener) -> LinkStore:
    return await open_store()


@pytest.fixture
async def other(open_store: Opener, store: LinkStore) -> LinkStore:
    """The same store, as another process has it open."""
    return await open_store()
