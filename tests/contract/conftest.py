"""The stores under contract. Another adapter is one more entry in `ADAPTERS`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from shortlink.store.port import LinkStore
from shortlink.store.sql import open_sql_store
from tests.fakes import Kept, MemoryStore

Opener = Callable[[], Awaitable[LinkStore]]
"""Opens one and the same store, again on each call, as another process would."""


def sqlite(tmp_path: Path) -> Opener:
    async def open_() -> LinkStore:
        return open_sql_store(tmp_path / "links.db")

    return open_


def memory(_tmp_path: Path) -> Opener:
    kept = Kept()

    async def open_() -> LinkStore:
        return MemoryStore(kept)

    return open_


ADAPTERS: dict[str, Callable[[Path], Opener]] = {"sqlite": sqlite, "memory": memory}


@pytest.fixture(params=ADAPTERS)
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens the store under test; what it opened is closed in the end."""
    opener = ADAPTERS[request.param](tmp_path)
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
