"""A redirect server on real sockets, and its visitors."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shortlink.clock import HandClock
from shortlink.redirect.counters import Clicks
from shortlink.redirect.protocol import Connection as ServerConnection
from shortlink.redirect.server import RedirectServer
from shortlink.redirect.service import RedirectService
from tests import samples
from tests.redirect_rig import Source
from tests.samples import NOW

HOST = b"Host: s.example\r\n"
WAIT = 30  # seconds; an uvloop that waits in vain does not hear pytest-timeout's signal


@dataclass(frozen=True)
class Response:
    status: int
    head: str
    body: bytes

    def __getitem__(self, name: str) -> str:
        values = re.findall(rf"(?im)^{name}: (.*)\r$", self.head)
        assert len(values) == 1, (name, self.head)
        return str(values[0])

    def __contains__(self, name: str) -> bool:
        return re.search(rf"(?im)^{name}:", self.head) is not None


def a_request(target: str = "/promo", method: str = "GET", extra: bytes = b"") -> bytes:
    return f"{method} {target} HTTP/1.1\r\n".encode() + HOST + extra + b"\r\n"


class Peer:
    """A visitor's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def response(self, *, head: bool = False) -> Response:
        async with asyncio.timeout(WAIT):
            return await self._response(head)

    async def _response(self, head: bool) -> Response:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("ascii")
        found = re.match(r"HTTP/1\.1 (\d{3}) [A-Z][A-Za-z -]*\r\nDate: [^\r]+ GMT\r\n", text)
        assert found, text
        length = int(re.findall(r"(?m)^Content-Length: (\d+)\r$", text)[0])
        return Response(
            int(found.group(1)), text, b"" if head else await self.reader.readexactly(length)
        )

    async def ask(self, data: bytes, *, head: bool = False) -> Response:
        self.writer.write(data)
        return await self.response(head=head)

    async def ended(self) -> bool:
        """Whether nothing more comes before the end."""
        async with asyncio.timeout(WAIT):
            return await self.reader.read() == b""


class Site:
    """A server with one link, `promo`, and a hand-set clock."""

    def __init__(self) -> None:
        self.hand = HandClock(NOW)
        self.store = Source([samples.a_link(changed_at=NOW)])
        self.clicks = Clicks()
        self.service = RedirectService(self.store, self.hand.clock, self.clicks)
        self.server = RedirectServer(self.service, "127.0.0.1", 0)
        self.peers: list[Peer] = []

    async def start(self, **options: Any) -> None:
        self.server = RedirectServer(self.service, "127.0.0.1", 0, **options)
        # A hand-set clock moves within one turn of the loop: let the server see that.
        self.server.now.turn = self.hand.clock.steady
        await self.server.start()

    async def connect(self, port: int | None = None) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port or self.server.port))
        self.peers.append(peer)
        return peer

    async def until(self, true: Callable[[], bool]) -> None:
        """Let both sides go on until `true`."""
        async with asyncio.timeout(WAIT):
            while True:
                if true():
                    return
                await asyncio.sleep(0)

    def connections(self) -> set[ServerConnection]:
        return self.server._public.connections

    async def connection(self) -> ServerConnection:
        await self.until(lambda: len(self.connections()) == 1)
        return next(iter(self.connections()))
