"""A region that was away gets what it missed, though no other node kept it for it (L5)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from local.parts import find
from local.regions import faults
from local.regions.cassandra import nodetool
from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.model import Cause, EventKind, Link, State, event
from shortlink.store.cassandra.address import parse_address
from shortlink.store.cassandra.opening import opened
from shortlink.store.cassandra.session import Level, Statement
from shortlink.store.opening import open_store
from shortlink.store.port import LinkStore
from shortlink.store.record import from_text
from tests.contract.cassandra_keyspaces import HOME, REGIONS, Keyspace
from tests.samples import a_link

AWAY = "ap-southeast-1"
DEADLINE = 120
"""Seconds for a settling on a busy machine; it is tried every five."""


@pytest.fixture
async def keyspace() -> AsyncIterator[Keyspace]:
    keyspace = Keyspace()
    await keyspace.empty()
    yield keyspace
    await asyncio.to_thread(faults.start, AWAY, "cassandra")
    await asyncio.to_thread(keyspace.drop)


@pytest.fixture
def no_handoff() -> Iterator[None]:
    """The nodes keep nothing for another one that is away, as if they lost it.

    Cassandra's `truncatehints` leaves what it has not written to a file yet.
    """
    parts = find()
    nodes = [faults.cassandra_of(region) for region in REGIONS.keys() - {AWAY}]
    try:
        for node in nodes:
            nodetool(node, parts, "disablehandoff")
        yield
    finally:
        for node in nodes:
            nodetool(node, parts, "enablehandoff")


async def own_copy(keyspace: Keyspace, code: str) -> Link | None:
    """The link as the region's own replica has it, asked alone."""
    select = f"SELECT link FROM {keyspace.name}.links WHERE code = ?"
    async with opened(parse_address(keyspace.address)) as sessions:
        rows = await sessions[AWAY].execute(Statement(select, Level.LOCAL_ONE), (code,))
    return from_text(rows[0][0]) if rows else None


async def publish(store: LinkStore) -> list[str]:
    """What a relay does, again and again."""
    events = await store.pending(100)
    await store.published([told.id for told in events])
    return [told.id for told in events]


@pytest.mark.usefixtures("mended", "no_handoff")
@pytest.mark.timeout(400)
async def test_a_deletion_that_nobody_hints_reaches_the_region_that_was_away_L5(
    keyspace: Keyspace,
) -> None:
    store = await open_store(keyspace.address, HOME, SYSTEM_CLOCK)
    try:
        link = a_link(code="settles")
        await store.create(link, (event(EventKind.CREATED, link, link.changed_at),), ())
        before = replace(link, code="promo123")
        await store.create(before, (event(EventKind.CREATED, before, before.changed_at),), ())
        assert len(await publish(store)) == 2
        assert await own_copy(keyspace, before.code) == before

        faults.kill(AWAY, "cassandra")
        gone = replace(
            before,
            version=2,
            state=State.TOMBSTONED,
            changed_at=before.changed_at + 1,
            tombstoned_at=before.changed_at + 1,
            cause=Cause.DELETED,
        )
        told = event(EventKind.TOMBSTONED, gone, gone.changed_at)
        assert await store.change(before, gone, (told,), ()) == gone
        assert await publish(store) == [told.id]
        faults.start(AWAY, "cassandra")
        assert await own_copy(keyspace, before.code) == before  # nobody has told it

        deadline = time.monotonic() + DEADLINE
        while await own_copy(keyspace, before.code) != gone:
            assert time.monotonic() < deadline, "the deletion never reached its replica"
            assert await publish(store) == []
    finally:
        await store.close()
