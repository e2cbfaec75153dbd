"""A namespace of its own in a cluster with an operator, and what a test asks of both."""

import sqlite3
from contextlib import closing
from itertools import count
from typing import Any

from tests.drills.demo_process import wait_for
from tests.operator_rig import Document, Objects, OperatorProcess, ready

TARGET = "https://example.com/a"
SWEEP = "5"
"""Seconds between two sweeps, the least that there may be."""

_numbers = count(1)


class Here:
    """A namespace of its own in a cluster with an operator."""

    def __init__(self, objects: Objects, operator: OperatorProcess) -> None:
        self.objects = objects
        self.operator = operator
        self.namespace = f"team-{next(_numbers)}"
        objects.namespace(self.namespace)

    def key(self, name: str) -> str:
        return f"{self.namespace}/{name}"

    def create(self, name: str, **spec: Any) -> str:
        """Make an object; its key."""
        self.objects.create(self.key(name), {"target": TARGET} | spec)
        return self.key(name)

    def many(self, number: int, **spec: Any) -> list[str]:
        """So many objects that are Ready; their keys."""
        keys = [self.create(f"link-{each:02}", **spec) for each in range(number)]
        for key in keys:
            self.objects.ready(key)
        return keys

    def code(self, key: str) -> str:
        """The code in the status of an object that is Ready."""
        code: str = self.objects.ready(key)["status"]["code"]
        return code

    def reason(self, key: str, reason: str) -> Document:
        """Wait for this reason of the condition about the object as it is; the condition."""
        wait_for(lambda: (self.said(key) or {}).get("reason") == reason, f"{key}: {reason}", 60)
        said = self.said(key)
        assert said is not None
        return said

    def says(self, key: str, words: str) -> None:
        """Wait until the message of that condition has these words."""
        wait_for(lambda: words in (self.said(key) or {}).get("message", ""), f"{key}: {words}", 60)

    def said(self, key: str) -> Document | None:
        document = self.objects.get(key)
        return None if document is None else ready(document)

    def link(self, code: str) -> dict[str, Any]:
        """The row at a code."""
        return row(self.operator, "SELECT * FROM links WHERE code = ?", code)

    def states(self) -> list[str]:
        """Of all links of the namespace."""
        return states(self.operator, self.namespace)


def row(operator: OperatorProcess, query: str, *values: str) -> dict[str, Any]:
    with closing(sqlite3.connect(operator.output.parent / "links.db")) as database:
        database.row_factory = sqlite3.Row
        found = database.execute(query, values).fetchone()
    return {} if found is None else dict(found)


def states(operator: OperatorProcess, owner: str) -> list[str]:
    with closing(sqlite3.connect(operator.output.parent / "links.db")) as database:
        rows = database.execute("SELECT state FROM links WHERE owner = ?", (owner,)).fetchall()
    return sorted(state for (state,) in rows)


def writes(operator: OperatorProcess) -> float:
    """Patches and creations that the operator has sent, but for its Lease."""
    return sum(
        value
        for name, value in operator.series().items()
        if name.startswith("shortlink_operator_requests_total")
        and ('verb="patch"' in name or 'verb="create"' in name)
        and "leases" not in name
    )


def swept(operator: OperatorProcess, times: int = 2) -> None:
    """Wait until the operator has swept so many times, the first of them begun after now."""
    name = 'shortlink_loop_rounds_total{loop="objects"}'
    until = operator.series().get(name, 0) + times
    wait_for(lambda: operator.series().get(name, 0) >= until, f"{times} sweeps", 90)
