"""A small HTTP listener for a process that has no visitors: probes and metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import structlog

Page = Callable[[], Awaitable[tuple[HTTPStatus, str, bytes]]]
"""Gives status, content type and body."""

_SECONDS: Final = 5.0
"""How long one request and its answer may take."""

_HEAD: Final = 8 * 1024
_CONNECTIONS: Final = 64
_TEXT: Final = "text/plain; charset=utf-8"

log = structlog.get_logger()


def line(status: HTTPStatus, said: str) -> tuple[HTTPStatus, str, bytes]:
    """A page of one line."""
    return status, _TEXT, f"{said}\n".encode()


class OpsServer:
    """Answers GET of each path in `pages`, one request to a connection."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.port = 0
        self._pages = pages
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen at `host`:`port` (0: any free one, then in `port`). Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Take no more requests."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS:
                # An end of the peer, of its patience or of ours needs no answer.
                with suppress(OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(_SECONDS):
                        head = await reader.readuntil(b"\r\n\r\n")
                        writer.write(await self._answer(head))
                        await writer.drain()
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.decode("latin-1").partition(" ")
        page = self._pages.get(rest.partition(" ")[0].partition("?")[0])
        if method != "GET" or page is None:
            status, content_type, body = line(
                HTTPStatus.NOT_FOUND, f"nothing here; try GET of {', '.join(self._pages)}"
            )
        else:
            try:
                status, content_type, body = await page()
            except Exception:
                log.exception("page failed")
                status, content_type, body = line(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug; logged")
        return (
            f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + body
