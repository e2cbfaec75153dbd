"""The worker: a region's sweeper and relay as a process of its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path

import structlog
import uvloop
from prometheus_client import CONTENT_TYPE_LATEST, Counter, generate_latest

from shortlink.clock import SYSTEM_CLOCK, Clock
from shortlink.links.instants import format_instant
from shortlink.links.model import Event
from shortlink.links.policy import Policy
from shortlink.loops import Loop, Loops
from shortlink.management import Management
from shortlink.serving.ops import OpsServer, line
from shortlink.serving.parts import Parts, opened
from shortlink.serving.stopping import Stop, listening
from shortlink.settings import AUDIT_LOG, Settings, WrongSetting
from shortlink.store.port import StoreError
from shortlink_operator.relay import AuditLog, Relay, Sink
from shortlink_operator.sweep import Sweeper

SWEEP_PAUSE = 1.0
RELAY_PAUSE = 0.5
_READY_SECONDS = 1.0
"""How long the store may take to answer a readiness probe."""

log = structlog.get_logger()


class Worker:
    """Sweeps and publishes what is in the store of `parts`, to `sink`; and tells how it goes.

    `ops` answers probes and scrapes once it is started.
    """

    def __init__(self, parts: Parts, clock: Clock, sink: Sink) -> None:
        self._store = parts.store
        self._registry = parts.registry
        self._sink = sink
        self._published = Counter(
            "shortlink_events_published", "Events given to the sink.", registry=parts.registry
        )
        management = Management(
            parts.store,
            Policy(),
            clock,
            _no_code,
            _no_code,
            [] if parts.second is None else [parts.second.changed],
        )
        sweeper = Sweeper(management, progressed=lambda: self.loops.progressed("sweep"))
        self.loops = Loops(
            [
                Loop("sweep", sweeper.run, SWEEP_PAUSE),
                Loop("relay", Relay(parts.store, self._publish).run, RELAY_PAUSE),
            ],
            clock,
        )
        parts.registry.register(self.loops)
        self.ops = OpsServer(
            {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        )

    async def _publish(self, events: Sequence[Event]) -> None:
        await self._sink(events)
        for event in events:
            told = asdict(event)
            log.info("link event", **told | {"at": format_instant(event.at)})
        self._published.inc(len(events))
        self.loops.progressed("relay")

    async def _healthz(self) -> tuple[HTTPStatus, str, bytes]:
        if hung := self.loops.hung():
            return line(HTTPStatus.SERVICE_UNAVAILABLE, f"hung: {', '.join(hung)}")
        return line(HTTPStatus.OK, "alive")

    async def _readyz(self) -> tuple[HTTPStatus, str, bytes]:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._store.ping()
        except (StoreError, TimeoutError) as error:
            log.warning("not ready: store does not answer", error=repr(error))
            return line(HTTPStatus.SERVICE_UNAVAILABLE, "not ready: the store does not answer")
        return line(HTTPStatus.OK, "ready")

    async def _metrics(self) -> tuple[HTTPStatus, str, bytes]:
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)


def run_worker(settings: Settings, audit_log: Path, host: str, port: int) -> None:
    """Sweep and publish until SIGTERM or SIGINT; probes and metrics are at `host`:`port`.

    Raises WrongSetting, StoreError, and Problem when the port can't be had.
    """
    try:
        audit_log.open("ab").close()
    except OSError as error:
        raise WrongSetting(
            AUDIT_LOG, f"is {audit_log}, which can't be written: {error.strerror}"
        ) from error
    uvloop.run(_work(settings, audit_log, host, port))


async def _work(settings: Settings, audit_log: Path, host: str, port: int) -> None:
    stop = Stop()
    async with opened(settings, SYSTEM_CLOCK) as parts:
        worker = Worker(parts, SYSTEM_CLOCK, AuditLog(audit_log))
        with listening("--host or --port"):
            await worker.ops.start(host, port)
        log.info("links are swept, events published", host=host, port=worker.ops.port)
        async with worker.loops.running():
            await stop.asked()
        worker.ops.close()


def _no_code() -> str:
    raise AssertionError("a worker makes no links")
