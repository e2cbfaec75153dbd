"""One cluster's ShortLinks, each brought to rest: what the watch tells is only noted and queued.

An object is handled as it is when its turn comes, however many events came before. For a new
one: our finalizer, the link, the status; so two writes to the API server. For one that goes: the
tombstone, then our finalizer's removal. Every write names the resourceVersion that it was
decided on, and what is told of our own writes asks for nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from shortlink.links import lifecycle
from shortlink.links.model import LIVE
from shortlink.management import CodesExhausted, Management
from shortlink.store.port import StoreError, StoreUnavailable
from shortlink_operator import events
from shortlink_operator.apply import Applier
from shortlink_operator.brake import Brake, path_of
from shortlink_operator.cluster import Cluster, Conflict, Missing
from shortlink_operator.index import (
    Body,
    Entry,
    Index,
    held_before,
    is_ready,
    key_of,
    ready_of,
    slim,
    version_of,
)
from shortlink_operator.kinds import FINALIZER, Unreadable, parse_manifest
from shortlink_operator.metrics import OperatorMetrics
from shortlink_operator.plan import HELD, LET_GO, Rest
from shortlink_operator.policy_loop import InForce
from shortlink_operator.queue import Queue, Unfinished
from shortlink_operator.status import (
    BROKEN,
    POLICY_INVALID,
    PROGRESSING,
    UNREADABLE,
    WAITING_FOR_QUORUM,
    is_settled,
    status_of,
    status_patch,
)

TOGETHER: Final = 2_000
"""Milliseconds that a deletion waits, so that those asked for together are counted together; and
what is no new wish, such as another's change of a status.
"""

_AFTER_CONFLICT: Final = 5.0
"""Seconds until an object is looked at again should no event tell of its change."""

_UNFINISHED: Final = frozenset({BROKEN, PROGRESSING, "WaitingForHome"})
_NO_STORE: Final = (
    "the store of links does not answer, or has no majority of its regions: it is tried again"
    " until it does"
)

log = structlog.get_logger()


class Controller:
    """Handles the objects of `region`'s cluster, while this process leads.

    `may_act` raises when it may not write any more. `base_url` is what short links begin with.
    `instance` is this process's name in Events.
    """

    def __init__(
        self,
        cluster: Cluster,
        queue: Queue,
        management: Management,
        region: str,
        base_url: str,
        instance: str,
        metrics: OperatorMetrics,
        in_force: InForce,
        may_act: Callable[[], None],
    ) -> None:
        self.index = Index(region)
        self.applier = Applier(management, region, may_act)
        self._cluster = cluster
        self._queue = queue
        self._management = management
        self._region = region
        self._base_url = base_url
        self._instance = instance
        self._metrics = metrics
        self._in_force = in_force
        self._may_act = may_act
        self._pending: dict[str, dict[str, Any]] = {}
        self._lost: set[str] = set()  # to be looked for, and taken for gone if not there
        self.held_gone: set[str] = set()  # keys without an object, whose deletion is held
        self.brake = Brake(self.index, self.applier, cluster, management, self.note)

    # What is told

    def saw(self, kind: str, body: Body) -> None:
        """Note what the watch tells: `kind` is DELETED, or any other type of an event."""
        if kind != "DELETED":
            self.note(body, reported=True)
            return
        key = key_of(body)
        entry = self.index.get(key)
        if entry is None or entry.uid != body["metadata"]["uid"]:
            return
        if entry.let_go:
            self._forget(key)
        else:  # somebody took the finalizer away, or it never had one
            self.missed(key)

    def note(self, body: Body, *, reported: bool = False) -> bool:
        """Note an object as it is in `body`; whether it has to be handled for it.

        `reported`: by the watch. What is older than what is known is passed over.
        """
        key, version = key_of(body), version_of(body)
        old = self.index.get(key)
        if old is not None:
            same = old.uid == body["metadata"]["uid"]
            if same and reported:
                old.reported = max(old.reported, version)
            if version <= old.version and (same or not reported):
                return False
        entry, changed = self._keep(key, body, reported=reported)
        if changed or key in self._pending:
            self._pending[key] = slim(body)
        if changed:
            turned = entry.deleting is not None and (old is None or old.deleting is None)
            # Else two who each mend what the other wrote would do so as fast as they can.
            mends = old is not None and (old.uid, old.generation) == (entry.uid, entry.generation)
            self._enqueue(key, entry, TOGETHER / 1000 if turned or mends else 0.0)
        return changed

    def again(self, key: str) -> None:
        """Have a known object handled although nobody changed it."""
        if (entry := self.index.get(key)) is not None:
            self._enqueue(key, entry, swept=True)

    def missed(self, key: str, *, live: bool = False) -> None:
        """Look for an object that is gone though nothing was done for it; `live`: its link is."""
        entry = self.index.get(key)
        self._forget(key)
        if live or (entry is not None and entry.holds):
            self.index.lose(key)
        self._lost.add(key)
        self._queue.add(key, TOGETHER / 1000)

    def settled_gone(self, key: str) -> None:
        """Note that an object that is gone has no link of ours any more."""
        self.index.found(key)
        self.held_gone.discard(key)

    def no_policy(self, key: str, body: Body) -> str:
        """Why nothing may be done for an object, unless a person has let its deletion go."""
        entry = self.index.get(key)
        going = "deletionTimestamp" in body["metadata"] and entry is not None and entry.released
        return "" if going else self._in_force.wrong

    def _forget(self, key: str) -> None:
        self.index.drop(key)
        self._pending.pop(key, None)
        self._metrics.settled(key, None)

    def _enqueue(self, key: str, entry: Entry, after: float = 0.0, *, swept: bool = False) -> None:
        entry.waits = True
        self._queue.add(key, after, swept=swept)

    def _keep(self, key: str, body: Body, *, reported: bool = False) -> tuple[Entry, bool]:
        """Index an object; whether it may need work that it did not need as it was known."""
        new, old = self.index.entry(body), self.index.get(key)
        same = old is not None and old.uid == new.uid
        if old is not None and same:
            new.reported, new.waits = old.reported, old.waits
            new.deleting, new.let_go = old.deleting, old.let_go
        if "deletionTimestamp" in body["metadata"] and new.deleting is None:
            new.deleting = self._steady()
        if reported:
            new.reported = max(new.reported, new.version)
        self._lost.discard(key)
        self.index.put(key, new)
        if old is not None and same:
            return new, new.mark != old.mark
        self.held_gone.discard(key)
        settled = is_settled(body)
        if settled:
            self._metrics.settled(key, (ready_of(body) or {}).get("reason"))
        return new, not settled

    # What is done

    async def handle(self, key: str) -> float | None:
        """Bring one object to rest; seconds until it is to be looked at again, None: it rests.

        Raises StoreError, ClusterError, Unfinished and what `may_act` raises; then it is to be
        tried again.
        """
        entry = self.index.get(key)
        if key not in self._lost and (entry is None or not entry.waits):
            return None
        try:
            again = await self._handle(key)
        except Conflict:  # the event of what changed it is on its way
            return _AFTER_CONFLICT
        except Missing:
            self.missed(key)
            return None
        entry = self.index.get(key)
        if again is None and entry is not None and key not in self._pending:
            entry.waits = False  # else it changed meanwhile, and is queued for that
        return again

    async def _handle(self, key: str) -> float | None:
        body = self._pending.pop(key, None)
        if body is None:
            body = await self._read(key)
        if body is None:
            if key in self._lost:
                return await self._gone(key)
            self.missed(key)
            return None
        if wrong := self.no_policy(key, body):
            if not is_ready(body):
                await self._tell(key, body, Rest(key, False, POLICY_INVALID, wrong))
            return None
        if "deletionTimestamp" in body["metadata"]:
            return await self._deleting(key, body)
        return await self._standing(key, body)

    async def _standing(self, key: str, body: dict[str, Any]) -> float | None:
        before = body
        finalizers = body["metadata"].get("finalizers", [])
        if FINALIZER not in finalizers:
            body = await self._write(
                key, body, {"metadata": {"finalizers": [*finalizers, FINALIZER]}}
            )
        fresh = body is not before and not body["status"]
        wanted = parse_manifest(body, key)
        if isinstance(wanted, Unreadable):
            await self._tell(key, body, Rest(key, False, UNREADABLE, wanted.message))
            return None
        room = await self.brake.take_room(key, self._in_force.links_per_namespace)
        try:
            outcome = await self.applier.settle(wanted, room=room, fresh=fresh)
        except StoreError as error:
            await self._tell_away(key, body, error)
            raise
        self._hold(key, outcome)
        await self._tell(key, body, outcome)
        home = (body["status"] or {}).get("home")
        if outcome.home == self._region and home == wanted.take_over is not None:
            note = f"the link's home is cluster {self._region} now; it was {home}"
            await self._event(body, events.TAKEN_OVER, note)
        if outcome.reason in _UNFINISHED:
            raise Unfinished(outcome.message)
        return None

    async def _deleting(self, key: str, body: dict[str, Any]) -> float | None:
        entry = self.index.get(key)
        if entry is None or entry.let_go or entry.deleting is None:
            return None
        wait = entry.deleting + TOGETHER - self._steady()
        if wait > 0:
            self._pending[key] = body
            return wait / 1000
        before = held_before(body)
        try:
            why = "" if entry.released else before or await self.brake.holds(key)
            outcome = await self.applier.settle_gone(key, entry.uid, entry.retain, why)
        except StoreError as error:
            await self._tell_away(key, body, error)
            raise
        if outcome.reason not in LET_GO:
            await self._tell(key, body, outcome)
            if outcome.reason != HELD:
                raise Unfinished(outcome.message)
            if not before:
                await self._event(body, events.DELETION_HELD, outcome.message)
            return None
        if outcome.home == self._region and not entry.released:
            self.brake.count(key, outcome.link)
        now = self.index.get(key)
        if now is None or now.uid != entry.uid:  # it ended meanwhile
            return None
        finalizers = body["metadata"].get("finalizers", [])
        left = [one for one in finalizers if one != FINALIZER]
        # Before it is written: the event of its end may be here before the answer.
        self.index.change(key, holds=False, let_go=True)
        try:
            # What others hold people still see.
            seen = await self._tell(key, body, outcome) if left else body
            if left != finalizers:
                await self._write(key, seen, {"metadata": {"finalizers": left}})
        except BaseException:  # or the look took too long
            if self.index.get(key) is not None:
                self.index.change(key, let_go=False)
            raise
        self._metrics.settled(key, None)
        log.info("object let go", key=key, reason=outcome.reason)
        return None

    async def _gone(self, key: str) -> float | None:
        """Deal with a key that has no object, whatever became of it."""
        why = self._in_force.wrong or await self.brake.holds_gone(key)
        outcome = await self.applier.settle_gone(key, None, None, why)
        if outcome.reason == HELD:
            if key not in self.held_gone:
                log.warning(
                    "deletion held: an object is gone, and its link goes on",
                    key=key,
                    why=outcome.message,
                    help="make the objects again; to let their links go, set brake.percent of the"
                    " LinkPolicy to 100 for a while",
                )
            self.held_gone.add(key)
        elif outcome.reason in LET_GO:
            self.settled_gone(key)
            self.brake.count(key, outcome.link)
        else:
            raise Unfinished(outcome.message)
        self._lost.discard(key)
        return None

    def _hold(self, key: str, outcome: Rest) -> None:
        """Note whether an object has a link whose home is here."""
        if self.index.get(key) is None:
            return
        policy, now, link = self._management.policy, self._management.clock.wall(), outcome.link
        live = link is not None and lifecycle.settled(link, policy, now).state in LIVE
        if live and link is not None:
            self.index.space(key).recent.pop(link.code, None)
        self.index.change(key, holds=live and outcome.home == self._region)

    # Reads and writes of the API server

    async def _read(self, key: str) -> dict[str, Any] | None:
        try:
            body = slim(await self._cluster.get(path_of(key)))
        except Missing:
            return None
        self._answered(key, body).waits = True  # else what fails now is not tried again
        return body

    async def _write(
        self, key: str, seen: Body, patch: Mapping[str, Any], subresource: str = ""
    ) -> dict[str, Any]:
        """Patch an object if it still is as it was `seen`; as it is then. Raises ClusterError."""
        self._may_act()
        version = {"resourceVersion": seen["metadata"]["resourceVersion"]}
        patch = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
        body = slim(await self._cluster.patch(path_of(key), patch, subresource=subresource))
        if self.index.get(key) is not None:
            self._answered(key, body)
            pending = self._pending.get(key)
            if pending is not None and version_of(pending) <= version_of(body):
                del self._pending[key]  # our own write, or what it was decided on
        return body

    def _answered(self, key: str, body: Body) -> Entry:
        """Note what was answered, unless a newer one, or a successor, was told of meanwhile."""
        entry = self.index.get(key)
        if entry is None or entry.version <= version_of(body):
            entry, _ = self._keep(key, body)
        return entry

    async def _tell(self, key: str, body: Body, outcome: Rest) -> Body:
        """Write how an object stands, unless its status says so; as it is then."""
        status = self.status(body, outcome)
        self._metrics.settled(key, outcome.reason)
        if patch := status_patch(body.get("status"), status):
            body = await self._write(key, body, patch, "status")
            tell = log.debug if outcome.ready else log.info
            tell(
                "object handled",
                key=key,
                ready=outcome.ready,
                reason=outcome.reason,
                message=outcome.message,
                code=status.get("code"),
            )
        return body

    async def _tell_away(self, key: str, body: Body, error: StoreError) -> None:
        """The same for as long as the store is away, and only of what isn't Ready as it is now."""
        if is_ready(body):
            return
        plain = isinstance(error, StoreUnavailable) and not isinstance(error, CodesExhausted)
        message = _NO_STORE if plain else str(error)
        await self._tell(key, body, Rest(key, False, WAITING_FOR_QUORUM, message))

    def status(self, body: Body, outcome: Rest) -> dict[str, Any]:
        """The status that an object has to have."""
        return status_of(
            outcome,
            body["metadata"]["generation"],
            self._base_url,
            body.get("status"),
            self._management.policy,
            self._management.clock.wall(),
        )

    async def _event(self, body: Body, reason: str, note: str) -> None:
        now = self._management.clock.wall()
        await events.tell(self._cluster, body, reason, note, self._instance, now)

    def _steady(self) -> int:
        return self._management.clock.steady()
