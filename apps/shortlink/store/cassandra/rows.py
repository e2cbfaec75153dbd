"""The rows of a link: its birth, which never changes, and what became of it since.

A code of seven characters begins in `births`, in the data centre of the region that owns its
slot; any other begins in `links`. Every change is a row of `links`. Each table has one serial
level for ever (schema.py).
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from shortlink.clock import Clock
from shortlink.links.codes import LENGTH, Entropy
from shortlink.links.model import Event, Link
from shortlink.store.cassandra.conditional import Conditional, there
from shortlink.store.cassandra.session import Level, Row, Session, Sessions, Statement, Unreachable
from shortlink.store.port import StoreUnavailable
from shortlink.store.record import event_from_text, event_to_text, from_text, to_text

HEDGE = 0.25
"""Seconds until the next data centre is asked beside one that does not answer."""

PATIENCE = 0.75
"""Seconds until another data centre's answer is taken in the place of the best one's, which
alone is sure to have what was just written through it."""

PENDING = 100
"""Events of one link that may wait to be published; the change with one more is refused."""


_NOBODY = "no data centre that may serve reads can be asked; retry later"


@dataclass(frozen=True, slots=True)
class Kept:
    """What the rows of one code hold.

    `born` are the events of its birth, which stay with it for ever; `pending` are those of its
    changes that are not yet published, in order. A link that is not `changed` is as it was born.
    """

    link: Link
    born: tuple[Event, ...] = ()
    pending: tuple[Event, ...] = ()
    changed: bool = False


class Places(Protocol):
    """Which data centre to ask for what; they are named as their regions."""

    async def owner(self, code: str) -> str | None:
        """The one in which this code of seven characters is born; None: its slot has none."""

    def readers(self) -> Sequence[str]:
        """Those fit to serve reads, best first."""


def in_slots(code: str) -> bool:
    """Whether `code` lies in a slot, as every generated code does."""
    return len(code) == LENGTH and code.isascii() and code.isalnum()


class Rows:
    """The tables `births` and `links`. Reads raise Unreachable, writes StoreUnavailable."""

    def __init__(
        self,
        sessions: Sessions,
        home: str,
        keyspace: str,
        places: Places,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.sessions = sessions
        self._home = home
        self.keyspace = keyspace
        self.places = places
        self.conditional = Conditional(clock, entropy)
        births, links = f"{keyspace}.births", f"{keyspace}.links"
        self._birth = f"SELECT link, events FROM {births} WHERE code = ?"
        self._link = f"SELECT link, events FROM {links} WHERE code = ?"
        self._bear = Statement(
            f"INSERT INTO {births} (code, link, events) VALUES (?, ?, ?) IF NOT EXISTS",
            Level.LOCAL_QUORUM,
            Level.LOCAL_SERIAL,
        )
        self._begin = Statement(
            f"INSERT INTO {links} (generation, version, link, events, code)"
            " VALUES (?, ?, ?, ?, ?) IF NOT EXISTS",
            Level.LOCAL_QUORUM,
            Level.SERIAL,
        )
        self._change = Statement(
            f"UPDATE {links} SET generation = ?, version = ?, link = ?,"
            " events = events + ? WHERE code = ? IF generation = ? AND version = ?",
            Level.LOCAL_QUORUM,
            Level.SERIAL,
        )
        self._clear = Statement(
            f"UPDATE {links} SET events = events - ? WHERE code = ? IF EXISTS",
            Level.LOCAL_QUORUM,
            Level.SERIAL,
        )

    # Reading

    @property
    def seat(self) -> Session:
        """Where SERIAL is asked: at home, or in another data centre while that is unfit."""
        return self.sessions[next(iter(self.places.readers()), self._home)]

    async def here(self, code: str) -> Kept | None:
        """What one data centre has, the home if it can; it may be behind another."""
        return await self._both(self.seat, code, Level.LOCAL_QUORUM)

    async def at(self, datacenter: str, code: str) -> Kept | None:
        """What `datacenter` has by itself, fit or not. It is not waited for longer than TIMEOUT."""
        return await self._both(self.sessions[datacenter], code, Level.LOCAL_QUORUM)

    async def read(self, code: str) -> Kept | None:
        """What the best data centre that answers has, for those who have time to wait."""
        failure = Unreachable(_NOBODY)
        for datacenter in self.places.readers():
            try:
                return await self.at(datacenter, code)
            except Unreachable as error:
                failure = error
        raise failure

    async def first(self, datacenters: Sequence[str], code: str) -> tuple[str, Kept | None]:
        """The answer of the first of them, or of another while that can't be had; and whose.

        The next is asked beside those that were when none answered within HEDGE, or when one
        failed. Raises Unreachable.
        """
        if not datacenters:
            raise Unreachable(_NOBODY)
        asked: dict[asyncio.Task[Kept | None], str] = {}
        try:
            return await self._race(list(datacenters), code, asked)
        finally:
            for task in asked:
                task.cancel()

    async def _race(
        self, further: list[str], code: str, asked: dict[asyncio.Task[Kept | None], str]
    ) -> tuple[str, Kept | None]:
        best = further[0]
        now = asyncio.get_running_loop().time
        patient_until = now() + PATIENCE
        second: tuple[str, Kept | None] | None = None
        while True:
            if second is None and further:
                datacenter = further.pop(0)
                asked[asyncio.create_task(self.at(datacenter, code))] = datacenter
            done, _ = await asyncio.wait(
                asked,
                timeout=patient_until - now() if second else HEDGE if further else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            failure: Unreachable | None = None
            for task in done:
                whose = asked.pop(task)
                try:
                    answer = whose, task.result()
                except Unreachable as error:
                    failure = error
                else:
                    if whose == best:
                        return answer
                    second = answer
            if second and (best not in asked.values() or now() >= patient_until):
                return second
            if failure and not asked and not further:
                raise failure

    async def serially(self, code: str) -> Kept | None:
        """What is so now: a write that was begun is finished or is out of the race by then."""
        if (kept := await self._changed(self.seat, code)) is not None or not in_slots(code):
            return kept
        owner = await self.places.owner(code)
        if owner is not None and owner not in self.sessions:
            raise Unreachable(
                f"{code} was born in {owner}, which the store's address lacks; add it"
            )
        return None if owner is None else await self._born(self.sessions[owner], code)

    async def settle(self, code: str) -> bool:
        """Bring what was acknowledged to every data centre; False when one can't be reached.

        A replica that was away is told by a hint of the coordinator that served the write, and
        the hint is lost with that node. Reading everywhere repairs what is missing.
        """
        try:
            await self.serially(code)
            await self._both(self.seat, code, Level.EACH_QUORUM)
        except StoreUnavailable:
            return False
        return True

    async def _both(self, session: Session, code: str, level: Level) -> Kept | None:
        if not in_slots(code):
            return _kept((), await session.execute(Statement(self._link, level), (code,)))
        # The birth counts only when the other read succeeded and found nothing.
        return _kept(
            *await asyncio.gather(
                session.execute(Statement(self._birth, level), (code,)),
                session.execute(Statement(self._link, level), (code,)),
            )
        )

    async def _changed(self, session: Session, code: str) -> Kept | None:
        rows = await session.execute(Statement(self._link, Level.SERIAL), (code,))
        return _kept((), rows)

    async def _born(self, session: Session, code: str) -> Kept | None:
        rows = await session.execute(Statement(self._birth, Level.LOCAL_SERIAL), (code,))
        return _kept(rows, ())

    # Writing

    async def create(self, link: Link, events: Sequence[Event], owner: str | None) -> Link:
        """Insert `link`, in the data centre `owner` when it lies in a slot; who holds it now."""
        texts = [event_to_text(event) for event in events]
        if owner is None:
            session = self.seat
            _, held = await self.conditional.write(
                session,
                self._begin,
                (*link.stamp, to_text(link), texts, link.code),
                there(lambda: self._changed(session, link.code)),
            )
        else:
            session = self.sessions[owner]
            _, held = await self.conditional.write(
                session,
                self._bear,
                (link.code, to_text(link), texts),
                there(lambda: self._born(session, link.code)),
            )
            if held is not None and held.link.token != link.token:
                held = await self.serially(link.code)
        return link if held is None else held.link

    async def change(self, kept: Kept, new: Link, events: Sequence[Event]) -> Link:
        """Put `new` in the place of `kept`; the link as it is now."""
        if len(kept.pending) + len(events) > PENDING:
            raise StoreUnavailable(
                f"{len(kept.pending)} events of {new.code} wait to be published; see that a relay"
                " runs, then retry"
            )
        texts = [event_to_text(event) for event in events]
        statement = self._begin
        values: tuple[object, ...] = (*new.stamp, to_text(new), texts, new.code)
        if kept.changed:
            statement = self._change
            values = (*values, *kept.link.stamp)
        session = self.seat
        _, held = await self.conditional.write(
            session, statement, values, there(lambda: self._changed(session, new.code))
        )
        return new if held is None else held.link

    async def clear(self, code: str, ids: Collection[str]) -> None:
        """Drop those of the changes' pending events that were published."""
        session = self.seat
        kept = await self._changed(session, code)
        texts = [event_to_text(event) for event in kept.pending if event.id in ids] if kept else []
        if texts:
            # Dropping what is gone drops nothing, so whoever does it last has done it.
            await self.conditional.write(
                session, self._clear, (texts, code), lambda: self._changed(session, code)
            )


def _kept(births: Sequence[Row], links: Sequence[Row]) -> Kept | None:
    born = _events(births[0][1]) if births else ()
    if links:
        link, events = links[0]
        pending = sorted(_events(events), key=lambda event: (event.generation, event.version))
        return Kept(from_text(link), born, tuple(pending), changed=True)
    return Kept(from_text(births[0][0]), born) if births else None


def _events(texts: Sequence[str] | None) -> tuple[Event, ...]:
    return tuple(event_from_text(text) for text in texts or ())
