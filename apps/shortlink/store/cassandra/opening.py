"""Opens the store on Cassandra, and has its keyspace prepared."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from shortlink.clock import Clock
from shortlink.store.cassandra.address import Address, parse_address
from shortlink.store.cassandra.claims import Claims
from shortlink.store.cassandra.driver import open_session
from shortlink.store.cassandra.hints import Hints
from shortlink.store.cassandra.native import open_native_session
from shortlink.store.cassandra.outbox import Outbox
from shortlink.store.cassandra.preparing import Preparing, check_version
from shortlink.store.cassandra.reach import Reach, together
from shortlink.store.cassandra.rows import Rows
from shortlink.store.cassandra.session import Sessions
from shortlink.store.cassandra.store import CassandraStore
from shortlink.store.cassandra.topology import Topology
from shortlink.store.port import StoreUnavailable, StoreUnsuitable


async def open_cassandra(
    address: str, region: str | None, clock: Clock, *, native: bool = False
) -> CassandraStore:
    """The store at `address` for a process in `region`, in a few seconds at most.

    With Cassandra stopped it is opened all the same: its calls raise StoreUnavailable until
    there is one. Raises StoreUnsuitable when the address or `region` is wrong, or the keyspace is
    of a newer release.
    """
    place = parse_address(address)
    home = _home(place, region)
    sessions = await _sessions(place, native=native)
    try:
        reach = Reach(sessions, home, clock)
        with suppress(StoreUnavailable):  # whoever calls is told
            await check_version(reach, place.keyspace)
        return await over(sessions, home, place.keyspace, clock)
    except BaseException:
        await _close(sessions)
        raise


async def over(sessions: Sessions, home: str, keyspace: str, clock: Clock) -> CassandraStore:
    """The store on `sessions`, one for each data centre; closing it closes them."""
    entropy = os.urandom
    places = Topology(sessions, home, keyspace, clock)
    await places.look()
    places.watch()
    rows = Rows(sessions, home, keyspace, places, clock, entropy)
    return CassandraStore(
        rows,
        Claims(lambda: rows.seat, keyspace, rows.conditional),
        Hints(sessions, home, keyspace, clock, entropy),
        Outbox(sessions, home, keyspace, clock, entropy, rows.read, rows.clear, rows.settle),
        places,
        clock,
    )


async def prepare_cassandra(
    address: str, region: str | None, clock: Clock, admit: str | None
) -> str:
    """Make the keyspace, its tables and its slots where they are missing; a line that says so.

    Safe to repeat, also in all regions at once. A complete keyspace needs no write, so it passes
    while a data centre is away. `admit`: a data centre that was repaired and may be asked again.
    Raises StoreUnsuitable and StoreUnavailable.
    """
    place = parse_address(address)
    home = _home(place, region)
    async with opened(place) as sessions:
        return await Preparing(sessions, home, place, clock).run(admit)


def _home(place: Address, region: str | None) -> str:
    if region is None or region not in place.datacenters:
        raise StoreUnsuitable(
            f"this region ({region or 'none was named'}) is none of the address's data centres"
            f" ({', '.join(place.datacenters)}); set SHORTLINK_REGION to one of them"
        )
    return region


async def _sessions(place: Address, *, native: bool) -> Sessions:
    opens = open_native_session if native else open_session
    names = list(place.datacenters)
    opened = await together(opens(name, place.datacenters[name], os.urandom) for name in names)
    return dict(zip(names, opened, strict=True))


@asynccontextmanager
async def opened(place: Address) -> AsyncIterator[Sessions]:
    """Sessions to the data centres of `place`, closed in the end."""
    sessions = await _sessions(place, native=False)
    try:
        yield sessions
    finally:
        await _close(sessions)


async def _close(sessions: Sessions) -> None:
    await together(session.close() for session in sessions.values())
