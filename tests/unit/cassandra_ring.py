"""Cassandra as the adapter's statements see it: a replica for each data centre, in memory.

It runs the CQL that it is given, for the few forms that the adapter has. A data centre that is
`away` answers nothing and misses what is written; what it missed stays missing, as after the loss
of the hints for it, until a read over several data centres repairs it.
"""

import re
from collections.abc import Sequence
from itertools import count
from operator import eq, gt, le
from typing import Any
from uuid import UUID, uuid5

from shortlink.clock import Clock
from shortlink.store.cassandra.session import Level, Row, Statement, Unreachable

DATACENTERS = ("ap", "eu", "us")

Key = tuple[object, ...]
Cell = tuple[int, object]

_KEYS = {
    "hints": ("kind", "bucket", "at", "code", "id"),
    "slots": ("slot",),
    "datacenters": ("datacenter",),
    "beats": ("datacenter", "admission"),
    "markers": ("datacenter",),
    "installation": ("name",),
}
_PARTITION = {"hints": 2, "beats": 1}
_GONE = object()


class Ring:
    """`rows[datacenter][table][key]` has each column's last write and its number."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.away: set[str] = set()
        self.skew = 0
        self.release: str | None = "5.0.8"
        self.hosts = {name: [uuid5(UUID(int=0), name)] for name in DATACENTERS}
        self.rows: dict[str, dict[str, dict[Key, dict[str, Cell]]]] = {}
        for name in DATACENTERS:
            self.wipe(name)
        self.numbers = count(1)
        self.statements: list[tuple[str, Level]] = []
        self.replication: dict[str, object] = {}
        self.tables: list[str] = []
        self.sessions = {name: RingSession(self, name) for name in DATACENTERS}

    def wipe(self, datacenter: str) -> None:
        self.rows[datacenter] = {table: {} for table in _KEYS}

    def copy(self, source: str, target: str) -> None:
        """As a rebuild does."""
        for table, rows in self.rows[source].items():
            for key, cells in rows.items():
                self._merge(target, table, key, cells)

    def live(self, datacenter: str, table: str) -> dict[Key, dict[str, object]]:
        """What `datacenter` itself has."""
        found = {}
        for key, cells in self.rows[datacenter][table].items():
            values = {name: value for name, (_, value) in cells.items() if value is not _GONE}
            if values:
                found[key] = values
        return found

    def replicas(self, home: str, level: Level) -> list[str]:
        """Who answers at `level` through `home`. Raises Unreachable when they are too few."""
        up = [name for name in DATACENTERS if name not in self.away]
        if home in self.away:
            raise Unreachable(f"{home} is away")
        if level in (Level.LOCAL_ONE, Level.LOCAL_QUORUM, Level.LOCAL_SERIAL):
            return [home]
        needed = 3 if level in (Level.EACH_QUORUM, Level.ALL) else 2
        if len(up) < needed:
            raise Unreachable(f"{len(up)} of {needed} answer")
        return up

    def put(self, table: str, key: Key, values: dict[str, object]) -> None:
        number = next(self.numbers)
        for name in DATACENTERS:
            if name not in self.away:
                self._merge(name, table, key, {c: (number, v) for c, v in values.items()})

    def drop(self, table: str, key: Key) -> None:
        for name in DATACENTERS:
            for found in [key] if name not in self.away else []:
                columns = self.rows[name][table].get(found, {"": (0, _GONE)})
                self._merge(name, table, found, {c: (next(self.numbers), _GONE) for c in columns})

    def read(self, replicas: Sequence[str], table: str) -> dict[Key, dict[str, object]]:
        for source in replicas:
            for target in replicas:
                if source != target:
                    for key, cells in self.rows[source][table].items():
                        self._merge(target, table, key, cells)
        return self.live(replicas[0], table)

    def _merge(self, datacenter: str, table: str, key: Key, cells: dict[str, Cell]) -> None:
        held = self.rows[datacenter][table].setdefault(key, {})
        for column, cell in list(cells.items()):
            if column not in held or held[column][0] < cell[0]:
                held[column] = cell


class RingSession:
    """A Session through one data centre of a Ring."""

    def __init__(self, ring: Ring, datacenter: str) -> None:
        self.ring = ring
        self.datacenter = datacenter
        self._turn = 0

    def _coordinator(self) -> UUID:
        """The nodes of a data centre take turns."""
        hosts = self.ring.hosts[self.datacenter]
        self._turn += 1
        return hosts[self._turn % len(hosts)]

    async def execute(self, statement: Statement, values: Sequence[object] = ()) -> Sequence[Row]:
        replicas = self.ring.replicas(self.datacenter, statement.level)
        self.ring.statements.append((statement.cql, statement.level))
        cql, given = " ".join(statement.cql.split()), list(values)
        if "data_center" in cql:
            asked = self._coordinator()
            nodes = [(host, name) for name, hosts in self.ring.hosts.items() for host in hosts]
            return [
                (*node, "v1", self.ring.release)
                for node in nodes
                if (node[0] == asked) is ("local" in cql)
            ]
        if "system_schema.keyspaces" in cql:
            return [(self.ring.replication,)] if self.ring.replication else []
        if "system_schema.tables" in cql:
            return [(table,) for table in self.ring.tables]
        if cql.startswith("CREATE KEYSPACE"):
            self.ring.replication = {"class": "Network", **dict.fromkeys(DATACENTERS, "1")}
            return []
        if found := re.match(r"CREATE TABLE IF NOT EXISTS \w+\.(\w+)", cql):
            self.ring.tables.append(found[1])
            return []
        if cql.startswith("ALTER TABLE"):
            return []
        if "system.local" in cql:
            told = self.ring.clock.wall() + self.ring.skew
            return [(self._coordinator(), told)]
        if found := re.fullmatch(r"INSERT INTO \w+\.(\w+) \((.*?)\) VALUES \((.*?)\)", cql):
            table, columns = found[1], found[2].split(", ")
            row = dict(zip(columns, _literals(found[3].split(", "), given), strict=True))
            key = tuple(row.pop(column) for column in _KEYS[table])
            self.ring.put(table, key, row | {"": True})
            return []
        if found := re.fullmatch(r"DELETE FROM \w+\.(\w+) WHERE (.*)", cql):
            tests = _tests(found[2], given)
            self.ring.drop(found[1], tuple(value for _, _, value in tests))
            return []
        found = re.fullmatch(r"SELECT (.*?) FROM \w+\.(\w+)(?: WHERE (.*?))?(?: LIMIT (.*))?", cql)
        assert found, f"this Cassandra doesn't understand {cql!r}"
        columns, table = found[1].split(", "), found[2]
        tests = _tests(found[3], given) if found[3] else []
        [most] = _literals([found[4] or "5000"], given)
        rows = []
        for key, cells in sorted(self.ring.read(replicas, table).items(), key=lambda row: row[0]):
            row = {**cells, **dict(zip(_KEYS[table], key, strict=True))}
            if all(_holds(row[column], sign, value) for column, sign, value in tests):
                rows.append(tuple(row.get(column) for column in columns))
        assert isinstance(most, int)
        return rows[:most]

    async def applied(self, statement: Statement, values: Sequence[object] = ()) -> bool:
        assert statement.serial
        self.ring.replicas(self.datacenter, statement.serial)
        if statement.cql.startswith("UPDATE links.datacenters"):
            hosts, admission, name, held = values
            rows = self.ring.read(self.ring.replicas(self.datacenter, Level.QUORUM), "datacenters")
            if rows[name,]["admission"] != held:
                return False
            self.ring.put("datacenters", (name,), {"hosts": hosts, "admission": admission})
            return True
        if statement.cql.startswith("UPDATE links.installation"):
            new, name, old = values
            rows = self.ring.read(self.ring.replicas(self.datacenter, Level.QUORUM), "installation")
            if rows[name,]["value"] != old:
                return False
            self.ring.put("installation", (name,), {"value": new})
            return True
        assert statement.cql.endswith(" IF NOT EXISTS"), statement.cql
        cql = statement.cql.removesuffix(" IF NOT EXISTS")
        found = re.match(r"INSERT INTO \w+\.(\w+) ", cql)
        assert found
        key = tuple(values[: len(_KEYS[found[1]])])
        if key in self.ring.read(self.ring.replicas(self.datacenter, Level.QUORUM), found[1]):
            return False
        await self.execute(Statement(cql, statement.level), values)
        return True

    async def close(self) -> None:
        """There is nothing to let go of."""


def _literals(words: Sequence[str], given: list[object]) -> list[object]:
    def value(word: str) -> object:
        if word == "?":
            return given.pop(0)
        return word.strip("'") if word.startswith("'") else int(word)

    return [value(word) for word in words]


def _tests(where: str, given: list[object]) -> list[tuple[str, str, object]]:
    parts = [part.split(" ", 2) for part in where.split(" AND ")]
    return [(column, sign, _literals([word], given)[0]) for column, sign, word in parts]


def _holds(held: Any, sign: str, value: Any) -> bool:
    return bool({"=": eq, "<=": le, ">": gt}[sign](held, value))
