"""The platform as its users and its operators see it: what drills and tests/real share.

The default is the local platform (`make up`). Others are named with
`--at NAME=REDIRECT_URL,API_URL` for each region, and `--key-file`.
"""

import argparse
import asyncio
import ctypes
import errno
import math
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from local.parts import find
from local.regions import layout
from local.regions.cluster import NAMESPACE
from local.regions.layout import KUBECONFIG, NODE_PORTS, STATE

VISIT_SECONDS = 5.0
WRITE_SECONDS = 10.0
KUBECTL_SECONDS = 180.0
_CONNECTIONS = 200
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Region:
    """Where a region's users reach it; `network` is its network namespace, if it has one."""

    name: str
    redirect: str
    api: str
    network: str = ""


REGIONS = tuple(
    Region(
        region.name,
        f"http://{region.address}:{NODE_PORTS['redirect']}",
        f"http://{region.address}:{NODE_PORTS['api']}",
        region.namespace,
    )
    for region in layout.REGIONS
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: an HTTP status; or 0, and `lost` says refused, late or cut."""

    status: int
    location: str | None = None
    body: Any = None
    lost: str = ""

    @property
    def unknown(self) -> bool:
        """Whether a write that was answered so may have happened or not."""
        return self.status in (0, 500, 503)

    def __str__(self) -> str:
        said = self.body.get("detail") if isinstance(self.body, dict) else None
        parts = (self.status or self.lost, self.location, said)
        return " ".join(str(part) for part in parts if part)


class User:
    """Somebody in a region, who keeps connections open; nothing is retried, none is followed."""

    def __init__(self, region: Region, key: str) -> None:
        self.region = region
        self._key = {"Authorization": f"Bearer {key}"}
        self._kept = _client(httpx.Limits(max_connections=_CONNECTIONS))
        self._fresh = _client(
            httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=0)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(self._kept.aclose(), self._fresh.aclose())

    async def visit(self, code: str, *, fresh: bool = False) -> Answer:
        """Follow a short link; `fresh`: on a connection of its own."""
        client = self._fresh if fresh else self._kept
        return await _ask(client, VISIT_SECONDS, "GET", f"{self.region.redirect}/{code}")

    async def api(
        self,
        method: str,
        path: str = "",
        body: dict[str, Any] | None = None,
        *,
        fresh: bool = False,
    ) -> Answer:
        """Ask the API about links; `fresh`: on a connection of its own."""
        client = self._fresh if fresh else self._kept
        url = f"{self.region.api}/api/v1/links{path}"
        return await _ask(client, WRITE_SECONDS, method, url, headers=self._key, json=body)

    async def create(self, target: str, alias: str | None = None, *, fresh: bool = False) -> Answer:
        """Make a link, at `alias` or else at a generated code."""
        named = {} if alias is None else {"custom_alias": alias}
        return await self.api("POST", body={"long_url": target, **named}, fresh=fresh)


def _client(limits: httpx.Limits) -> httpx.AsyncClient:
    return httpx.AsyncClient(limits=limits, trust_env=False, timeout=WRITE_SECONDS)


async def _ask(
    client: httpx.AsyncClient, seconds: float, method: str, url: str, **rest: Any
) -> Answer:
    try:
        async with asyncio.timeout(seconds):
            response = await client.request(method, url, **rest)
    except TimeoutError:
        return Answer(0, lost="late")
    except httpx.ConnectError as error:
        return Answer(0, lost=f"refused ({_reason(error)})")
    except httpx.TransportError:
        return Answer(0, lost="cut")
    is_json = "json" in response.headers.get("content-type", "")
    return Answer(
        response.status_code,
        response.headers.get("location"),
        response.json() if is_json and response.content else None,
    )


def _reason(error: BaseException | None) -> str:
    """What the kernel called it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return errno.errorcode.get(error.errno, str(error.errno))
        error = error.__cause__ or error.__context__
    return "no reason given"


@dataclass(frozen=True, slots=True)
class Site:
    """The regions of a platform, and an administrator's API key for all of them."""

    regions: tuple[Region, ...]
    key: str

    @asynccontextmanager
    async def users(self) -> AsyncIterator[list[User]]:
        """One user for each region."""
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(User(region, self.key)) for region in self.regions
            ]


def site_options(description: str | None) -> argparse.ArgumentParser:
    """A drill's parser, with the options that say where the platform is."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--at", action="append", type=_region, metavar="NAME=REDIRECT_URL,API_URL", default=[]
    )
    parser.add_argument("--key-file", type=Path, default=STATE / "api-key")
    return parser


def _region(text: str) -> Region:
    name, _, urls = text.partition("=")
    redirect, _, api = urls.partition(",")
    if not api:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=REDIRECT_URL,API_URL")
    return Region(name, redirect, api)


def open_site(args: argparse.Namespace) -> Site:
    """The platform that the options name. Ends the program when it can't be used."""
    try:
        site = Site(tuple(args.at) or REGIONS, args.key_file.read_text(encoding="utf-8").strip())
    except OSError as error:
        raise SystemExit(f"no API key: {error}; `make up` starts the platform") from error
    if unready := asyncio.run(_unready(site)):
        raise SystemExit(f"the platform is not ready: {unready}; `make up` starts it")
    return site


async def _unready(site: Site) -> str:
    async with site.users() as users:
        answers = [(user, await user.visit("readyz")) for user in users]
    return "; ".join(
        f"{user.region.redirect}/readyz: {answer}"
        for user, answer in answers
        if answer.status != 200
    )


def local_site() -> Site:
    """The local platform. Ends the program when it is not up."""
    return open_site(site_options(None).parse_args([]))


async def until(
    holds: Callable[[], Awaitable[object]], what: str, *, seconds: float = 30.0, every: float = 0.1
) -> None:
    """Await the coroutine function `holds` until it is true. Raises AssertionError in the end."""
    try:
        async with asyncio.timeout(seconds):
            while not await holds():  # noqa: ASYNC110 (it happens in another process)
                await asyncio.sleep(every)
    except TimeoutError:
        raise AssertionError(f"waited {seconds:.0f} s for {what}") from None


def enter(network: str) -> None:
    """Move this thread into a network namespace: what it connects from now on is in there."""
    if not network:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", network).open("rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"can't enter {network}: {os.strerror(number)}")


def kubectl(
    region: str,
    *words: str,
    namespace: str = NAMESPACE,
    given: str | None = None,
    within: float = KUBECTL_SECONDS,
) -> str:
    """What `kubectl` prints, asked in a namespace of a region's cluster; `given` is its input."""
    command = [
        str(find().program("kubectl")),
        f"--kubeconfig={KUBECONFIG}",
        f"--context=local-{region}",
        f"--namespace={namespace}",
        *words,
    ]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=within)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(words)} in {region}: {done.stderr.strip()}")
    return done.stdout


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are no greater than (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    shown = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    )


def verdict(broken: Sequence[str], held: str) -> int:
    """Say what held, or each broken promise; the exit status."""
    if not broken:
        print(f"HELD: {held}")
        return 0
    for line in broken[:20]:
        print(f"BROKEN: {line}")
    print(f"{len(broken)} broken promises")
    return 1
