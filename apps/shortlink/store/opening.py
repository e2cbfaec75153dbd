"""Opens any store from its address: `sqlite:///PATH`, `postgresql://...`, `cassandra://...`."""

import asyncio
from pathlib import Path

from shortlink.clock import Clock
from shortlink.store.cassandra.address import SCHEME
from shortlink.store.port import LinkStore, StoreUnsuitable
from shortlink.store.sql import open_postgres_store, open_sql_store

FORMS = (
    "sqlite:///PATH, postgresql://USER@HOST/DATABASE or cassandra://DC=HOST[,DC=HOST...]/KEYSPACE"
)
"""Of a store's address."""

_SQLITE = "sqlite:///"


async def open_store(
    address: str, region: str | None, clock: Clock, *, native: bool = False
) -> LinkStore:
    """The store at `address`, for a process in `region` (which Cassandra alone asks for).

    `native`: Cassandra's C++ driver, for redirects (docs/adr/0006). Takes seconds at most. Raises
    StoreUnsuitable, StoreUnavailable and StoreFull; no message has the address's password.
    """
    if address.startswith(_SQLITE):
        return await asyncio.to_thread(open_sql_store, Path(address.removeprefix(_SQLITE)))
    if address.startswith("postgresql://"):
        return await asyncio.to_thread(open_postgres_store, address)
    if address.startswith(SCHEME):
        # What one store needs is imported with it: its drivers start threads and take memory.
        from shortlink.store.cassandra.opening import open_cassandra

        return await open_cassandra(address, region, clock, native=native)
    raise StoreUnsuitable(f"the address names no store that is known: use {FORMS}")


async def prepare(address: str, region: str | None, clock: Clock, admit: str | None) -> str:
    """Make the store at `address` ready for this release; a line that says what was done.

    Safe to repeat. `admit` names a data centre of Cassandra's that was repaired and may be
    asked again. Raises as `open_store`.
    """
    if address.startswith(SCHEME):
        from shortlink.store.cassandra.opening import prepare_cassandra

        return await prepare_cassandra(address, region, clock, admit)
    if admit is not None:
        raise StoreUnsuitable("only a store on Cassandra has data centres to admit")
    store = await open_store(address, region, clock)
    await store.close()
    return "the store is ready"
