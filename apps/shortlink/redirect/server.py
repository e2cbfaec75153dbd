"""The redirect server's life: its listeners, its sweep, its drain; and a process of its own."""

import asyncio
import resource
from contextlib import suppress
from pathlib import Path

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from shortlink.clock import SYSTEM_CLOCK
from shortlink.redirect.listener import Listener, Now
from shortlink.redirect.ops import Ops
from shortlink.redirect.protocol import Connection
from shortlink.redirect.service import RedirectService
from shortlink.serving.parts import opened
from shortlink.serving.stopping import Stop, listening
from shortlink.settings import Settings

MAX_CONNECTIONS = 10_000
MAX_OPS_CONNECTIONS = 64

DRAIN = 10.0
"""Seconds that a stopping process gives to what is under way."""

_SWEEP_EVERY = 1.0
_BACKLOG = 4096

_log = structlog.get_logger(__name__)


class RedirectServer:
    """Serves `service` to visitors at `host`:`port`, and its metrics at `ops_host`:`ops_port`.

    Belongs to the event loop that it is made in. Port 0 takes a free one; `port` and `ops_port`
    are the real ones after `start`. `reuse_port` lets several processes share `port`; `registry`
    has the process's other series.
    """

    def __init__(
        self,
        service: RedirectService,
        host: str,
        port: int,
        ops_host: str = "127.0.0.1",
        ops_port: int = 0,
        *,
        reuse_port: bool = False,
        registry: CollectorRegistry | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.port = port
        self.ops_port = ops_port
        self._host = host
        self._ops_host = ops_host
        self._reuse_port = reuse_port
        self._service = service
        now = self.now = Now(service.clock, asyncio.get_running_loop().time)
        self._public = Listener(
            route=service.route,
            now=now,
            most=max_connections,
            counters=service.counters,
            entries=service.cache.entries,
            clicks=service.clicks,
        )
        connections = self._public.connections
        ops = Ops(service, lambda: len(connections), registry)
        self._ops = Listener(route=ops.route, now=now, most=MAX_OPS_CONNECTIONS)
        self._servers: list[asyncio.Server] = []
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises OSError (EADDRINUSE and the like) and then listens nowhere."""
        try:
            self.port = await self._listen(self._public, self._host, self.port, self._reuse_port)
            self.ops_port = await self._listen(self._ops, self._ops_host, self.ops_port, False)
        except OSError:
            self._stop_listening()
            raise
        self._sweeping = asyncio.create_task(self._sweep())

    def drain(self) -> None:
        """Say that it is not ready, and end every connection with its next answer."""
        self._service.draining = True
        self._public.drain()

    async def close(self, deadline: float = DRAIN) -> None:
        """Take no new connections, answer what is in flight, and be gone within `deadline` s."""
        self.drain()
        self._stop_listening()
        self._public.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline):
                await self._public.empty.wait()
        self._public.abort()
        self._ops.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self._service.close()

    async def _listen(self, listener: Listener, host: str, port: int, reuse_port: bool) -> int:
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(listener), host, port, reuse_port=reuse_port, backlog=_BACKLOG
        )
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _stop_listening(self) -> None:
        while self._servers:
            self._servers.pop().close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            try:
                self.sweep()
            except Exception:  # the sweep of the next second is still wanted
                _log.exception("sweep failed")

    def sweep(self) -> None:
        """What is due each second: end connections that took too long, write audit lines."""
        now = self._service.clock.steady()
        self._public.sweep(now)
        self._ops.sweep(now)
        self._service.log_gone()


def raise_descriptor_limit() -> None:
    """Let this process have as many open files, and so connections, as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_redirect(
    store_path: Path, host: str, port: int, ops_port: int = 0, *, reuse_port: bool = False
) -> None:
    """`serve_redirects` from the SQLite file at `store_path`, for this machine: its metrics are
    at 127.0.0.1, and nobody has to hear that it stops.
    """
    settings = Settings(f"sqlite:///{store_path}", drain=0)
    serve_redirects(settings, host, port, "127.0.0.1", ops_port, reuse_port=reuse_port)


def serve_redirects(
    settings: Settings,
    host: str,
    port: int,
    ops_host: str,
    ops_port: int,
    *,
    reuse_port: bool = False,
) -> None:
    """Serve redirects until SIGTERM or SIGINT, then drain.

    Raises StoreError when the store can't be opened, and Problem when a port can't be had.
    """
    raise_descriptor_limit()
    uvloop.run(_serve(settings, host, port, ops_host, ops_port, reuse_port))


async def _serve(
    settings: Settings, host: str, port: int, ops_host: str, ops_port: int, reuse_port: bool
) -> None:
    stop = Stop()
    async with opened(settings, SYSTEM_CLOCK, native=True) as parts:
        service = RedirectService(parts.store, SYSTEM_CLOCK, second=parts.second)
        server = RedirectServer(
            service,
            host,
            port,
            ops_host,
            ops_port,
            reuse_port=reuse_port,
            registry=parts.registry,
        )
        with listening("--host, --port or --ops-port"):
            await server.start()
        _log.info("redirects are served", host=host, port=server.port, ops_port=server.ops_port)
        await stop.drained(server.drain, settings.drain)
        await server.close()
