"""What the redirect's tests share: a store that can be held, failed and counted."""

import asyncio
from collections.abc import Iterable

from shortlink.links.model import Link
from shortlink.redirect.responses import Response
from shortlink.redirect.service import RedirectService


class Source:
    """The part of a LinkStore that redirects need. `error` fails every call, `hold` keeps
    them waiting until `release`; `reads` are the codes asked for. A held read sees the links
    as they were when it began.
    """

    def __init__(self, links: Iterable[Link] = ()) -> None:
        self.links = {link.code: link for link in links}
        self.error: Exception | None = None
        self.reads: list[str] = []
        self.pings = 0
        self._gates: dict[str, asyncio.Event] = {}

    def hold(self, name: str) -> None:
        """Keep the reads of this code, or `ping`, waiting."""
        self._gates[name] = asyncio.Event()

    def release(self, name: str) -> None:
        self._gates.pop(name).set()

    async def get(self, code: str) -> Link | None:
        self.reads.append(code)
        link, error = self.links.get(code), self.error
        await self._pass(code)
        if error is not None:
            raise error
        return link

    async def ping(self) -> None:
        self.pings += 1
        error = self.error
        await self._pass("ping")
        if error is not None:
            raise error

    async def _pass(self, name: str) -> None:
        if name in self._gates:
            await self._gates[name].wait()


def ask(service: RedirectService, target: str, *, head: bool = False) -> "asyncio.Future[Response]":
    """The response to a GET (or HEAD) of `target`, as a future; the request was already made."""
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    response = service.route(target.encode(), head, future.set_result)
    if response is not None:
        future.set_result(response)
    return future


def header(response: Response, name: str) -> str | None:
    """The value of a header line, None when there is none. Fails when there are two."""
    prefix = f"{name.lower()}: "
    lines = response.head.decode("ascii").split("\r\n")
    values = [line[len(prefix) :] for line in lines if line.lower().startswith(prefix)]
    assert len(values) <= 1, values
    return values[0] if values else None
