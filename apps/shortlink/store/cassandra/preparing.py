"""Makes a keyspace ready: its tables, what is on record of data centres, and who owns slots."""

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from shortlink.clock import Clock
from shortlink.links.codes import SLOTS
from shortlink.store.cassandra import hints, schema, topology
from shortlink.store.cassandra.address import Address
from shortlink.store.cassandra.conditional import Conditional
from shortlink.store.cassandra.reach import Reach, together
from shortlink.store.cassandra.session import (
    Level,
    Row,
    Session,
    Sessions,
    Statement,
    Unreachable,
    jittered,
)
from shortlink.store.port import StoreError, StoreUnavailable, StoreUnsuitable

SLOTS_EACH = 8
"""Slots of a region: 24 of 64 belong to the first three, the others wait for regions to come."""

REPLICAS = 3
"""In each data centre, or as many as the smallest has nodes."""

_TABLES: Sequence[str] = (*schema.TABLES, *hints.TABLES, *topology.TABLES)

_DDL = 20.0
_ATTEMPTS = 8
_AGREEMENT = 30.0
_POLL = 0.2

_KEYSPACE = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?"
_THERE = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"
_LOCAL = "SELECT host_id, data_center, schema_version, release_version FROM system.local"
_PEERS = "SELECT host_id, data_center, schema_version, release_version FROM system.peers"

_VERSION = "schema_version"

_OLDEST = (4, 1)
"""The first release with Paxos v2 (CEP-14), whose SERIAL writes wait for two round trips."""


