"""The least an operator can be: list, watch, and for each new object the same store calls and the
same two writes as ours. No Kopf, no Lease, no conditions of anything that went wrong.

    python -m bench.operator_floor DATABASE KUBECONFIG
    python -m bench.operator_floor DATABASE --alone 2000    # the store calls without the rest
"""

import argparse
import asyncio
import json
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.codes import SLOT_KEY_BYTES, SLOTS, RandomCodes, SlotMap
from shortlink.links.instants import format_instant
from shortlink.links.lifecycle import Actor, Create
from shortlink.links.model import Link
from shortlink.links.policy import Policy
from shortlink.management import Management
from shortlink.store.port import Claim
from shortlink.store.sql import open_sql_store
from shortlink_operator.cluster import kubeconfig_login, trust

LINKS = "/apis/shortlink.platform/v1alpha1/shortlinks"
FINALIZER = "shortlink.platform/link"
MERGE = {"Content-Type": "application/merge-patch+json"}
WORKERS = 16
PAGE = 500
CLUSTER = "us-east-1"

Document = dict[str, Any]


class Links:
    """The store calls of a new object."""

    def __init__(self, management: Management) -> None:
        self._management = management

    async def make(self, key: str, uid: str, target: str) -> Link:
        """Claim a code, then bear the link."""
        code, token = self._management.draw(), self._management.new_token()
        await self._management.store.claim(Claim(key, code, 1, token, CLUSTER, uid))
        by = Actor(owner=key.partition("/")[0], claim=key)
        return await self._management.create(
            Create(by=by, code=code, target=target, token=token, custom=False)
        )


class Floor:
    """List, then watch; `workers` of them handle what is new."""

    def __init__(self, url: str, context: ssl.SSLContext, links: Links) -> None:
        self._url = url
        self._context = context
        self._links = links
        self._known: set[str] = set()
        self._queue: asyncio.Queue[Document] = asyncio.Queue()

    async def run(self) -> None:
        """Go on until killed."""
        async with (
            self._session() as watching,
            self._session() as writing,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._follow(watching))
            for _ in range(WORKERS):
                tasks.create_task(self._work(writing))

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=WORKERS)
        timeout = aiohttp.ClientTimeout(total=None)
        return aiohttp.ClientSession(
            self._url, connector=connector, timeout=timeout, read_bufsize=2**20
        )

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        version, more = "", ""
        while True:
            params = {"limit": str(PAGE)} | ({"continue": more} if more else {})
            async with session.get(LINKS, params=params) as answer:
                page = await answer.json()
            for item in page["items"]:
                self._saw(item)
            version, more = page["metadata"]["resourceVersion"], page["metadata"].get("continue")
            if not more:
                break
        while True:
            params = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600"}
            async with session.get(LINKS, params=params) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"the watch ended: {event['object']}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._saw(event["object"])

    def _saw(self, item: Document) -> None:
        uid = item["metadata"]["uid"]
        if uid not in self._known:
            self._known.add(uid)
            if "status" not in item:
                self._queue.put_nowait(item)

    async def _work(self, session: aiohttp.ClientSession) -> None:
        while True:
            item = await self._queue.get()
            meta = item["metadata"]
            namespace, name = meta["namespace"], meta["name"]
            path = f"{LINKS.rpartition('/')[0]}/namespaces/{namespace}/shortlinks/{name}"
            await self._patch(session, path, {"metadata": {"finalizers": [FINALIZER]}})
            link = await self._links.make(
                f"{namespace}/{name}", meta["uid"], item["spec"]["target"]
            )
            await self._patch(session, f"{path}/status", {"status": _status(meta, link)})

    async def _patch(self, session: aiohttp.ClientSession, path: str, body: Document) -> None:
        async with session.patch(path, data=json.dumps(body), headers=MERGE) as answer:
            await answer.json()
            answer.raise_for_status()


def _status(meta: Document, link: Link) -> Document:
    assert link.expires_at is not None
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Serving",
        "message": f"{link.code} leads to its target in all regions",
        "observedGeneration": meta["generation"],
        "lastTransitionTime": format_instant(link.created_at),
    }
    return {
        "conditions": [ready],
        "observedGeneration": meta["generation"],
        "code": link.code,
        "url": f"https://s.example/{link.code}",
        "state": "ACTIVE",
        "expiresAt": format_instant(link.expires_at),
        "home": CLUSTER,
    }


def _management(database: Path) -> tuple[Management, Callable[[], Any]]:
    store = open_sql_store(database)
    slots = SlotMap(secrets.token_bytes(SLOT_KEY_BYTES))
    codes = RandomCodes(slots, range(SLOTS), secrets.token_bytes)
    tokens = lambda: secrets.token_hex(16)  # noqa: E731
    return Management(store, Policy(), SYSTEM_CLOCK, codes.draw, tokens), store.close


async def _alone(links: Links, count: int) -> float:
    """Processor seconds of `count` objects' store calls."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await links.make(f"bench/story-{number}", "", f"https://www.example.com/{number}")

    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    return time.process_time() - began


async def _main(args: argparse.Namespace) -> None:
    management, close = _management(args.database)
    links = Links(management)
    if args.alone:
        print(await _alone(links, args.alone))
        await close()
    else:
        login = kubeconfig_login(args.kubeconfig)
        await Floor(login.server, trust(login), links).run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("kubeconfig", type=Path, nargs="?")
    parser.add_argument("--alone", type=int, metavar="OBJECTS")
    uvloop.run(_main(parser.parse_args()))
