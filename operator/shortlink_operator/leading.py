"""What an operator does while it leads, from the Lease's taking to its loss or release."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from shortlink.clock import Clock
from shortlink.loops import Loop, Loops
from shortlink.management import Management
from shortlink.serving.codes import StoredCodes
from shortlink.store.port import StoreError
from shortlink_operator.cluster import Cluster, ClusterError
from shortlink_operator.controller import Controller
from shortlink_operator.drift import Drift
from shortlink_operator.lease import Deposed, Lease
from shortlink_operator.metrics import OperatorMetrics
from shortlink_operator.policy_loop import LINKPOLICIES, PolicyLoop
from shortlink_operator.queue import Queue
from shortlink_operator.relay import RELAY_PAUSE, Relay
from shortlink_operator.sweep import SWEEP_PAUSE, Sweeper
from shortlink_operator.switches import Switches
from shortlink_operator.watch import Stuck, Watch

END_SECONDS: Final = 10.0
"""For looks at objects that are under way when the operator is asked to stop."""

_END_MOST: Final = 25.0
"""For all else that ends with leading: the watch has the longest deadlines."""

_POLICY_PAUSE: Final = 10.0
_SLOTS_PAUSE: Final = 60.0
_OVERDUE_PAUSE: Final = 10.0
_ORPHANS_PAUSE: Final = 3600.0
_SWEEP_JITTER: Final = 0.1

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Means:
    """What a leader works with, and outlives its leadership."""

    cluster: Cluster
    lease: Lease
    management: Management
    codes: StoredCodes
    switches: Switches
    policy: PolicyLoop
    sweeper: Sweeper
    relay: Relay
    metrics: OperatorMetrics
    clock: Clock
    region: str
    base_url: str
    identity: str
    sweep_seconds: float


class Leadership:
    """One time of leading. `begun` is called when Kopf took the process's signals."""

    def __init__(self, means: Means, begun: Callable[[], None]) -> None:
        self._means = means
        self._listed = False
        may_act = means.lease.check
        self.queue = Queue(self._handle, means.clock, means.metrics.handled)
        self._controller = Controller(
            means.cluster,
            self.queue,
            means.management,
            means.region,
            means.base_url,
            means.identity,
            means.metrics,
            means.policy.in_force,
            may_act,
        )
        self._drift = Drift(
            self._controller,
            means.cluster,
            means.management,
            means.metrics,
            means.policy.in_force,
            may_act,
            self._progressed,
        )
        self._watch = Watch(means.cluster, self._saw, begun)
        self._comparing: set[str] = set()  # the loops that wait for Drift to end
        self._compared = asyncio.Event()
        self.loops = Loops(
            [
                Loop("objects", self._objects, means.sweep_seconds, _SWEEP_JITTER),
                Loop("orphans", self._orphans, _ORPHANS_PAUSE, _SWEEP_JITTER),
                Loop("sweep", means.sweeper.run, SWEEP_PAUSE),
                Loop("relay", means.relay.run, RELAY_PAUSE),
                Loop("policy", self._policy, _POLICY_PAUSE),
                Loop("slots", means.codes.learn, _SLOTS_PAUSE),
                Loop("overdue", self._overdue, _OVERDUE_PAUSE),
            ],
            means.clock,
        )

    def trouble(self) -> Sequence[str]:
        """What hangs, or misses what it should hear: only a new process may help."""
        told = [f"hung: {name}" for name in self.loops.hung()]
        if self.queue.is_stuck():
            told.append("hung: queue")
        if self._drift.deaf:
            told.append("the watch does not report what sweeps find")
        return told

    async def run(self) -> None:
        """Lead until the Lease is lost.

        When cancelled, looks at objects that are under way end first. Raises Stuck.
        """
        keeping = asyncio.create_task(self._means.lease.keep(), name="lease")
        try:
            with suppress(Deposed):
                await self._prepare()
                await self._work(keeping)
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    async def _work(self, keeping: "asyncio.Task[None]") -> None:
        looking = asyncio.create_task(self.queue.run(), name="looks")
        watching = asyncio.create_task(self._watch.run(), name="watch")
        looping = asyncio.create_task(self.loops.run(), name="loops")
        tasks = (keeping, looking, watching, looping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            looping.cancel()
            self.queue.stop()
            await asyncio.wait([looking], timeout=END_SECONDS if self._means.lease.held else 0)
            looking.cancel()
            _, hanging = await asyncio.wait([looking, watching, looping], timeout=_END_MOST)
        if hanging:
            names = ", ".join(sorted(task.get_name() for task in hanging))
            raise Stuck(f"leading did not end within {_END_MOST:.0f} s: {names}")
        for task in tasks:
            if not task.done() or task.cancelled() or (error := task.exception()) is None:
                continue
            if not isinstance(error, Deposed):
                raise error

    async def _prepare(self) -> None:
        """Know the policy and the code slots before the first object is looked at, if possible."""
        self._means.policy.forget()
        for prepare in (self._policy, self._means.codes.learn):
            try:
                await prepare()
            except (ClusterError, StoreError) as error:
                log.warning("not prepared yet", error=str(error))

    async def _handle(self, key: str) -> float | None:
        try:
            return await self._controller.handle(key)
        except Exception:
            self._means.lease.check()  # whoever leads now deals with it
            raise

    def _saw(self, plural: str, type_: str, body: dict[str, Any]) -> None:
        self._means.metrics.saw(plural)
        if plural != LINKPOLICIES:
            self._controller.saw(type_, body)

    async def _objects(self) -> None:
        if not self._compared.is_set():
            self.loops.progressed("orphans")  # which waits for this
        if not self._listed:
            await self._watch.listed()
            self._listed = True
        await self._compare("objects", self._drift.sweep)
        self._compared.set()

    async def _orphans(self) -> None:
        await self._compared.wait()  # so that the brake knows of all objects
        await self._compare("orphans", self._drift.orphans)

    async def _compare(self, loop: str, work: Callable[[], Awaitable[None]]) -> None:
        self._comparing.add(loop)
        try:
            await work()
        finally:
            self._comparing.discard(loop)

    def _progressed(self) -> None:
        for loop in self._comparing:
            self.loops.progressed(loop)

    async def _policy(self) -> None:
        means, before = self._means, replace(self._means.policy.in_force)
        unread: ClusterError | None = None
        try:
            await means.switches.read()
        except ClusterError as error:  # which is no reason not to read the policy
            unread = error
        means.metrics.paused = means.switches.paused
        await means.policy.run(means.lease.check)
        if self._listed and means.policy.in_force != before:
            # What a sweep finds now, it need not find minutes later.
            await self._compare("policy", self._drift.sweep)
        if unread is not None:
            raise unread

    async def _overdue(self) -> None:
        now = self._means.clock.wall()
        due = await self._means.management.store.due(now, 1)
        self._means.metrics.overdue = (now - due[0].at) / 1000 if due else 0.0
