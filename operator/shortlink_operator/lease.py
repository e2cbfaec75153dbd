"""Which of a cluster's operators leads: who holds its Lease (coordination.k8s.io/v1).

The times in a Lease are for people: no clock of another host is trusted. A leader believes in
itself until BELIEF seconds after the START of its last renewal that was answered. Who waits for
it takes over after having SEEN the Lease unchanged for longer than that, on its own steady clock.
So two never believe at once, unless a clock runs half as fast again as another, or stands still
while its host sleeps: against that, writes to the store are decided on what was observed.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from shortlink.clock import Clock
from shortlink_operator.cluster import Cluster, ClusterError, Conflict, Missing

DURATION: Final = 15
"""Seconds that a Lease must be seen unchanged before it is taken over."""
BELIEF: Final = 10
EVERY: Final = 3.0
"""Seconds between renewals, and at most between two looks at the Lease of another."""

_LONGEST: Final = 60
"""The most seconds of a Lease that are believed: it may have been edited by hand."""
_TRANSITIONS: Final = 2**31 - 1
"""As many as the API server can count."""

_REQUEST: Final = 3.0
"""Seconds for a renewal: there is time for another one within BELIEF."""
_AGAIN: Final = 1.0
"""Seconds from a renewal that failed to the next."""
_BACKOFF_CAP: Final = 30.0
_DOUBLINGS: Final = 4

Json = dict[str, Any]

log = structlog.get_logger()


class Deposed(Exception):
    """The Lease is not ours any more, so nothing may be written."""


class Lease:
    """One operator's part in the election: `acquire`, work while `keep` runs, `release`.

    `identity` must be that of one process only, never of its successor. `trouble` says why the
    Lease can't be read or written, empty when it can.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.trouble = ""
        self._cluster = cluster
        self._metadata = {"namespace": namespace, "name": name}
        self._list = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._list}/{name}"
        self._identity = identity
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._believed_until = 0
        self._ours: Json = {}
        self._seen_version = ""
        self._free_at = 0

    @property
    def held(self) -> bool:
        """Whether it is ours, by our own steady clock."""
        return self._clock.steady() < self._believed_until

    def check(self) -> None:
        """Raises Deposed unless it is ours: for the moment before each write."""
        if not self.held:
            raise Deposed("another operator may lead by now")

    async def acquire(self) -> None:
        """Wait until it is ours, which may be for ever."""
        failures = 0
        while True:
            try:
                await self._contend()
                failures, self.trouble = 0, ""
            except ClusterError as error:
                failures += 1
                self.trouble = str(error)
                log.warning("the lease can't be had", error=self.trouble, failures=failures)
            if self.held:
                log.info("leading", lease=self._path, identity=self._identity)
                return
            backoff = min(EVERY * 2 ** min(failures, _DOUBLINGS), _BACKOFF_CAP)
            await self._sleep(backoff * (1 - self._chance() / 2))

    async def keep(self) -> None:
        """Renew it again and again; return once it is lost."""
        pause = EVERY
        while True:
            await self._sleep(pause)
            left = (self._believed_until - self._clock.steady()) / 1000
            if left <= 0:
                return self._lose(self.trouble or "this process stood still")
            try:
                async with asyncio.timeout(min(_REQUEST, left)):
                    await self._renew()
                pause, self.trouble = EVERY, ""
            except Deposed as error:
                return self._lose(str(error))
            except (ClusterError, TimeoutError) as error:
                self.trouble = str(error) or "the API server did not answer in time"
                log.warning("the lease was not renewed", error=self.trouble)
                pause = _AGAIN * (1 - self._chance() / 2)

    async def release(self) -> None:
        """Let the next one have it at once. All work that it allowed must have ended.

        Where that fails, the next one waits until it has run out.
        """
        self._believed_until = 0
        try:
            async with asyncio.timeout(_REQUEST):
                seen = await self._cluster.get(self._path)
                if _holder(seen) == self._identity:
                    spec = {**seen["spec"], "holderIdentity": None}
                    await self._cluster.replace(self._path, {**seen, "spec": spec})
        except (ClusterError, TimeoutError) as error:
            log.warning("the lease was not released", error=str(error) or "no answer in time")

    async def _contend(self) -> None:
        seen = await self._look()
        if self._may_take(seen):
            try:
                await self._hold(seen)
            except (Conflict, Missing) as error:
                log.info("the lease was taken or changed by another", error=str(error))

    def _may_take(self, seen: Json | None) -> bool:
        now = self._clock.steady()
        if seen is None:
            # Deleted by hand, maybe: whom we saw hold it may believe in it for a while.
            return now >= self._free_at
        if _holder(seen) in (None, self._identity):
            return True
        version = seen["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version = version
            seconds = seen["spec"].get("leaseDurationSeconds") or DURATION
            self._free_at = now + min(max(seconds, DURATION), _LONGEST) * 1000
        return now >= self._free_at

    async def _renew(self) -> None:
        """Raises Deposed when another has it, and ClusterError when that can't be told."""
        try:
            await self._hold(self._ours)
        except (Conflict, Missing):  # a write whose answer we did not get, or somebody's hand
            seen = await self._look()
            if seen is not None and (holder := _holder(seen)) != self._identity:
                raise Deposed(f"it is {holder or 'nobody'}'s now") from None
            await self._hold(seen)

    async def _look(self) -> Json | None:
        try:
            return await self._cluster.get(self._path)
        except Missing:
            return None

    async def _hold(self, seen: Json | None) -> None:
        """Write that it is ours, if it is still as seen, and believe so."""
        started = self._clock.steady()
        now = _micro_time(self._clock.wall())
        spec = {} if seen is None else dict(seen.get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            transitions = 0 if seen is None else (spec.get("leaseTransitions") or 0) + 1
            spec |= {"acquireTime": now, "leaseTransitions": min(transitions, _TRANSITIONS)}
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION,
            "renewTime": now,
        }
        if seen is None:
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            new = {**body, "metadata": self._metadata, "spec": spec}
            self._ours = await self._cluster.create(self._list, new)
        else:
            self._ours = await self._cluster.replace(self._path, {**seen, "spec": spec})
        self._believed_until = started + BELIEF * 1000

    def _lose(self, why: str) -> None:
        self._believed_until = 0
        log.warning("the lease is lost", why=why, lease=self._path, identity=self._identity)


def _holder(lease: Json) -> str | None:
    return (lease.get("spec") or {}).get("holderIdentity") or None


def _micro_time(wall: int) -> str:
    """A moment as Kubernetes writes it in Leases (metav1.MicroTime)."""
    moment = datetime.fromtimestamp(wall / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"
