"""The LinkStore on Cassandra: which rows a call reads and writes, where, and in which order."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from shortlink.clock import Clock
from shortlink.links.model import Event, Link
from shortlink.store.cassandra.claims import Claims
from shortlink.store.cassandra.conditional import there
from shortlink.store.cassandra.hints import Hints
from shortlink.store.cassandra.outbox import Outbox
from shortlink.store.cassandra.reach import together
from shortlink.store.cassandra.rows import Rows, in_slots
from shortlink.store.cassandra.session import Level, Session, Statement, Unreachable
from shortlink.store.cassandra.topology import Topology
from shortlink.store.port import Claim, Due, NotFoundHere, StoreError, StoreUnavailable

READ = 1.8
"""Seconds until a read of a link is given up, whatever number of data centres it asks."""

LAST_WRITES = 10.0
"""Seconds that closing waits for writes under way."""

WRITES = 32
"""Writes under way at once: more would only make all of them late."""

WAITING = 1024
"""Writes that may wait for their turn; the next is refused at once."""

TURN = 5.0
"""Seconds until a write that has not had its turn is refused."""

PER_SECOND, BURST = 50, 200
"""Unknown codes that may be asked beyond the region."""

_SLOT_KEY = "slot_key"
_POLICY = "policy/"
_AT_ONCE = 32


class Budget:
    """A token bucket: so many looks beyond the region a second, and at once."""

    def __init__(self, clock: Clock, per_second: int, burst: int) -> None:
        self._clock = clock
        self._per_second = per_second
        self._burst = burst
        self._left = float(burst)
        self._at = clock.steady()

    def take(self) -> bool:
        """Whether one more may be made."""
        now = self._clock.steady()
        earned = (now - self._at) / 1_000 * self._per_second
        self._left = min(self._left + earned, self._burst)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class CassandraStore:
    """A LinkStore. Of a write, the hints come first: one without its row is harmless."""

    def __init__(
        self,
        rows: Rows,
        claims: Claims,
        hints: Hints,
        outbox: Outbox,
        topology: Topology,
        clock: Clock,
    ) -> None:
        self._rows = rows
        self._claims = claims
        self._hints = hints
        self._outbox = outbox
        self._topology = topology
        self._abroad = Budget(clock, PER_SECOND, BURST)
        self._closed = False
        self._writes = 0
        self._turns = asyncio.Semaphore(WRITES)
        self._idle = asyncio.Event()
        self._idle.set()
        table = f"{rows.keyspace}.installation"
        self._installed = f"SELECT value FROM {table} WHERE name = ?"
        self._install = Statement(
            f"INSERT INTO {table} (name, value) VALUES (?, ?) IF NOT EXISTS",
            Level.LOCAL_QUORUM,
            Level.SERIAL,
        )
        self._replace = Statement(
            f"UPDATE {table} SET value = ? WHERE name = ? IF EXISTS",
            Level.LOCAL_QUORUM,
            Level.SERIAL,
        )

    # Links

    async def install(self, slot_key: bytes) -> bytes:
        # It never changes, so a copy found nearby is the one; a cut-off region can start.
        return await self._install_once(_SLOT_KEY, slot_key)

    async def slots(self) -> Collection[int]:
        return await self._topology.slots()

    async def create(self, link: Link, events: Sequence[Event], due: Sequence[int]) -> Link:
        async with self._writing():
            if await self._rows.here(link.code) is not None:
                held = await self._rows.serially(link.code)
                if held is not None:
                    return held.link
            owner = await self._birthplace(link.code) if in_slots(link.code) else None
            await self._hints.announce(link, events, due)
            return await self._rows.create(link, events, owner)

    async def change(
        self, old: Link, new: Link, events: Sequence[Event], due: Sequence[int]
    ) -> Link:
        async with self._writing():
            kept = await self._rows.here(old.code)
            if kept is None or kept.link.stamp != old.stamp:
                kept = await self._rows.serially(old.code)
            if kept is None:
                raise KeyError(old.code)
            if kept.link.stamp != old.stamp:
                return kept.link
            await self._hints.announce(new, events, due)
            return await self._rows.change(kept, new, events)

    async def get(self, code: str) -> Link | None:
        try:
            async with asyncio.timeout(READ):
                return await self._look(code)
        except TimeoutError as error:
            raise Unreachable(
                f"none of {', '.join(self._topology.readers())} answered within {READ} s; retry"
                " later"
            ) from error

    async def _look(self, code: str) -> Link | None:
        readers = self._topology.readers()
        asked, kept = await self._rows.first(readers, code)
        if kept is not None:
            return kept.link
        # What was born or begun elsewhere may not be here yet.
        owner = await self._topology.owner(code) if in_slots(code) else None
        if owner == asked or len(self._rows.sessions) == 1:
            return None
        others = [reader for reader in readers if reader != asked]
        if owner is not None:
            others = [reader for reader in others if reader == owner]
        if not others:
            raise Unreachable(
                f"{asked} has no link {code}, and {owner or 'another data centre'}, which has to"
                " be asked as well, may not serve reads now; retry later"
            )
        if not self._abroad.take():
            raise NotFoundHere(
                f"{code} is not known in {asked}, and the others are asked for too many unknown"
                " codes right now; try again"
            )
        _, kept = await self._rows.first(others, code)
        return None if kept is None else kept.link

    async def views(self, code: str) -> Mapping[str, Link | StoreError | None]:
        async def view(datacenter: str) -> tuple[str, Link | StoreError | None]:
            try:
                kept = await self._rows.at(datacenter, code)
            except StoreError as error:
                return datacenter, error
            return datacenter, None if kept is None else kept.link

        return dict(await together(map(view, self._rows.sessions)))

    async def by_owner(self, owner: str, after: str, limit: int) -> Sequence[Link]:
        links: list[Link] = []
        while len(links) < limit:
            codes = await self._hints.owned(owner, after, limit)
            for start in range(0, len(codes), _AT_ONCE):
                rows = (self._rows.read(code) for code in codes[start : start + _AT_ONCE])
                kept = [each.link for each in await asyncio.gather(*rows) if each is not None]
                links += [link for link in kept if link.owner == owner]
            if len(codes) < limit:
                break
            after = codes[-1]
        return links[:limit]

    async def _birthplace(self, code: str) -> str:
        owner = await self._topology.owner(code)
        if owner == self._topology.home:
            await self._topology.may_write_births()
        elif owner is None or owner not in self._topology.readers():
            raise StoreUnavailable(
                f"{code} can be created only in {owner or 'a region that has yet to come'}, which"
                " can't be reached; choose another length"
            )
        return owner

    # The installation

    async def keep_policy(self, region: str, text: str) -> None:
        name, value = f"{_POLICY}{region}", text.encode()
        if await self._install_once(name, value) == value:
            return
        async with self._writing():
            session = self._rows.seat
            await self._rows.conditional.write(
                session,
                self._replace,
                (value, name),
                there(lambda: self._kept(Level.SERIAL, session, name)),
            )

    async def policies(self) -> Mapping[str, str]:
        async def kept(region: str) -> tuple[str, bytes | None]:
            name = f"{_POLICY}{region}"
            return region, await self._kept(Level.LOCAL_QUORUM, self._rows.seat, name)

        found = await together(map(kept, self._rows.sessions))
        return {region: value.decode() for region, value in found if value is not None}

    async def _install_once(self, name: str, value: bytes) -> bytes:
        """Keep `value` if none is kept yet; the one in force."""
        kept = await self._kept(Level.LOCAL_QUORUM, self._rows.seat, name)
        if kept is not None:
            return kept
        async with self._writing():
            session = self._rows.seat
            _, held = await self._rows.conditional.write(
                session,
                self._install,
                (name, value),
                there(lambda: self._kept(Level.SERIAL, session, name)),
            )
        return value if held is None else held

    async def _kept(self, level: Level, session: Session, name: str) -> bytes | None:
        rows = await session.execute(Statement(self._installed, level), (name,))
        return bytes(rows[0][0]) if rows else None

    # Hints

    async def due(self, until: int, limit: int) -> Sequence[Due]:
        self._topology.check_clock()
        return await self._hints.due(until, limit)

    async def done(self, due: Sequence[Due], again: Sequence[Due]) -> None:
        async with self._writing():
            await self._hints.done(due, again)

    # Events

    async def announce(self, event: Event) -> None:
        async with self._writing():
            await self._outbox.announce(event)

    async def pending(self, limit: int) -> Sequence[Event]:
        return await self._outbox.pending(limit)

    async def published(self, ids: Sequence[str]) -> None:
        async with self._writing():
            await self._outbox.published(ids)

    # Claims

    async def claim(self, claim: Claim) -> Claim:
        async with self._writing():
            return await self._claims.claim(claim)

    async def reclaim(self, old: Claim, new: Claim | None) -> bool:
        async with self._writing():
            return await self._claims.reclaim(old, new)

    async def claims(self, after: str, limit: int) -> Sequence[Claim]:
        return await self._claims.page(after, limit)

    async def find_claim(self, key: str) -> Claim | None:
        return await self._claims.find(key)

    # The store itself

    async def ping(self) -> None:
        await self._rows.first(self._topology.readers(), "ping")  # as a visitor's read would go

    async def close(self) -> None:
        self._closed = True
        try:
            async with asyncio.timeout(LAST_WRITES):
                await self._idle.wait()
        except TimeoutError:
            pass  # their callers are told that the outcome is unknown
        await self._topology.close()
        await asyncio.gather(*(session.close() for session in self._rows.sessions.values()))

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        if self._closed:
            raise StoreUnavailable("the store was closed; open it again")
        if self._writes >= WAITING:
            raise StoreUnavailable(f"{WAITING} writes wait for Cassandra already; retry later")
        self._writes += 1
        self._idle.clear()
        try:
            try:
                async with asyncio.timeout(TURN):
                    await self._turns.acquire()
            except TimeoutError as error:
                raise StoreUnavailable(
                    f"a write had no turn within {TURN} s, for others are slow; retry later"
                ) from error
            try:
                yield
            finally:
                self._turns.release()
        finally:
            self._writes -= 1
            if self._writes == 0:
                self._idle.set()
