"""Drill (L5): the operator killed right before and right after each of its steps, and counted.

    python -m tests.drills.operator_steps --kills 50
    python -m tests.drills.operator_steps --store cassandra    # hints before rows; needs `make up`

Objects are made, edited, adopted by a rebuilt cluster, deleted and applied again on a scratch
cluster, and in the midst of it the operator kills itself. Its successor has to leave each object
with its one link and its one code, or gone; no link without its claim, and no finalizer.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from local.stacks import store_address
from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.model import LIVE, Link, State
from shortlink.store.opening import open_store, prepare
from shortlink.store.port import Claim
from tests.apiserver import ScratchCluster, free_ports, scratch_cluster
from tests.drills.site import table, verdict
from tests.dying_operator import Fuse, Life, Step
from tests.operator_rig import REGION, Document, Objects, environ, ready

KEYSPACE = "drill_operator_steps"
OBJECTS = 4
SECONDS = 60.0

NEW = (Step.FINALIZER, Step.CLAIM, Step.BIRTH, Step.STATUS)
STEPS: Mapping[str, Sequence[Step]] = {
    "new": NEW,
    "edited": (Step.CHANGE, Step.STATUS),
    "adopted": (Step.FINALIZER, Step.RECLAIM, Step.STATUS),
    "deleted": (Step.CHANGE, Step.RELEASE),
    "applied again": (Step.FINALIZER, Step.RECLAIM, Step.CHANGE, Step.STATUS),
}
CASSANDRA_STEPS: Mapping[str, Sequence[Step]] = {"new": (Step.HINT, Step.ROW)}


@dataclass(frozen=True, slots=True)
class Point:
    """A place where the operator is killed."""

    what: str
    step: Step
    after: bool

    def __str__(self) -> str:
        return f"{self.what}: {'after' if self.after else 'before'} {self.step}"


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store has of a namespace: its links, and its objects' claims by key."""

    links: Sequence[Link]
    claims: Mapping[str, Claim]

    @property
    def live(self) -> list[Link]:
        return [link for link in self.links if link.state in LIVE]


