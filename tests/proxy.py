"""A proxy in front of a scratch cluster's API server, which does to requests what networks do.

    with Proxy(cluster) as proxy:
        operator = start(proxy.kubeconfig)
        proxy.cut()

It ends TLS with the server's own certificate, so it reads requests; each has a connection of its
own. A fault lasts until `mend`.
"""

import asyncio
import gc
import json
import re
import ssl
import threading
import warnings
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.apiserver import HOST, ScratchCluster

WITHIN = 10.0
"""Seconds in which the proxy itself starts, stops and changes."""

WATCH = r"[?&]watch=(true|1)\b"
"""Matches watches, and nothing else."""


@dataclass(frozen=True)
class Answer:
    """What requests get whose `METHOD path?query` matches: a status, or, when `in_stream`, a watch
    that at once tells of it, as the API server does with 410.
    """

    matching: str
    status: int
    in_stream: bool = False

    def written(self) -> bytes:
        """The whole answer."""
        told = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": f"the proxy answers {self.status}",
            "reason": "Expired" if self.status == 410 else "",
            "code": self.status,
        }
        status, body = self.status, json.dumps(told)
        if self.in_stream:
            status, body = 200, json.dumps({"type": "ERROR", "object": told}) + "\n"
        head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


class Proxy:
    """`asked` has each request, as `GET /api?limit=1`. `halved` counts watches that were cut in
    the middle of a line. Its methods are for the thread that made it.
    """

    def __init__(self, cluster: ScratchCluster) -> None:
        self.asked: list[str] = []
        self.halved = 0
        self._cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._start())
        self.kubeconfig = self._cluster.through(self.port)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN)
        self._loop.close()
        # A client that never ends its handshake leaves a socket here, which no stream names and
        # which would be some later test's failure when it is found.
        del self._server
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def cut(self) -> None:
        """Close all connections; new ones are served."""
        self._do(self._cut())

    def refuse(self) -> None:
        """Close all connections, and new ones at once."""
        self._do(self._set(refusing=True))
        self.cut()

    def swallow(self) -> None:
        """Let no byte through, either way, on old connections or new ones: a black hole."""
        self._do(self._set(flowing=False))

    def answer(self, status: int, matching: str, *, in_stream: bool = False) -> None:
        """Answer requests whose `METHOD path?query` matches, instead of the API server."""
        self._do(self._set(answer=Answer(matching, status, in_stream)))

    def halve(self) -> None:
        """Cut each watch in the middle of the next line that it tells, once for each."""
        self._do(self._set(halving=True))

    def mend(self) -> None:
        """Pass everything. What was swallowed comes late, where its connection still is."""
        self._do(self._set())

    async def _set(
        self,
        *,
        refusing: bool = False,
        flowing: bool = True,
        answer: Answer | None = None,
        halving: bool = False,
    ) -> None:
        self._refusing, self._answer = refusing, answer
        self._halving = set(self._watches) if halving else set()
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _cut(self) -> None:
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    async def _start(self) -> None:
        self._flowing = asyncio.Event()
        self._served: set[asyncio.Task[None]] = set()
        self._watches: set[asyncio.StreamWriter] = set()
        await self._set()
        files = self._cluster.folder
        self._upstream = ssl.create_default_context(cafile=files / "ca.crt")
        front = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        front.load_cert_chain(files / "server.crt", files / "server.key")
        self._server = await asyncio.start_server(self._accept, HOST, ssl=front)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = _end(writer) if self._refusing else self._serve(reader, writer)
        task = asyncio.create_task(serving)
        self._served.add(task)

        def served(task: asyncio.Task[None]) -> None:
            self._served.discard(task)
            writer.transport.abort()  # it may have been cut before it began

        task.add_done_callback(served)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            request = b" ".join(head.split(b" ", 2)[:2]).decode()
            self.asked.append(request)
            await self._flowing.wait()
            if self._answer is not None and re.search(self._answer.matching, request):
                client.write(self._answer.written())
                await client.drain()
            else:
                await self._pass(request, head, body, reader, client)
            client.close()
            await client.wait_closed()
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            pass  # one of the two went away: so does the other's connection
        finally:
            await _end(client)

    async def _pass(
        self,
        request: str,
        head: bytes,
        body: bytes,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
    ) -> None:
        first, rest = head.split(b"\r\n", 1)
        address = (HOST, self._cluster.ports[2])
        from_server, server = await asyncio.open_connection(*address, ssl=self._upstream)
        if re.search(WATCH, request):
            self._watches.add(client)
        gone = asyncio.create_task(reader.read())  # ends when the client closes
        passing = asyncio.create_task(self._answers(from_server, client))
        try:
            server.write(first + b"\r\nConnection: close\r\n" + rest + body)
            await asyncio.wait([gone, passing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            passing.cancel()
            await asyncio.gather(gone, passing, return_exceptions=True)
            self._watches.discard(client)
            await _end(server)

    async def _answers(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(65536):
            await self._flowing.wait()
            if client in self._halving and b'"object"' in data:
                client.write(data[: data.index(b'"object"') + 20])
                await client.drain()
                self.halved += 1
                return
            client.write(data)
            await client.drain()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result(WITHIN)


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close a connection without a word, whatever state it is in."""
    writer.close()
    writer.transport.abort()
    with suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
