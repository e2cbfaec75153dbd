"""A small Cassandra in memory: sessions on tables that several data centres may share.

It knows just enough CQL for the adapter's statements, and any call can be made to go wrong.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from shortlink.store.cassandra.session import Level, Row, Statement, Unreachable

KEYSPACE = "links"
_KEYS = {
    "births": ["code"],
    "links": ["code"],
    "claims": ["bucket", "key"],
    "installation": ["name"],
}

Tables = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


def no_tables() -> Tables:
    return {name: {} for name in _KEYS}


class Fault(Enum):
    """What goes wrong with a call."""

    LOST = "it was not carried out, and nobody says so"
    LATE = "it was carried out, and nobody says so"
    HANGS = "it gets no answer"


@dataclass
class FakeSession:
    """A Session. `faults` says what goes wrong with a statement; `log` has all that were sent."""

    datacenter: str
    tables: Tables = field(default_factory=no_tables)
    faults: Callable[[Statement], Fault | None] = lambda _: None
    log: list[tuple[Statement, Sequence[object]]] = field(default_factory=list)
    closed: bool = False

    async def execute(self, statement: Statement, values: Sequence[object] = ()) -> Sequence[Row]:
        self.log.append((statement, values))
        fault = self.faults(statement)
        if fault is Fault.HANGS:
            await asyncio.Event().wait()
        if fault is Fault.LOST:
            raise Unreachable(f"{self.datacenter} did not answer")
        rows = run(self.tables, statement.cql, list(values))
        if fault is Fault.LATE:
            raise Unreachable(f"{self.datacenter} did not answer")
        return rows

    async def applied(self, statement: Statement, values: Sequence[object] = ()) -> bool:
        assert statement.serial is not None
        return bool((await self.execute(statement, values))[0][0])

    async def close(self) -> None:
        self.closed = True

    def sent(self, words: str) -> list[Statement]:
        """The statements with `words` in them."""
        return [statement for statement, _ in self.log if words in statement.cql]


def in_turn(words: str, *faults: Fault | None) -> Callable[[Statement], Fault | None]:
    """`faults` for the first statements that have `words` in them, one for each."""
    left = list(faults)
    return lambda statement: left.pop(0) if left and words in statement.cql else None


def always(words: str, fault: Fault = Fault.LOST) -> Callable[[Statement], Fault | None]:
    return lambda statement: fault if words in statement.cql else None


def serial_levels(*sessions: FakeSession) -> dict[str, set[Level]]:
    """By table, the levels of its conditional writes and serial reads."""
    levels: dict[str, set[Level]] = {}
    for session in sessions:
        for statement, _ in session.log:
            level = statement.serial or statement.level
            if level in (Level.SERIAL, Level.LOCAL_SERIAL):
                levels.setdefault(_table(statement.cql), set()).add(level)
    return levels


def _table(cql: str) -> str:
    found = re.search(rf"{KEYSPACE}\.(\w+)", cql)
    assert found is not None, f"no table of {KEYSPACE} in {cql}"
    return found[1]


def run(tables: Tables, cql: str, values: list[Any]) -> Sequence[Row]:
    """Carry out one statement."""
    name = _table(cql)
    table, keys = tables[name], _KEYS[name]
    if found := re.fullmatch(r"INSERT INTO \S+ \((.*)\) VALUES \([?, ]+\) IF NOT EXISTS", cql):
        row = dict(zip(found[1].split(", "), values, strict=True))
        key = tuple(row[column] for column in keys)
        if key in table:
            return [(False,)]
        table[key] = row
        return [(True,)]
    if found := re.fullmatch(r"SELECT (.*) FROM \S+ WHERE (.*?)( LIMIT \?)?", cql):
        most = values.pop() if found[3] else None
        tests = found[2].split(" AND ")
        rows = [row for row in table.values() if _holds(row, tests, values)]
        rows.sort(key=lambda row: [row[column] for column in keys])
        return [tuple(row.get(column) for column in found[1].split(", ")) for row in rows[:most]]
    found = re.fullmatch(r"(?:UPDATE \S+ SET (.*)|DELETE FROM \S+) WHERE (.*) IF (.*)", cql)
    assert found is not None, cql
    changes = found[1].split(", ") if found[1] else []
    new, rest = values[: len(changes)], values[len(changes) :]
    where = found[2].split(" AND ")
    row_ = table.get(tuple(rest[: len(where)]))
    tests = [] if found[3] == "EXISTS" else found[3].split(" AND ")
    if row_ is None or not _holds(row_, tests, rest[len(where) :]):
        return [(False,)]
    if not changes:
        del table[tuple(rest[: len(where)])]
    for change, value in zip(changes, new, strict=True):
        column, _, expression = change.partition(" = ")
        if expression.endswith("+ ?"):
            row_[column] = [*row_[column], *value]
        elif expression.endswith("- ?"):
            row_[column] = [each for each in row_[column] if each not in value]
        else:
            row_[column] = value
    return [(True,)]


def _holds(row: dict[str, Any], tests: Sequence[str], values: Sequence[Any]) -> bool:
    for test, value in zip(tests, values, strict=True):
        column, operator, _ = test.split()
        if not (row[column] > value if operator == ">" else row.get(column) == value):
            return False
    return True