def read_store(address: str, namespace: str, keys: Sequence[str]) -> Stored:
    """Read by a process of its own: this one has to stay without threads, for it forks."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    reader = context.Process(target=_read, args=(there, address, namespace, keys))
    reader.start()
    there.close()
    try:
        stored: Stored = here.recv()
    finally:
        reader.join(SECONDS)
    return stored


def _read(answer: Connection, address: str, namespace: str, keys: Sequence[str]) -> None:
    async def read() -> Stored:
        store = await open_store(address, REGION, SYSTEM_CLOCK)
        links = await store.by_owner(namespace, "", 100)
        claims = {key: await store.find_claim(key) for key in keys}
        await store.close()
        return Stored(links, {key: claim for key, claim in claims.items() if claim is not None})

    answer.send(asyncio.run(read()))


class Judge:
    """What was killed, and what was found wrong."""

    def __init__(self, steps: Mapping[str, Sequence[Step]], rng: random.Random) -> None:
        self.points = [
            Point(what, step, after)
            for what, each in steps.items()
            for step in each
            for after in (False, True)
        ]
        self.kills: Counter[Point] = Counter()
        self.broken: list[str] = []
        self._rng = rng

    def of_step(self, point: Point) -> int:
        """Kills at this side of this step, whatever was done."""
        return sum(
            count
            for each, count in self.kills.items()
            if (each.step, each.after) == (point.step, point.after)
        )

    def next(self, what: str, enough: int) -> Point | None:
        """The place of `what` that was hit least; None when all were hit often enough."""
        open_ = [p for p in self.points if p.what == what and self.of_step(p) < enough]
        self._rng.shuffle(open_)
        return min(open_, key=lambda p: (self.kills[p], self.of_step(p)), default=None)

    def tell(self, point: object, what: str) -> None:
        self.broken.append(f"{point}: {what}")

    def judge(self, point: object, stored: Stored, objects: Sequence[Document]) -> None:
        """Each object is Ready and has its link and claim; there is no other link that lives."""
        codes = {}
        for item in objects:
            meta, status = item["metadata"], item["status"]
            key = f"{meta['namespace']}/{meta['name']}"
            codes[key] = status["code"]
            claim = stored.claims.get(key)
            link = next((each for each in stored.links if each.code == status["code"]), None)
            if claim is None or (claim.code, claim.uid) != (status["code"], meta["uid"]):
                self.tell(point, f"{key} has {status['code']}, and its claim is {claim}")
            elif link is None or (link.token, link.generation) != (claim.token, claim.generation):
                self.tell(point, f"{key} claims {claim.code}, and its link is {link}")
            elif (link.state, link.target) != (State.ACTIVE, item["spec"]["target"]):
                self.tell(point, f"{key} has {link.state} {link.target}, not {item['spec']}")
        for link in stored.live:
            if link.code not in codes.values():
                self.tell(point, f"{link.code} of {link.claim} lives, and is nobody's")


@dataclass
class Bench:
    """A cluster with an operator that dies on command; one namespace for each cycle."""

    cluster: ScratchCluster
    objects: Objects
    address: str
    place: Path
    judge: Judge
    enough: int
    rng: random.Random
    fuse: Fuse = field(default_factory=Fuse)
    life: Life = field(init=False)
    namespace: str = ""
    codes: dict[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        return [f"{self.namespace}/link-{number}" for number in range(OBJECTS)]

    def start(self) -> None:
        """Begin the next life."""
        (port,) = free_ports(1)
        for lease in self.objects.leases():  # of one that is known to be dead: no need to wait
            self.objects.ask("DELETE", lease)
        options = ["--kubeconfig", str(self.cluster.kubeconfig), "--port", str(port)]
        variables = environ(self.place) | {"SHORTLINK_STORE": self.address}
        self.life = Life(self.fuse, variables, options, self.place / "operator.txt")

    def cycle(self, number: int) -> None:
        """The whole life of a few objects, the operator killed once in each part of it."""
        self.namespace, self.codes = f"steps-{number}", {}
        self.objects.namespace(self.namespace)
        self._part("new", self._create, self._all_ready)
        if self._is_open("edited"):
            self._part("edited", self._edit, self._all_ready)
        if self._is_open("adopted"):
            self._part("adopted", self._rebuild, self._all_ready, running=False)
        if self._is_open("deleted", "applied again"):
            self._part("deleted", self._delete, self._all_gone)
            self._part("applied again", self._create, self._all_ready)

    def _is_open(self, *parts: str) -> bool:
        return any(self.judge.next(what, self.enough) for what in parts)

    def _part(
        self,
        what: str,
        act: Callable[[], None],
        ends: Callable[[object], None],
        *,
        running: bool = True,
    ) -> None:
        """Act, with the operator `running` or not; let it die, and the next one end it."""
        point = self.judge.next(what, self.enough)
        if point is None:
            act()
            return ends(what)
        if not running:
            self.life.kill()
            act()
        self.fuse.light(point.step, after=point.after, coming=self.rng.randint(1, OBJECTS))
        if running:
            act()
        else:
            self.start()
        if (status := self.life.await_end()) == -signal.SIGKILL:
            self.judge.kills[point] += 1
        else:
            self.judge.tell(point, f"never came: {status}")
            self.life.kill()
        self.fuse.put_out()
        self.start()
        ends(point)

    def _create(self) -> None:
        for key in self.keys:
            self.objects.create(key, {"target": f"https://steps.example/{self.rng.random()}"})

    def _edit(self) -> None:
        for key in self.keys:
            self.objects.edit(key, target=f"https://steps.example/{self.rng.random()}")

    def _delete(self) -> None:
        for key in self.keys:
            self.objects.delete(key)

    def _rebuild(self) -> None:
        """The same objects in a cluster that knows nothing of them."""
        for item in self.objects.all(self.namespace):
            key = f"{self.namespace}/{item['metadata']['name']}"
            self.objects.delete(key, force=True)
            self.objects.create(key, item["spec"])

    def _all_ready(self, point: object) -> None:
        def settled(items: Sequence[Document]) -> bool:
            return all((ready(item) or {}).get("status") == "True" for item in items)

        items = self._await(point, settled)
        stored = read_store(self.address, self.namespace, self.keys)
        if not settled(items):
            return
        self.judge.judge(point, stored, items)
        codes = {item["metadata"]["name"]: item["status"]["code"] for item in items}
        if self.codes and codes != self.codes:
            self.judge.tell(point, f"codes were {self.codes} and are {codes}")
        self.codes = codes

    def _all_gone(self, point: object) -> None:
        self._await(point, lambda items: not items)
        for link in read_store(self.address, self.namespace, self.keys).live:
            self.judge.tell(point, f"{link.code} of {link.claim} lives, and its object is gone")

    def _await(
        self, point: object, holds: Callable[[Sequence[Document]], bool]
    ) -> Sequence[Document]:
        end = time.monotonic() + SECONDS
        while not holds(items := self.objects.all(self.namespace)):
            if time.monotonic() > end:
                self.judge.tell(point, f"stuck: {items}")
                break
            time.sleep(0.02)
        return items


def drill(enough: int, seed: int, cassandra: bool, place: Path) -> int:
    """Kill until each place was hit often enough; print, judge."""
    rng = random.Random(seed)
    judge = Judge(CASSANDRA_STEPS if cassandra else STEPS, rng)
    with _store(place, cassandra) as address, scratch_cluster(REGION) as cluster:
        cluster.apply_crds()
        bench = Bench(cluster, Objects(cluster), address, place, judge, enough, rng)
        number, began = 0, time.monotonic()
        bench.start()
        while any(judge.of_step(point) < enough for point in judge.points):
            bench.cycle(number)
            number += 1
            if number % 10 == 0 or judge.broken:
                took = time.monotonic() - began
                print(f"{judge.kills.total()} kills, {took:.0f} s: {judge.broken}", file=sys.stderr)
            if len(judge.broken) > enough:
                break
        bench.life.kill()
        bench.objects.close()
    rows = [(str(point), judge.kills[point], judge.of_step(point)) for point in judge.points]
    print(f"seed {seed}, {judge.kills.total()} kills, {OBJECTS} objects each")
    print(table(("killed", "kills", "of this step"), rows))
    return verdict(judge.broken, "one link, one code, no orphan, nothing stuck")


@contextmanager
def _store(place: Path, cassandra: bool) -> Iterator[str]:
    if not cassandra:
        yield f"sqlite:///{place / 'links.db'}"
        return
    address = store_address(KEYSPACE)
    _apart(lambda: prepare(address, REGION, SYSTEM_CLOCK, None))
    try:
        yield address
    finally:
        _apart(_drop)


async def _drop() -> None:
    from shortlink.store.cassandra.driver import open_session
    from shortlink.store.cassandra.session import Level, Statement

    host = store_address(KEYSPACE).partition(f"{REGION}=")[2].partition(",")[0].partition("/")[0]
    session = await open_session(REGION, [host], os.urandom)
    await session.execute(Statement(f"DROP KEYSPACE {KEYSPACE}", Level.LOCAL_ONE, timeout=30))
    await session.close()


def _apart(work: Callable[[], Any]) -> None:
    process = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(work()))
    process.start()
    process.join(120)
    assert process.exitcode == 0, f"{work} ended with {process.exitcode}"


def main() -> None:
    """Run the drill; exit 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="for each side of each step")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--store", choices=("sqlite", "cassandra"), default="sqlite")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shortlink-steps-") as name:
        status = drill(args.kills, args.seed, args.store == "cassandra", Path(name))
    sys.exit(status)


if __name__ == "__main__":
    main()
