"""A keyspace of a test run's own on the three regions' Cassandra (`make up`).

Making its tables in three data centres takes seconds, so that one serves all tests, emptied
before each by plain deletes, which unlike TRUNCATE need not all nodes.
"""

import asyncio
import os
import re

import psutil
from cassandra import Unavailable

from local.regions import faults, layout
from local.stacks import store_address
from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.codes import SLOTS
from shortlink.store.cassandra.address import parse_address
from shortlink.store.cassandra.driver import open_session
from shortlink.store.cassandra.opening import opened
from shortlink.store.cassandra.preparing import Preparing
from shortlink.store.cassandra.session import Level, Session, Statement, Unreachable

REGIONS = {region.name: region.address for region in layout.REGIONS}
HOME = layout.REGIONS[0].name
ATTEMPTS = 5
DEADLINE = 60

_KEYS = {
    "births": ("code",),
    "links": ("code",),
    "claims": ("bucket",),
    "hints": ("kind", "bucket"),
}


class Keyspace:
    """Is made when it is first emptied, and then the region `away` loses its Cassandra until
    `drop`. The slots are all `HOME`'s, so that any code may be born there."""

    def __init__(self, away: str | None = None) -> None:
        self._away = away
        self.name = f"test_{os.getpid()}_1"
        self.address = store_address(self.name)
        self._place = parse_address(self.address)
        self._made = False

    async def empty(self) -> None:
        if not self._made:
            self._made = True
            await self._make()
        home = await open_session(HOME, [REGIONS[HOME]], os.urandom)
        try:
            for table, key in _KEYS.items():
                await self._empty(home, table, key)
            where = f"DELETE FROM {self.name}.installation WHERE name = ?"
            for name in ("slot_key", *(f"policy/{region}" for region in REGIONS)):
                await _everywhere(home, where, (name,))
        finally:
            await home.close()

    async def _make(self) -> None:
        async with opened(self._place) as sessions:
            home = sessions[HOME]
            await _drop(home, await _left_behind(home))
            owners = dict.fromkeys(range(SLOTS), HOME)
            await Preparing(sessions, HOME, self._place, SYSTEM_CLOCK).run(None, owners)
            if self._away:
                faults.kill(self._away, "cassandra")
                await self._until_missed(home)

    async def _until_missed(self, home: Session) -> None:
        """Wait until a node's absence is known: what asks for all of them fails at once."""
        select = f"SELECT at FROM {self.name}.markers WHERE datacenter = ?"
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    await home.execute(Statement(select, Level.ALL), (HOME,))
                except Unreachable as error:
                    if isinstance(error.__cause__, Unavailable):
                        return

    def drop(self) -> None:
        async def drop() -> None:
            async with opened(self._place) as sessions:
                await _drop(sessions[HOME], [self.name])

        if self._made and self._away:
            faults.start(self._away, "cassandra")
        if self._made:
            asyncio.run(drop())

    async def _empty(self, home: Session, table: str, key: tuple[str, ...]) -> None:
        select = f"SELECT DISTINCT {', '.join(key)} FROM {self.name}.{table} LIMIT 5000"
        where = " AND ".join(f"{column} = ?" for column in key)
        delete = f"DELETE FROM {self.name}.{table} WHERE {where}"
        for row in await home.execute(Statement(select, Level.QUORUM, timeout=10)):
            await _everywhere(home, delete, row)


async def _everywhere(home: Session, cql: str, values: tuple[object, ...]) -> None:
    try:
        await home.execute(Statement(cql, Level.ALL), values)
    except Unreachable:  # a data centre is away
        await home.execute(Statement(cql, Level.QUORUM), values)


async def _left_behind(home: Session) -> list[str]:
    """Keyspaces of test runs that were killed: they would fill the nodes' memory."""
    rows = await home.execute(
        Statement("SELECT keyspace_name FROM system_schema.keyspaces", Level.LOCAL_ONE)
    )
    runs = [(name, re.fullmatch(r"test_(\d+)_\d+", name)) for (name,) in rows]
    return [name for name, run in runs if run and not psutil.pid_exists(int(run[1]))]


async def _drop(home: Session, keyspaces: list[str]) -> None:
    for name in keyspaces:
        drop = Statement(f"DROP KEYSPACE IF EXISTS {name}", Level.QUORUM, timeout=30)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await home.execute(drop)
                break
            except Unreachable:  # it was busy to death
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(attempt)