class Preparing:
    """Makes the keyspace of `place` ready; `sessions` are those to its data centres."""

    def __init__(
        self,
        sessions: Sessions,
        home: str,
        place: Address,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._sessions = sessions
        self._home = home
        self._keyspace = place.keyspace
        self._hosts = place.datacenters
        self._clock = clock
        self._sleep = sleep
        self._reach = Reach(sessions, home, clock)
        self._conditional = Conditional(clock, os.urandom)

    async def run(self, admit: str | None, owners: Mapping[int, str] | None = None) -> str:
        """As `prepare_cassandra`. `owners` are the slots' owners instead of eight each."""
        await check_version(self._reach, self._keyspace)
        nodes = await self._nodes()
        made = await self._make_tables(nodes)
        steps = await self._migrate()
        for datacenter in self._sessions:
            await self._record(datacenter, nodes.get(datacenter, set()))
        if admit is not None:
            await self._admit(admit, nodes)
        if owners is None:
            await self._share_slots()
        else:
            for slot, region in owners.items():
                await self._once("slots", "slot", slot, {"region": region})
        done = f"admitted {admit}; " if admit else ""
        return f"{done}{self._keyspace} is ready ({made} tables made, {steps} migrated)"

    # Schema

    async def _nodes(self) -> dict[str, set[str]]:
        """The host ids of each data centre's nodes, as all that answer know them together.

        One coordinator alone would leave out itself, or what another region has yet to hear of.
        """
        nodes: dict[str, set[str]] = {}
        for host, datacenter, _, release in await self._ring():
            if (known := re.match(r"(\d+)\.(\d+)", release or "")) and (
                int(known[1]),
                int(known[2]),
            ) < _OLDEST:
                raise StoreUnsuitable(
                    f"node {host} of {datacenter} runs Cassandra {release}, and"
                    f" {'.'.join(map(str, _OLDEST))} or newer is needed: upgrade it"
                )
            nodes.setdefault(datacenter, set()).add(str(host))
        return nodes

    async def _ring(self) -> list[Row]:
        async def seen_by(session: Session) -> list[Row]:
            # The coordinators of a data centre take turns, and none names itself among its peers:
            # each is asked, as often as there are nodes.
            try:
                known = await session.execute(Statement(_PEERS, Level.LOCAL_ONE))
                asked = [Statement(_LOCAL, Level.LOCAL_ONE), Statement(_PEERS, Level.LOCAL_ONE)]
                views = [
                    await session.execute(statement)
                    for statement in asked
                    for _ in range(len(known) + 1)
                ]
            except Unreachable:
                return []
            return [row for view in views for row in view]

        views = await together(map(seen_by, self._sessions.values()))
        return [row for view in views for row in view]

    async def _make_tables(self, nodes: Mapping[str, set[str]]) -> int:
        missing = await self._missing_tables()
        if not missing:
            return 0
        for name, hosts in self._hosts.items():
            if len(nodes.get(name, ())) < len(hosts):
                raise StoreUnavailable(
                    f"{len(nodes.get(name, ()))} of {len(hosts)} nodes of {name} have joined: all"
                    " have to be up when tables are made; start them, then repeat"
                )
        replicas = min(REPLICAS, *(len(nodes[name]) for name in self._sessions))
        keyspace = schema.keyspace_statement(
            self._keyspace, dict.fromkeys(self._sessions, replicas)
        )
        await self._define(keyspace)
        for cql in missing:
            await self._define(cql.format(keyspace=self._keyspace))
        return len(missing)

    async def _missing_tables(self) -> list[str]:
        rows = await self._reach.run(_KEYSPACE, (self._keyspace,), Level.LOCAL_ONE)
        if not rows:
            return list(_TABLES)
        replicas = {name: n for name, n in dict(rows[0][0]).items() if name != "class"}
        if set(replicas) != set(self._sessions) or len(set(replicas.values())) != 1:
            raise StoreUnsuitable(
                f"keyspace {self._keyspace} has replicas {replicas}: it needs the same number in"
                f" each of {', '.join(sorted(self._sessions))} and nowhere else. ALTER KEYSPACE"
                " and repair it, or name another"
            )
        there = await self._reach.run(_THERE, (self._keyspace,), Level.LOCAL_ONE)
        names = {name for (name,) in there}
        return [cql for cql in _TABLES if _table(cql) not in names]

    async def _migrate(self) -> int:
        """Bring the tables to this release's version; how many steps that took.

        Raises StoreUnsuitable for a keyspace of a newer release.
        """
        first = await self._once("installation", "name", _VERSION, {"value": b"1"})
        found = _known(self._keyspace, first["value"])
        for cql in schema.MIGRATIONS[found - 1 :]:
            await self._define(cql.format(keyspace=self._keyspace))
        if found < schema.VERSION:
            await self._put_version(found)
        return schema.VERSION - found

    async def _put_version(self, found: int) -> None:
        table, home = f"{self._keyspace}.installation", self._sessions[self._home]
        select = Statement(f"SELECT value FROM {table} WHERE name = ?", Level.SERIAL)

        async def held() -> object:
            return (await home.execute(select, (_VERSION,)))[0][0]

        update = Statement(
            f"UPDATE {table} SET value = ? WHERE name = ? IF value = ?", Level.QUORUM, Level.SERIAL
        )
        values = (_text(schema.VERSION), _VERSION, _text(found))
        won, now = await self._conditional.write(home, update, values, held)
        if not won:  # another release may have been faster
            _known(self._keyspace, now)

    async def _define(self, cql: str) -> None:
        # Through one data centre whoever prepares: two that make one table at once would give it
        # two ids.
        session = self._sessions[min(self._sessions)]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await session.execute(Statement(cql, Level.QUORUM, timeout=_DDL))
                break
            except StoreError:
                if attempt == _ATTEMPTS:
                    raise
            await self._sleep(jittered(min(0.5 * 2**attempt, 4.0), os.urandom))
        await self._agree()

    async def _agree(self) -> None:
        """Wait until all nodes have the same schema."""
        try:
            async with asyncio.timeout(_AGREEMENT):
                while len({version for _, _, version, _ in await self._ring()}) != 1:
                    await self._sleep(_POLL)
        except TimeoutError:
            raise StoreUnavailable(
                f"Cassandra's nodes have not agreed on a schema within {_AGREEMENT:g} s; see"
                " `nodetool describecluster`, then repeat"
            ) from None

    # Rows

    async def _record(self, datacenter: str, hosts: Collection[str]) -> None:
        select = f"SELECT admission FROM {self._keyspace}.datacenters WHERE datacenter = ?"
        if await self._reach.run(select, (datacenter,), Level.QUORUM):
            return
        if not hosts:
            raise StoreUnavailable(
                f"{datacenter} can't be reached, and it was never on record; start it, then repeat"
            )
        # The marker comes first: once there is a record, only a repair brings it back.
        await self._reach.run(
            f"INSERT INTO {self._keyspace}.markers (datacenter, at) VALUES (?, ?)",
            (datacenter, self._clock.wall()),
            Level.EACH_QUORUM,
        )
        record = {"hosts": json.dumps(sorted(hosts)), "admission": 1}
        await self._once("datacenters", "datacenter", datacenter, record)

    async def _admit(self, datacenter: str, nodes: Mapping[str, set[str]]) -> None:
        if datacenter not in self._sessions:
            raise StoreUnsuitable(
                f"{datacenter} is none of {', '.join(sorted(self._sessions))}; name one of them"
            )
        marker = await self._sessions[datacenter].execute(
            Statement(
                f"SELECT at FROM {self._keyspace}.markers WHERE datacenter = ?", Level.LOCAL_ONE
            ),
            (datacenter,),
        )
        if not marker:
            raise StoreUnavailable(
                f"{datacenter} is still without its data: run `nodetool rebuild` there from"
                f" another data centre, then `nodetool repair -full {self._keyspace}`, and repeat"
            )
        table, home = f"{self._keyspace}.datacenters", self._sessions[self._home]
        select = Statement(f"SELECT admission FROM {table} WHERE datacenter = ?", Level.SERIAL)

        async def admission() -> int:
            return int((await home.execute(select, (datacenter,)))[0][0])

        held = await admission()
        update = Statement(
            f"UPDATE {table} SET hosts = ?, admission = ? WHERE datacenter = ? IF admission = ?",
            Level.EACH_QUORUM,
            Level.SERIAL,
        )
        hosts = json.dumps(sorted(nodes[datacenter]))
        values = (hosts, held + 1, datacenter, held)
        won, now = await self._conditional.write(home, update, values, admission)
        if not won and now != held + 1:
            raise StoreUnavailable(f"{datacenter} was admitted by another meanwhile; look again")

    async def _share_slots(self) -> None:
        """Eight slots for each region. Whoever does it at the same time takes the same."""
        select = f"SELECT slot, region FROM {self._keyspace}.slots LIMIT {SLOTS}"
        owners: dict[int, object] = dict(await self._reach.run(select, (), Level.QUORUM))
        for region in self._sessions:
            for slot in range(SLOTS):
                if list(owners.values()).count(region) >= SLOTS_EACH:
                    break
                if slot not in owners:
                    held = await self._once("slots", "slot", slot, {"region": region})
                    owners[slot] = held["region"]

    async def _once(
        self, table: str, key: str, name: object, values: Mapping[str, object]
    ) -> dict[str, object]:
        """Insert a row where there is none, at SERIAL; the row as it is."""
        columns = ", ".join(values)
        session = self._sessions[self._home]
        insert = Statement(
            f"INSERT INTO {self._keyspace}.{table} ({key}, {columns})"
            f" VALUES ({', '.join('?' * (len(values) + 1))}) IF NOT EXISTS",
            Level.QUORUM,
            Level.SERIAL,
        )
        select = Statement(
            f"SELECT {columns} FROM {self._keyspace}.{table} WHERE {key} = ?", Level.SERIAL
        )

        async def held() -> dict[str, object]:
            rows = await session.execute(select, (name,))
            return dict(zip(values, rows[0], strict=True)) if rows else {}

        _, row = await self._conditional.write(session, insert, (name, *values.values()), held)
        return dict(values) if row is None else row


async def check_version(reach: Reach, keyspace: str) -> None:
    """Raises StoreUnsuitable for a keyspace of a newer release. One without a version passes."""
    there = await reach.run(_THERE, (keyspace,), Level.LOCAL_ONE)
    if ("installation",) not in [tuple(row) for row in there]:
        return
    select = f"SELECT value FROM {keyspace}.installation WHERE name = ?"
    rows = await reach.run(select, (_VERSION,), Level.LOCAL_QUORUM)
    if rows:
        _known(keyspace, rows[0][0])


def _known(keyspace: str, value: Any) -> int:
    """The version that is on record as `value`. Raises StoreUnsuitable for a newer release's."""
    # That may write it otherwise.
    found = bytes(value or b"")
    if not re.fullmatch(rb"[1-9][0-9]{0,8}", found) or int(found) > schema.VERSION:
        raise StoreUnsuitable(
            f"keyspace {keyspace} has schema version {str(found[:20])[2:-1]}, of a newer release;"
            f" this one knows versions up to {schema.VERSION}. Run the newer release. Nothing was"
            " changed"
        )
    return int(found)


def _text(version: int) -> bytes:
    return str(version).encode()


def _table(cql: str) -> str:
    found = re.search(r"\{keyspace\}\.(\w+)", cql)
    if found is None:
        raise ValueError(f"no table of the keyspace is named: {cql}")
    return found[1]
