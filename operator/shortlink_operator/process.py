"""The operator: a cluster's ShortLinks, and its region's sweeper and relay, as one process."""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog
import uvloop
from prometheus_client import CONTENT_TYPE_LATEST, Counter, generate_latest

from shortlink.clock import SYSTEM_CLOCK, Clock
from shortlink.links.instants import format_instant
from shortlink.links.model import Event
from shortlink.links.policy import Policy
from shortlink.management import Management
from shortlink.problem import Problem
from shortlink.serving.codes import StoredCodes
from shortlink.serving.ops import OpsServer, line
from shortlink.serving.parts import Parts, opened
from shortlink.serving.stopping import Stop, listening
from shortlink.settings import AUDIT_LOG, OperatorSettings, Settings, WrongSetting
from shortlink.store.port import StoreError
from shortlink_operator.cluster import Cluster, open_cluster
from shortlink_operator.leading import Leadership, Means
from shortlink_operator.lease import Lease
from shortlink_operator.metrics import OperatorMetrics
from shortlink_operator.policy_loop import PolicyLoop
from shortlink_operator.relay import AuditLog, Relay, Sink
from shortlink_operator.sweep import Sweeper
from shortlink_operator.switches import SWEEPER, Switches
from shortlink_operator.watch import Stuck

LEASE: Final = "operator"

_READY_SECONDS: Final = 1.0
"""How long the store may take to answer a readiness probe."""
_ANSWERED: Final = 30.0
"""Seconds since its last answer after which the API server is taken to be away."""
_END_SECONDS: Final = 25.0
"""For the end of the process: less than Kubernetes' grace of 30 s, so that the log tells of it."""
_BEAT: Final = 1.0
_LATE: Final = 5.0
"""Seconds that the event loop may be late."""

log = structlog.get_logger()


class Operator:
    """Leads whenever it has its cluster's Lease, by what is in `parts` and `cluster`.

    Events go to `sink`. `begun` is called when Kopf took the process's signals for itself. `ops`
    answers probes and scrapes once it is started.
    """

    def __init__(
        self,
        parts: Parts,
        cluster: Cluster,
        own: OperatorSettings,
        clock: Clock,
        sink: Sink,
        begun: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self._store = parts.store
        self._registry = parts.registry
        self._cluster = cluster
        self._clock = clock
        self._sink = sink
        self._begun = begun
        self._leadership: Leadership | None = None
        self._beat = clock.steady()
        self._published = Counter(
            "shortlink_events_published", "Events given to the sink.", registry=parts.registry
        )
        self._metrics = OperatorMetrics(parts.registry)
        cluster.told = self._metrics.asked
        # Of this process alone: whoever comes after it under the same name is another.
        identity = f"{own.name}-{secrets.token_hex(4)}"
        namespace = own.namespace or cluster.login.namespace
        codes = StoredCodes(parts.store, secrets.token_bytes)
        management = Management(
            parts.store,
            Policy(own_hosts=own.own_hosts),
            clock,
            codes.draw,
            lambda: secrets.token_hex(16),
            [] if parts.second is None else [parts.second.changed],
        )
        switches = Switches(cluster, namespace)
        policy = PolicyLoop(cluster, management, own.region, own.own_hosts, switches)
        sweeper = Sweeper(
            management,
            progressed=lambda: self._progressed("sweep"),
            is_paused=lambda: switches.paused[SWEEPER] or bool(policy.in_force.wrong),
        )
        self._lease = Lease(cluster, namespace, LEASE, identity, clock, sleep)
        self._means = Means(
            cluster,
            self._lease,
            management,
            codes,
            switches,
            policy,
            sweeper,
            Relay(parts.store, self._publish),
            self._metrics,
            clock,
            own.region,
            own.base_url,
            identity,
            own.sweep,
        )
        self.ops = OpsServer(
            {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics_page}
        )

    async def run(self) -> None:
        """Wait for the Lease and lead while it is ours, again and again, until cancelled.

        Raises Stuck, after which only the end of the process helps.
        """
        beating = asyncio.create_task(self._beats(), name="beat")
        try:
            while True:
                await self._lease.acquire()
                await self._lead()
        finally:
            beating.cancel()
            await self._lease.release()

    async def _lead(self) -> None:
        leadership = self._leadership = Leadership(self._means, self._begun)
        self._registry.register(leadership.loops)
        self._metrics.begin(leadership.queue)
        try:
            await leadership.run()
        finally:
            self._leadership = None
            self._metrics.end()
            self._registry.unregister(leadership.loops)
        log.warning("leading no more, and standing by")

    async def _beats(self) -> None:
        while True:
            self._beat = self._clock.steady()
            await self._sleep(_BEAT)

    def _progressed(self, loop: str) -> None:
        if self._leadership is not None:
            self._leadership.loops.progressed(loop)

    async def _publish(self, events: Sequence[Event]) -> None:
        await self._sink(events)
        for event in events:
            told = asdict(event)
            log.info("link event", **told | {"at": format_instant(event.at)})
        self._published.inc(len(events))
        self._progressed("relay")

    async def _healthz(self) -> tuple[HTTPStatus, str, bytes]:
        """Red for what a new process may mend; so not while a store or an API server is away."""
        trouble = [] if self._leadership is None else list(self._leadership.trouble())
        if self._clock.steady() - self._beat > (_BEAT + _LATE) * 1000:
            trouble.append("the event loop is late")
        if trouble:
            return line(HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(trouble))
        return line(HTTPStatus.OK, "alive")

    async def _readyz(self) -> tuple[HTTPStatus, str, bytes]:
        """Ready to lead, or leading."""
        if self._clock.steady() - self._cluster.answered > _ANSWERED * 1000:
            return line(HTTPStatus.SERVICE_UNAVAILABLE, "not ready: the API server does not answer")
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._store.ping()
        except (StoreError, TimeoutError) as error:
            log.warning("not ready: store does not answer", error=repr(error))
            return line(HTTPStatus.SERVICE_UNAVAILABLE, "not ready: the store does not answer")
        return line(HTTPStatus.OK, "leading" if self._leadership is not None else "standing by")

    async def _metrics_page(self) -> tuple[HTTPStatus, str, bytes]:
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)


