"""100,000 links created, against bare sqlite3 writing the same rows (W7, S5).

Both sync the disk before an answer. The peer knows all rows beforehand and commits as many at a
time as callers wait here, so it is what the file and the driver cost alone.
"""

import asyncio
import json
import resource
import secrets
import sqlite3
import tempfile
import time
from pathlib import Path

from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.codes import SLOT_KEY_BYTES, SLOTS, RandomCodes, SlotMap
from shortlink.links.lifecycle import Actor, Create
from shortlink.links.policy import Policy
from shortlink.management import Management
from shortlink.store.sql import open_sql_store

LINKS = 100_000
CALLERS = (1, 64)
ALONE = 5_000
"""Links of the run with one caller, for it is slow."""

HERE = Path(__file__).parent


def main() -> int:
    """Run both in turn, print the table, keep the figures."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for callers in CALLERS:
            count = LINKS if callers > 1 else ALONE
            path = Path(name, f"{callers}.db")
            ours = asyncio.run(_create(path, count, callers))
            peer = _insert(path, Path(name, f"peer-{callers}.db"), callers)
            rows.append({"callers": callers, "links": count, "per_s": ours, "sqlite3_per_s": peer})
    print(f"{'callers':>8} {'links':>8} {'creates/s':>10} {'sqlite3/s':>10} {'ratio':>6}")
    for row in rows:
        print(
            f"{row['callers']:8} {row['links']:8,} {row['per_s']:10,.0f}"
            f" {row['sqlite3_per_s']:10,.0f} {row['per_s'] / row['sqlite3_per_s']:6.2f}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the whole run: {peak:.0f} MiB")
    path = HERE / "results" / "creates.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"rows": rows, "peak_mib": peak}, indent=2) + "\n")
    print(f"Figures: {path.relative_to(HERE.parent)}")
    return 0


async def _create(path: Path, count: int, callers: int) -> float:
    store = open_sql_store(path)
    slots = SlotMap(await store.install(secrets.token_bytes(SLOT_KEY_BYTES)))
    codes = RandomCodes(slots, range(SLOTS), secrets.token_bytes)
    management = Management(
        store, Policy(), SYSTEM_CLOCK, codes.draw, lambda: secrets.token_hex(16)
    )
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            target = f"https://www.example.com/articles/2026/some-story-number-{number}"
            await management.create_generated(
                Create(
                    by=Actor("bench"),
                    code="",
                    target=target,
                    token=management.new_token(),
                    custom=False,
                )
            )

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    seconds = time.perf_counter() - began
    await store.close()
    return count / seconds


def _insert(source: Path, path: Path, group: int) -> float:
    """Write the rows of `source`'s links, hints and events to a new file, `group` to a commit."""
    tables = ("links", "due", "events")
    with sqlite3.connect(source) as old:
        schema = old.execute(
            "SELECT sql FROM sqlite_master WHERE tbl_name IN ('links', 'due', 'events')"
            " AND sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        rows = {table: old.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    old.close()
    new = sqlite3.connect(path, isolation_level=None)
    new.execute("PRAGMA journal_mode=WAL")
    new.execute("PRAGMA synchronous=FULL")
    for (statement,) in schema:
        new.execute(statement)
    links = len(rows["links"])
    began = time.perf_counter()
    for start in range(0, links, group):
        new.execute("BEGIN IMMEDIATE")
        for table in tables:
            share = len(rows[table]) // links  # rows of this table to a link
            part = rows[table][start * share : (start + group) * share]
            marks = ",".join("?" * len(part[0]))
            new.executemany(f"INSERT INTO {table} VALUES ({marks})", part)
        new.execute("COMMIT")
    seconds = time.perf_counter() - began
    new.close()
    return links / seconds
