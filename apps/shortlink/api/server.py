"""Serving the API inside a running event loop."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

GRACE_SECONDS: Final = 5
"""How long requests in flight may take to end when the server closes."""

HEAD_SECONDS: Final = 10
"""How long the head of a request may take to arrive."""

_START_SECONDS: Final = 10.0
_MARGIN_SECONDS: Final = 2.0
_CONNECTIONS: Final = 1000  # one more is answered with 503


class ApiServer:
    """Serves `app` at `host`:`port` (0: any free port, then in `port`) from start() to close()."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._server = _Server(
            uvicorn.Config(
                app,
                http="h11",  # it bounds the size of headers; httptools does not
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_CONNECTIONS,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when requests are answered.

        Raises OSError when the address can't be had, and UnicodeError for what can't be a host.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self.host.encode("idna")  # socket would raise TypeError, and leave itself open
        listener = socket.create_server((self.host, self.port), family=family)
        # Connections inherit it. asyncio sets it only where the protocol is named, and without
        # it an answer's second packet waits 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve([listener]), name="api server")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait(
            {self._task, ready}, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        ready.cancel()
        self._sweeping = asyncio.create_task(self._sweep(), name="api sweep")
        if not self._server.ready.is_set():
            await self.close()
            raise TimeoutError(f"the API did not start within {_START_SECONDS:.0f} s")

    async def close(self) -> None:
        """Take no more requests, let those in flight end within GRACE_SECONDS, and return."""
        if self._task is None:
            return
        self._server.should_exit = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        async with asyncio.timeout(GRACE_SECONDS + _MARGIN_SECONDS):
            await self._task
        self._task = None

    async def _sweep(self) -> None:
        """Cut off connections that take longer than HEAD_SECONDS to send a request's head.

        uvicorn has no such bound, so that a thousand half requests would keep all others out.
        """
        now = asyncio.get_running_loop().time
        waiting: dict[Any, tuple[object, float]] = {}
        while True:
            await asyncio.sleep(1)
            known, waiting = waiting, {}
            for connection in tuple(self._server.server_state.connections):
                cycle = getattr(connection, "cycle", None)  # the last request on it
                if cycle is not None and not cycle.response_complete:
                    continue
                before = known.get(connection)
                since = before[1] if before is not None and before[0] is cycle else now()
                waiting[connection] = (cycle, since)
                if now() - since > HEAD_SECONDS:
                    connection.transport.abort()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are the process's business