def run_operator(
    settings: Settings, own: OperatorSettings, kubeconfig: Path | None, host: str, port: int
) -> None:
    """Look after links until SIGTERM or SIGINT; probes and metrics are at `host`:`port`.

    Raises WrongSetting, StoreError, and Problem when the cluster's login, the port or the end of
    the watch is one.
    """
    try:
        own.audit_log.open("ab").close()
    except OSError as error:
        raise WrongSetting(
            AUDIT_LOG, f"is {own.audit_log}, which can't be written: {error.strerror}"
        ) from error
    uvloop.run(_operate(settings, own, kubeconfig, host, port))


async def _operate(
    settings: Settings, own: OperatorSettings, kubeconfig: Path | None, host: str, port: int
) -> None:
    stop = Stop()
    async with (
        open_cluster(kubeconfig, SYSTEM_CLOCK) as cluster,
        opened(settings, SYSTEM_CLOCK) as parts,
    ):
        operator = Operator(parts, cluster, own, SYSTEM_CLOCK, AuditLog(own.audit_log), stop.listen)
        with listening("--host or --port"):
            await operator.ops.start(host, port)
        log.info("waiting for the lease", host=host, port=operator.ops.port)
        asked = asyncio.create_task(stop.asked())
        running = asyncio.create_task(operator.run())
        await asyncio.wait({asked, running}, return_when=asyncio.FIRST_COMPLETED)
        asyncio.get_running_loop().call_later(_END_SECONDS, _give_up)
        for task in (asked, running):
            task.cancel()
        await asyncio.wait({asked, running})
        operator.ops.close()
        if not running.cancelled() and (error := running.exception()) is not None:
            if isinstance(error, Stuck):
                raise Problem(str(error)) from error
            raise error


def _give_up() -> None:
    log.error("did not end in time, so it is ended", seconds=_END_SECONDS)
    os._exit(1)
