"""The sweep: what no event told of is found by comparing everything with everything, in pages.

Objects with their links, claims with their objects, and links with their claims. It repairs
nothing itself but orphan links; what differs is handled as if it had just changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import structlog

from shortlink.links.lifecycle import Delete
from shortlink.links.model import Link
from shortlink.links.policy import SECOND
from shortlink.management import Management
from shortlink.store.port import Claim, StoreError
from shortlink_operator.brake import CLAIMS, SHORTLINKS, path_of
from shortlink_operator.cluster import Cluster, Missing, objects
from shortlink_operator.controller import Controller
from shortlink_operator.index import (
    Body,
    Entry,
    held_before,
    is_ready,
    key_of,
    ready_of,
    slim,
    version_of,
)
from shortlink_operator.kinds import FINALIZER, Unreadable, parse_manifest
from shortlink_operator.metrics import OperatorMetrics
from shortlink_operator.plan import HELD, LET_GO, Action, Observed, Rest, actor, orphaned
from shortlink_operator.policy_loop import InForce
from shortlink_operator.status import POLICY_INVALID, UNREADABLE

DEAF: Final = 30 * SECOND
"""So long after a sweep has seen a change the watch has to have told of it."""

_PAGE: Final = 500
_READS: Final = 32

log = structlog.get_logger()

_T = TypeVar("_T")
_R = TypeVar("_R")


class Drift:
    """Sweeps for `controller`. `progressed` is called after each page.

    `deaf`: the watch does not tell of what sweeps see.
    """

    def __init__(
        self,
        controller: Controller,
        cluster: Cluster,
        management: Management,
        metrics: OperatorMetrics,
        in_force: InForce,
        may_act: Callable[[], None],
        progressed: Callable[[], None] = lambda: None,
    ) -> None:
        self.deaf = False
        self._controller = controller
        self._index = controller.index
        self._applier = controller.applier
        self._cluster = cluster
        self._management = management
        self._store = management.store
        self._metrics = metrics
        self._in_force = in_force
        self._may_act = may_act
        self._progressed = progressed
        self._reads = asyncio.Semaphore(_READS)
        self._one_at_a_time = asyncio.Lock()
        self._unreported: dict[str, tuple[int, int]] = {}  # version, and when it was seen

    async def sweep(self) -> None:
        """Compare everything once. Raises StoreError and ClusterError; the next one begins anew."""
        async with self._one_at_a_time:
            await self._sweep()

    async def _sweep(self) -> None:
        lost_before = {*self._index.orphans, *self._controller.held_gone}
        claims = await self._claims()
        before = {key: entry.version for key, entry in self._index.items()}
        there: set[str] = set()
        unreported: dict[str, int] = {}
        held = 0
        async for bodies in self._cluster.pages(objects(SHORTLINKS), _PAGE):
            page = [slim(body) for body in bodies]
            for body in page:
                self._note(body, before.get(key_of(body), 0), unreported)
            there.update(map(key_of, page))
            held += sum(bool(held_before(body)) for body in page)
            await asyncio.gather(*(self._compare(body, claims) for body in page))
            self._progressed()
        self._listen(unreported)
        vanished = await self._vanished(there)
        gone = await self._gone(claims, there)
        # All at once: the brake counts what it knows of when the first is handled.
        for key, entry in vanished:
            if self._index.get(key) is entry:
                if not entry.let_go:
                    self._metrics.drifted("gone")
                self._controller.missed(key)
        for key, action in gone.items():
            if action is not None and self._index.get(key) is None:
                live = isinstance(action, Rest)
                if live and key not in self._controller.held_gone:
                    log.info("drift found", key=key, kind="gone")
                    self._metrics.drifted("gone")
                self._controller.missed(key, live=live)
        for key in lost_before - there - gone.keys():
            self._controller.settled_gone(key)
        self._metrics.held = held + len(self._controller.held_gone)

    async def _claims(self) -> dict[str, Claim]:
        claims: dict[str, Claim] = {}
        after = ""
        while page := await self._store.claims(after, CLAIMS):
            claims |= {claim.key: claim for claim in page}
            after = page[-1].key
            self._progressed()
        return claims

    # Objects

    def _note(self, body: dict[str, Any], before: int, unreported: dict[str, int]) -> None:
        """Note an object whose version was `before` when it was asked for."""
        key, version = key_of(body), version_of(body)
        entry = self._index.get(key)
        if entry is not None and version < before:  # the API server's store was put back
            log.warning("object is older than it was", key=key, version=version, before=before)
            entry.version = 0
        self._controller.note(body)
        entry = self._index.get(key)
        if entry is not None and entry.reported < version:
            unreported[key] = version

    def _listen(self, unreported: dict[str, int]) -> None:
        now = self._management.clock.steady()
        before, self._unreported = self._unreported, {}
        for key, version in unreported.items():
            entry, (older, since) = self._index.get(key), before.get(key, (version, now))
            if entry is None or entry.reported >= version:
                continue
            still = entry.reported < older
            self._unreported[key] = (older, since) if still else (version, now)
        late = [key for key, (_, since) in self._unreported.items() if now - since >= DEAF]
        if late and not self.deaf:
            log.error("the watch is deaf: it told nothing of what was seen before", keys=late[:10])
        self.deaf = bool(late)

    async def _compare(self, body: dict[str, Any], claims: dict[str, Claim]) -> None:
        """Have an object handled that is not as it has to be, nor about to be."""
        key, version = key_of(body), version_of(body)
        async with self._reads:
            try:
                claim = claims.get(key)
                seen = None if claim is None else await self._applier.look(claim)
                kind = self._differs(key, body, seen)
                if kind:  # the claims were read a while ago
                    kind = self._differs(key, body, await self._applier.observe(key))
            except StoreError:
                raise
            except Exception:  # one object's oddity may not hide all others
                log.exception("object can't be compared", key=key)
                kind = "broken"
        entry = self._index.get(key)
        if not kind or entry is None or entry.waits or entry.version != version:
            return
        if kind != "retry":
            log.info("drift found", key=key, kind=kind)
            self._metrics.drifted(kind)
        self._controller.again(key)

    def _differs(self, key: str, body: Body, seen: Observed | None) -> str:
        """What of an object is not as it has to be, or nothing."""
        entry = self._index.get(key)
        if entry is None or entry.let_go:
            return ""
        if wrong := self._controller.no_policy(key, body):
            told = self._controller.status(body, Rest(key, False, POLICY_INVALID, wrong))
            return "" if is_ready(body) or body["status"] == told else "status"
        if "deletionTimestamp" in body["metadata"]:
            planned = self._applier.plan_of_gone(key, entry.uid, entry.retain, "held")(seen)
            waits = held_before(body) and isinstance(planned, Rest) and planned.reason == HELD
            return "" if waits and not entry.released else "link"
        if FINALIZER not in body["metadata"].get("finalizers", ()):
            return "finalizer"
        wanted = parse_manifest(body, key)
        if isinstance(wanted, Unreadable):
            action: Action = Rest(key, False, UNREADABLE, wanted.message)
        else:
            limit = self._in_force.links_per_namespace
            room = limit is None or entry.holds or self._index.space(key).live < limit
            action = self._applier.plan_of(wanted, room=room)(seen)
        if isinstance(action, Rest):
            return "" if self._controller.status(body, action) == body["status"] else "status"
        ready = ready_of(body)
        # What was refused for another's sake, such as a code that is taken, is asked for again.
        return "retry" if ready is not None and ready["status"] == "False" else "link"

    async def _vanished(self, there: set[str]) -> list[tuple[str, Entry]]:
        """Objects that ended while nobody watched: their end is never told afterwards."""
        missing = [(key, entry) for key, entry in self._index.items() if key not in there]
        ended = await self._each(self._has_ended, [key for key, _ in missing])
        return [one for one, gone in zip(missing, ended, strict=True) if gone]

    async def _has_ended(self, key: str) -> bool:
        async with self._reads:
            try:
                await self._cluster.get(path_of(key))
            except Missing:
                return True
        return False

    async def _each(self, look: Callable[[_T], Awaitable[_R]], all_: Sequence[_T]) -> list[_R]:
        looked: list[_R] = []
        for at in range(0, len(all_), _PAGE):
            looked += await asyncio.gather(*map(look, all_[at : at + _PAGE]))
            self._progressed()
        return looked

    # Claims

    async def _gone(self, claims: dict[str, Claim], there: set[str]) -> dict[str, Action | None]:
        """What is to be done for each claim of this cluster that has no object; None: unknown."""
        ours = [
            claim
            for key, claim in claims.items()
            if claim.cluster == self._index.cluster
            and key not in there
            and self._index.get(key) is None
        ]
        found = await self._each(self._without, ours)
        return {
            claim.key: action
            for claim, action in zip(ours, found, strict=True)
            if not _rests(action)
        }

    async def _without(self, claim: Claim) -> Action | None:
        key = claim.key
        planned = self._applier.plan_of_gone(key, None, None, "held")
        async with self._reads:
            try:
                action = planned(await self._applier.look(claim))
                return action if _rests(action) else planned(await self._applier.observe(key))
            except StoreError:
                raise
            except Exception:
                log.exception("claim can't be compared", key=key)
                return None

    # Links

    async def orphans(self) -> None:
        """Tombstone links that live for objects which never claimed them.

        It reads all links of all owners that have objects, and so those of their API keys too.
        Raises StoreError and ClusterError.
        """
        claims = await self._claims()
        owners = {*self._index.spaces, *(key.partition("/")[0] for key in claims)}
        found = [await self._orphans(owner, claims) for owner in sorted(owners)]
        self._metrics.orphans = sum(found)

    async def _orphans(self, owner: str, claims: dict[str, Claim]) -> int:
        found: list[Link] = []
        after = ""
        while page := await self._store.by_owner(owner, after, _PAGE):
            found += [link for link in page if await self._is_orphan(link, claims)]
            after = page[-1].code
            self._progressed()
        if not found:
            return 0
        key = f"{owner}/"
        if why := self._in_force.wrong or await self._controller.brake.holds(key, len(found)):
            log.warning("orphan links held", owner=owner, links=len(found), why=why)
            return len(found)
        for link in found:
            self._may_act()
            gone = await self._management.carry_out(link, Delete(actor(link.claim or "")))
            self._controller.brake.count(key, gone)
            self._metrics.drifted("orphan")
            log.warning("orphan link tombstoned", code=link.code, claim=link.claim)
        return len(found)

    async def _is_orphan(self, link: Link, claims: dict[str, Claim]) -> bool:
        if link.claim is None or not orphaned(link, claims.get(link.claim)):
            return False
        return orphaned(link, await self._store.find_claim(link.claim))


def _rests(action: object) -> bool:
    return isinstance(action, Rest) and action.reason in LET_GO
