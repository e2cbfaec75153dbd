"""An API server with one Lease, a clock set by hand, and operators that contend for it."""

import asyncio
import copy
from collections.abc import Iterable
from typing import Any, cast

from shortlink.clock import Clock, HandClock
from shortlink_operator.cluster import Cluster, Conflict, Missing
from shortlink_operator.lease import Lease
from tests.samples import NOW

Json = dict[str, Any]

PATH = "/apis/coordination.k8s.io/v1/namespaces/shortlink/leases/operator"


class Hours:
    """A hand-set clock, and sleepers whom it wakes one after the other."""

    def __init__(self) -> None:
        self.hand = HandClock(NOW)
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.hand.clock.steady() + round(seconds * 1000), waking))
        await waking

    async def go(self, seconds: float) -> None:
        """Let time pass, with all that happens in it."""
        end = self.hand.clock.steady() + round(seconds * 1000)
        await settle()
        while due := [each for each in self._sleepers if each[0] <= end]:
            first = min(due, key=lambda each: each[0])
            self._sleepers.remove(first)
            self.hand.advance(max(0, first[0] - self.hand.clock.steady()))
            if not first[1].done():
                first[1].set_result(None)
            await settle()
        self.hand.advance(max(0, end - self.hand.clock.steady()))


async def settle() -> None:
    """Let everybody do what can be done without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


class ApiServer:
    """Keeps one Lease."""

    def __init__(self) -> None:
        self.kept: Json | None = None
        self.writes = 0

    def keep(self, body: Json) -> Json:
        self.writes += 1
        meta = {**body["metadata"], "resourceVersion": str(self.writes)}
        self.kept = copy.deepcopy({**body, "metadata": meta})
        return copy.deepcopy(self.kept)

    def edit(self, **spec: object) -> None:
        """A change by somebody's hand."""
        assert self.kept is not None
        self.keep({**self.kept, "spec": {**self.kept["spec"], **spec}})

    @property
    def spec(self) -> Json:
        assert self.kept is not None
        spec: Json = self.kept["spec"]
        return spec


class Line:
    """One operator's Cluster. `trouble` is raised instead of every answer, `lost` instead of the
    answers to writes, which are done; when `hung` there are no answers at all.
    """

    def __init__(self, server: ApiServer) -> None:
        self.trouble: Exception | None = None
        self.lost: Exception | None = None
        self.hung = False
        self._server = server

    async def get(self, path: str) -> Json:
        assert path == PATH
        await self._answer()
        if self._server.kept is None:
            raise Missing("none")
        return copy.deepcopy(self._server.kept)

    async def create(self, path: str, body: Json) -> Json:
        assert path == PATH.rpartition("/")[0]
        await self._answer()
        if self._server.kept is not None:
            raise Conflict("there")
        return self._keep(body)

    async def replace(self, path: str, body: Json) -> Json:
        assert path == PATH
        await self._answer()
        kept = self._server.kept
        if kept is None:
            raise Missing("none")
        if body["metadata"]["resourceVersion"] != kept["metadata"]["resourceVersion"]:
            raise Conflict("changed")
        return self._keep(body)

    async def _answer(self) -> None:
        await asyncio.sleep(0)  # others come in between
        if self.hung:
            await asyncio.Event().wait()
        if self.trouble is not None:
            raise self.trouble

    def _keep(self, body: Json) -> Json:
        written = self._server.keep(body)
        if self.lost is not None:
            raise self.lost
        return written


class World:
    """One API server, one clock, and operators; some of them `run`, with all that they do."""

    def __init__(self) -> None:
        self.hours = Hours()
        self.server = ApiServer()
        self.lines: dict[str, Line] = {}
        self.leases: dict[str, Lease] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def lease(self, name: str, skew: int = 0, rate: float = 1.0) -> Lease:
        """An operator on a host whose clock is `skew` ms ahead, and runs at `rate`."""
        hand = self.hours.hand.clock
        clock = Clock(lambda: hand.wall() + skew, lambda: round(hand.steady() * rate))
        self.lines[name] = Line(self.server)
        cluster = cast(Cluster, self.lines[name])
        self.leases[name] = Lease(
            cluster, "shortlink", "operator", name, clock, self.hours.sleep, lambda: 0.0
        )
        return self.leases[name]

    def run(self, name: str, skew: int = 0, rate: float = 1.0) -> Lease:
        """An operator that takes part for ever."""
        lease = self.lease(name, skew, rate)

        async def life() -> None:
            while True:
                await lease.acquire()
                await lease.keep()

        self.tasks[name] = asyncio.create_task(life(), name=name)
        return lease

    @property
    def leads(self) -> list[str]:
        """Who believes that it leads."""
        return [name for name, each in self.leases.items() if each.held]

    async def watch(self, seconds: float) -> list[list[str]]:
        """Who believed so, four times a second."""
        seen = []
        for _ in range(round(seconds * 4)):
            await self.hours.go(0.25)
            seen.append(self.leads)
        return seen

    async def end(self, names: Iterable[str]) -> None:
        """Kill operators."""
        tasks = [self.tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
