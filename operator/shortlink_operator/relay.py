"""The relay: takes pending events from the store to the stream, at least once, in order (N1)."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from shortlink.links.instants import format_instant
from shortlink.links.model import Event
from shortlink.store.port import LinkStore

_BATCH = 200

Sink = Callable[[Sequence[Event]], Awaitable[None]]
"""Takes events for good: when it returns they are kept. Repeated events have the same id."""


class Relay:
    """Publishes what is pending in `store` to `sink`, then forgets it in the store."""

    def __init__(self, store: LinkStore, sink: Sink) -> None:
        self._store = store
        self._sink = sink
        self.published = 0

    async def run(self) -> None:
        """Publish everything pending. Raises StoreError or what the sink raises."""
        while events := await self._store.pending(_BATCH):
            await self._sink(events)
            await self._store.published([event.id for event in events])
            self.published += len(events)


class AuditLog:
    """A sink that appends one JSON line for each event to a file (O4)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self, events: Sequence[Event]) -> None:
        """Append `events`; raises OSError when they can't be written."""
        lines = [json.dumps({**asdict(e), "at": format_instant(e.at)}) + "\n" for e in events]
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
