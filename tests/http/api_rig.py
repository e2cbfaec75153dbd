"""The API over a store in memory, a hand-set clock, and three callers."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any, cast

import httpx

from shortlink.api.app import make_app
from shortlink.api.keys import Key, Keys, digest, new_key
from shortlink.clock import HandClock
from shortlink.links.codes import encode
from shortlink.links.instants import format_instant
from shortlink.links.model import Event, Link
from shortlink.links.names import is_code
from shortlink.links.policy import Policy
from shortlink.management import Management
from shortlink.store.port import LinkStore

OWNER = new_key(lambda n: b"o" * n)
OTHER = new_key(lambda n: b"x" * n)
ADMIN = new_key(lambda n: b"a" * n)
LINKS = "/api/v1/links"
URL = "https://example.com/a"
NOW = 1_800_000_000_000


class MemoryStore:
    """As much of LinkStore as the API reaches. `gate` holds every call; `error` fails it."""

    def __init__(self) -> None:
        self.rows: dict[str, Link] = {}
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()

    async def get(self, code: str) -> Link | None:
        if not is_code(code):
            raise ValueError(f"{code!r} was looked up, but can't be a code")
        await self._turn()
        return self.rows.get(code)

    async def create(self, link: Link, events: Sequence[Event], due: Sequence[int]) -> Link:
        await self._turn()
        return self.rows.setdefault(link.code, link)

    async def change(
        self, old: Link, new: Link, events: Sequence[Event], due: Sequence[int]
    ) -> Link:
        await self._turn()
        if self.rows[old.code].stamp == old.stamp:
            self.rows[old.code] = new
        return self.rows[old.code]

    async def ping(self) -> None:
        await self._turn()

    async def _turn(self) -> None:
        self.entered.set()
        await asyncio.sleep(0)  # others may run between any two calls
        await self.gate.wait()
        if self.error is not None:
            raise self.error


class Rig:
    def __init__(self) -> None:
        self.hand = HandClock(NOW)
        self.store = MemoryStore()
        numbers = count(1)
        self.management = Management(
            cast(LinkStore, self.store),
            Policy(own_hosts=frozenset({"s.example"})),
            self.hand.clock,
            lambda: encode(next(numbers)),
            lambda: f"token-{next(numbers)}",
        )
        keys = Keys(
            [
                Key("ann", False, digest(OWNER)),
                Key("bob", False, digest(OTHER)),
                Key("root", True, digest(ADMIN)),
            ]
        )
        self.app = make_app(self.management, keys, "https://s.example/")
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://api.example"
        )

    async def call(
        self, method: str, path: str = LINKS, key: str | None = OWNER, **request: Any
    ) -> httpx.Response:
        headers = dict(request.pop("headers", {}))
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return await self.client.request(method, path, headers=headers, **request)

    async def make(self, **body: Any) -> Any:
        """A link of the owner's."""
        answer = await self.call("POST", json={"long_url": URL, **body})
        assert answer.status_code == 201, answer.text
        return answer.json()

    def at(self, ahead: int) -> str:
        return format_instant(self.hand.at + ahead)


def is_problem(answer: httpx.Response, status: int, reason: str) -> Any:
    """The problem's members, once it is known to be one (RFC 9457)."""
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "application/problem+json",
    ), answer.text
    problem = answer.json()
    assert problem["type"] == f"urn:shortlink:problem:{reason}", problem
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem
