"""A LinkStore in memory, on which calls can be made to fail, crash or wait at any point.

It passes the contract suite (tests/contract), so what is shown on it holds for every store.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from shortlink.links.codes import SLOTS
from shortlink.links.model import Event, Link
from shortlink.store.port import Claim, Due, StoreError

Gate = Callable[[str, bool], Awaitable[None]]
"""Is called with a method's name before it is carried out (False) and once more after it (True).

What it raises before, the method has not done; what it raises after, nobody was told of."""


@dataclass
class Kept:
    """What outlives every process. `told` has each event that was ever kept, published or not."""

    slot_key: bytes | None = None
    policies: dict[str, str] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    due: set[tuple[int, str]] = field(default_factory=set)
    pending: dict[str, Event] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    told: list[Event] = field(default_factory=list)


async def _open(_method: str, _done: bool) -> None:
    pass


class MemoryStore:
    """A LinkStore over `kept`, as one process has it open."""

    def __init__(self, kept: Kept, gate: Gate = _open) -> None:
        self.kept = kept
        self._gate = gate

    @asynccontextmanager
    async def _call(self, method: str) -> AsyncIterator[Kept]:
        await self._gate(method, False)
        yield self.kept
        await self._gate(method, True)

    async def install(self, slot_key: bytes) -> bytes:
        async with self._call("install") as kept:
            if kept.slot_key is None:
                kept.slot_key = slot_key
            in_force = kept.slot_key
        return in_force

    async def keep_policy(self, region: str, text: str) -> None:
        async with self._call("keep_policy") as kept:
            kept.policies[region] = text

    async def policies(self) -> Mapping[str, str]:
        async with self._call("policies") as kept:
            policies = dict(kept.policies)
        return policies

    async def create(self, link: Link, events: Sequence[Event], due: Sequence[int]) -> Link:
        async with self._call("create") as kept:
            if link.code not in kept.links:
                self._keep(link, events, due)
            held = kept.links[link.code]
        return held

    async def change(
        self, old: Link, new: Link, events: Sequence[Event], due: Sequence[int]
    ) -> Link:
        async with self._call("change") as kept:
            if kept.links[old.code].stamp == old.stamp:
                self._keep(new, events, due)
            held = kept.links[old.code]
        return held

    async def get(self, code: str) -> Link | None:
        async with self._call("get") as kept:
            link = kept.links.get(code)
        return link

    async def views(self, code: str) -> Mapping[str, Link | StoreError | None]:
        async with self._call("views"):
            pass
        return {}

    async def by_owner(self, owner: str, after: str, limit: int) -> Sequence[Link]:
        async with self._call("by_owner") as kept:
            codes = sorted(code for code, link in kept.links.items() if link.owner == owner)
            page = [kept.links[code] for code in codes if code > after][:limit]
        return page

    async def due(self, until: int, limit: int) -> Sequence[Due]:
        async with self._call("due") as kept:
            page = [Due(at, code) for at, code in sorted(kept.due) if at <= until][:limit]
        return page

    async def done(self, due: Sequence[Due], again: Sequence[Due]) -> None:
        async with self._call("done") as kept:
            kept.due -= {(one.at, one.code) for one in due}
            kept.due |= {(one.at, one.code) for one in again}

    async def announce(self, event: Event) -> None:
        async with self._call("announce"):
            self._tell([event])

    async def pending(self, limit: int) -> Sequence[Event]:
        async with self._call("pending") as kept:
            page = list(kept.pending.values())[:limit]
        return page

    async def published(self, ids: Sequence[str]) -> None:
        async with self._call("published") as kept:
            for id_ in ids:
                kept.pending.pop(id_, None)

    async def claim(self, claim: Claim) -> Claim:
        async with self._call("claim") as kept:
            in_force = kept.claims.setdefault(claim.key, claim)
        return in_force

    async def reclaim(self, old: Claim, new: Claim | None) -> bool:
        async with self._call("reclaim") as kept:
            held = kept.claims.get(old.key)
            if held == old:
                del kept.claims[old.key]
                if new is not None:
                    kept.claims[new.key] = new
            in_force = kept.claims.get(old.key) == new
        return in_force

    async def claims(self, after: str, limit: int) -> Sequence[Claim]:
        async with self._call("claims") as kept:
            page = [kept.claims[key] for key in sorted(kept.claims) if key > after][:limit]
        return page

    async def find_claim(self, key: str) -> Claim | None:
        async with self._call("find_claim") as kept:
            claim = kept.claims.get(key)
        return claim

    async def slots(self) -> Collection[int]:
        async with self._call("slots"):
            pass
        return range(SLOTS)

    async def ping(self) -> None:
        async with self._call("ping"):
            pass

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _keep(self, link: Link, events: Sequence[Event], due: Sequence[int]) -> None:
        self.kept.links[link.code] = link
        self.kept.due |= {(at, link.code) for at in due}
        self._tell(events)

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.id not in self.kept.pending:
                self.kept.pending[event.id] = event
                self.kept.told.append(event)


class Crash(BaseException):
    """The process died. Nothing may catch it."""


class FailsAt:
    """A gate that raises `error` at the `number`-th call, counted from 1: before it is carried
    out or after. `calls` names those that came so far."""

    def __init__(self, number: int, after: bool, error: BaseException) -> None:
        self.calls: list[str] = []
        self._number = number
        self._after = after
        self._error = error

    async def __call__(self, method: str, done: bool) -> None:
        if not done:
            self.calls.append(method)
        if len(self.calls) == self._number and done is self._after:
            raise self._error
