"""The redirect server's life: its listeners, its sweep, its drain; and a process of its own."""

import asyncio
import resource
import signal
from contextlib import suppress
from pathlib import Path

import structlog
import uvloop

from shortlink.clock import SYSTEM_CLOCK
from shortlink.redirect.listener import Listener, Now
from shortlink.redirect.ops import Ops
from shortlink.redirect.protocol import Connection
from shortlink.redirect.service import RedirectService
from shortlink.store.sql import open_sql_store

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
    are the real ones after `start`. `reuse_port` lets several processes share `port`.
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
        ops = Ops(service, lambda: len(connections))
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

    async def close(self, deadline: float = DRAIN) -> None:
        """Take no new connections, answer what is in flight, and be gone within `deadline` s."""
        self._service.draining = True
        self._stop_listening()
        self._public.drain()
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
    """Serve redirects from the SQL store at `store_path` until SIGTERM or SIGINT, then drain.

    Raises StoreError when the store can't be opened, and OSError when a port can't be had.
    """
    raise_descriptor_limit()
    uvloop.run(_serve(store_path, host, port, ops_port, reuse_port))


async def _serve(store_path: Path, host: str, port: int, ops_port: int, reuse_port: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = open_sql_store(store_path)
    try:
        service = RedirectService(store, SYSTEM_CLOCK)
        server = RedirectServer(service, host, port, ops_port=ops_port, reuse_port=reuse_port)
        await server.start()
        _log.info("redirects are served", host=host, port=server.port, ops_port=server.ops_port)
        await stop.wait()
        await server.close()
    finally:
        await store.close()
