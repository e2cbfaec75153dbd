"""Events that wait to be published, found by hints: the home region's own (N1).

The events themselves are in their codes' rows; an event that no change carries is kept in its
hint. Before a hint is dropped, its row was brought to every data centre: Cassandra's own hints
for a node that was away are lost with the node that keeps them, and with those an acknowledged
deletion. While a data centre is away the hint waits in a second list, so that what is finished
doesn't hold up what is new.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace

from shortlink.clock import Clock
from shortlink.links.codes import Entropy
from shortlink.links.model import Event
from shortlink.links.policy import HOUR, MINUTE, SECOND
from shortlink.store.cassandra.buckets import Buckets, Hint
from shortlink.store.cassandra.hints import OUTBOX_WIDTH
from shortlink.store.cassandra.reach import together
from shortlink.store.cassandra.rows import Kept
from shortlink.store.cassandra.session import Sessions
from shortlink.store.record import event_from_text, event_to_text

_OVERDUE = MINUTE
"""A write that is still unknown is given up long before (conditional.DEADLINE)."""

_RETRY = 5 * SECOND
_BATCH = 200
_AT_ONCE = 16


class Outbox:
    """Works on the rows by `read`, `clear` (drop published events) and `settle` (bring the row
    to every data centre; False when one is away)."""

    def __init__(
        self,
        sessions: Sessions,
        home: str,
        keyspace: str,
        clock: Clock,
        entropy: Entropy,
        read: Callable[[str], Awaitable[Kept | None]],
        clear: Callable[[str, Collection[str]], Awaitable[None]],
        settle: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._clock = clock
        self._read = read
        self._clear = clear
        self._settle = settle

        def buckets(kind: str) -> Buckets:
            return Buckets(sessions, home, keyspace, clock, entropy, f"{kind}.{home}", OUTBOX_WIDTH)

        self._waiting = buckets("outbox")
        self._unsettled = buckets("unsettled")
        self._hints: dict[str, list[Hint]] = {}  # by code, as `pending` last found them
        self._away_at: int | None = None
        self._looking = asyncio.Lock()

    async def announce(self, event: Event) -> None:
        """Keep an event that no change carries. Raises Unreachable."""
        text = event_to_text(event)
        await self._waiting.add([self._waiting.hint(self._clock.wall(), event.code, event=text)])

    async def pending(self, limit: int) -> Sequence[Event]:
        """Events not yet published: of one code in order, of all codes by their oldest hint."""
        # One look at a time: each reads many rows, and other readers wait for those.
        async with self._looking:
            await self._settle_some()
            return (await self._look(limit))[:limit]

    async def _look(self, limit: int) -> list[Event]:
        # Another process's clock may be ahead.
        hints = await self._waiting.read(self._clock.wall() + HOUR, limit)
        self._hints = _by_code(sorted(hints, key=lambda hint: (hint.at, hint.id)))
        told: list[Event] = []
        stale: list[Hint] = []
        for codes in _batches(list(self._hints)):
            for code, kept in zip(codes, await together(map(self._read, codes)), strict=True):
                events, without = _told(kept, self._hints[code])
                told += events
                stale += without
        overdue = self._clock.wall() - _OVERDUE
        await self._set_aside([hint for hint in stale if hint.at < overdue])
        return told

    async def published(self, ids: Sequence[str]) -> None:
        """Forget these events. Raises StoreError; what was not done yet may be told again."""
        gone = set(ids)
        known = {id_ for hints in self._hints.values() for hint in hints for id_ in _ids(hint)}
        if not gone <= known:
            await self.pending(_BATCH)
        mine = {
            code: hints
            for code, found in self._hints.items()
            if (hints := [hint for hint in found if gone.intersection(_ids(hint))])
        }
        for codes in _batches(list(mine)):
            await together(self._forget(code, mine[code], gone) for code in codes)

    async def _forget(self, code: str, hints: Sequence[Hint], gone: Collection[str]) -> None:
        in_row = {id_ for hint in hints for id_ in hint.ids if id_ in gone}
        if in_row:
            await self._clear(code, in_row)
        left = [
            replace(self._waiting.hint(hint.at, code), ids=ids)
            for hint in hints
            if (ids := tuple(id_ for id_ in hint.ids if id_ not in gone))
        ]
        await self._waiting.add(left)
        if in_row and (self._is_away() or not await self._settled(code)):
            await self._set_aside([replace(hint, ids=(), event="") for hint in hints])
        else:
            await self._waiting.drop(hints)
        kept = [hint for hint in self._hints.get(code, ()) if hint not in hints]
        self._hints[code] = [*kept, *left]

    async def _set_aside(self, hints: Sequence[Hint]) -> None:
        now = self._clock.wall()
        await self._unsettled.add([replace(hint, at=now) for hint in hints])
        await self._waiting.drop(hints)

    async def _settle_some(self) -> None:
        """Try again those that were set aside, unless a data centre is known to be away."""
        if self._is_away():
            return
        hints = _by_code(await self._unsettled.read(self._clock.wall() + HOUR, _BATCH))
        for codes in _batches(list(hints)):
            settled = await together(map(self._settled, codes))
            done = [code for code, well in zip(codes, settled, strict=True) if well]
            for code, kept in zip(done, await together(map(self._read, done)), strict=True):
                events, _ = _told(kept, hints[code])
                if events:  # the row was written after all
                    ids = tuple(event.id for event in events)
                    again = self._waiting.hint(self._clock.wall(), code, ids)
                    await self._waiting.add([again])
                await self._unsettled.drop(hints[code])
            if len(done) < len(codes):
                return

    async def _settled(self, code: str) -> bool:
        well = await self._settle(code)
        if not well:
            self._away_at = self._clock.steady()
        return well

    def _is_away(self) -> bool:
        return self._away_at is not None and self._clock.steady() - self._away_at < _RETRY


def _told(kept: Kept | None, hints: Iterable[Hint]) -> tuple[list[Event], list[Hint]]:
    """The events that `hints` of one code lead to, each once, and the hints that lead to none."""
    rows = {} if kept is None else {event.id: event for event in (*kept.born, *kept.pending)}
    wanted = {id_ for hint in hints for id_ in hint.ids}
    found = {id_: event for id_, event in rows.items() if id_ in wanted}
    stale = []
    for hint in hints:
        if hint.event:
            event = event_from_text(hint.event)
            found.setdefault(event.id, event)
        elif not found.keys() & set(hint.ids):
            stale.append(hint)
    return list(found.values()), stale


def _ids(hint: Hint) -> tuple[str, ...]:
    return (event_from_text(hint.event).id,) if hint.event else hint.ids


def _by_code(hints: Iterable[Hint]) -> dict[str, list[Hint]]:
    found: dict[str, list[Hint]] = {}
    for hint in hints:
        found.setdefault(hint.code, []).append(hint)
    return found


def _batches(codes: Sequence[str]) -> Iterable[Sequence[str]]:
    return [codes[start : start + _AT_ONCE] for start in range(0, len(codes), _AT_ONCE)]
