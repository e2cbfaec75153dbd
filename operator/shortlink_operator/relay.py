"""The relay: takes pending events from the store to the stream, at least once, in order (N1)."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from shortlink.links.instants import format_instant
from shortlink.links.model import Event
from shortlink.store.port import LinkStore

RELAY_PAUSE = 0.5
"""Seconds between two runs."""

_BATCH = 200

Sink = Callable[[Sequence[Event]], Awaitable[None]]
"""Takes events for good: when it returns they are kept. Repeated events have the same id."""


class Relay:
    """Publishes what is pending in `store` to `sink`, then forgets it in the store."""

    def __init__(self, store: LinkStore, sink: Sink) -> None:
        self._store = store
        self._sink = sink

    async def run(self) -> None:
        """Publish everything pending. Raises StoreError or what the sink raises."""
        while events := await self._store.pending(_BATCH):
            await self._sink(events)
            await self._store.published([event.id for event in events])


class AuditLog:
    """A sink that appends one JSON line for each event to a file (O4)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self, events: Sequence[Event]) -> None:
        """Append `events` and sync the disk. Raises OSError when they can't be written."""
        await asyncio.to_thread(self._append, events)

    def _append(self, events: Sequence[Event]) -> None:
        lines = [json.dumps({**asdict(e), "at": format_instant(e.at)}) + "\n" for e in events]
        if self._is_torn():
            lines.insert(0, "\n")  # what a crash cut off is among the events that come again
        with self._path.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _is_torn(self) -> bool:
        if not self._path.exists() or self._path.stat().st_size == 0:
            return False
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
