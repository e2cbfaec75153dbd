"""A controller over a store and an API server in memory, and a queue on a hand-set clock."""

from collections import Counter
from typing import Any

from shortlink.links.model import Link
from shortlink_operator.controller import Controller
from shortlink_operator.drift import Drift
from tests.fake_cluster import Body, FakeCluster
from tests.fakes import Gate
from tests.samples import TARGET
from tests.world import World

REGION = "here"
SPEC = {"target": TARGET, "code": "promo"}
KEY = "ann/promo"
OTHER = "https://example.com/b"


class InForce:
    """In the place of policy_loop.InForce."""

    def __init__(self) -> None:
        self.links_per_namespace: int | None = None
        self.wrong = ""


class Metrics:
    """In the place of metrics.OperatorMetrics."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.drift: Counter[str] = Counter()
        self.orphans = 0
        self.held = 0

    def settled(self, key: str, reason: str | None) -> None:
        if reason is None:
            self.reasons.pop(key, None)
        else:
            self.reasons[key] = reason

    def drifted(self, kind: str) -> None:
        self.drift[kind] += 1


class Line:
    """A queue whose keys are handled by `Rig.run`."""

    def __init__(self, world: World) -> None:
        self.due: dict[str, int] = {}
        self._clock = world.clock.clock

    def add(self, key: str, after: float = 0.0, *, swept: bool = False) -> None:
        at = self._clock.steady() + int(after * 1000)
        self.due[key] = min(at, self.due.get(key, at))


class Rig:
    """One cluster's operator, from its start on. `cluster` outlives it, as `world` does."""

    def __init__(
        self,
        world: World | None = None,
        cluster: FakeCluster | None = None,
        region: str = REGION,
        gate: Gate | None = None,
    ) -> None:
        self.world = world or World()
        self.cluster = cluster or FakeCluster()
        self.in_force = InForce()
        self.metrics = Metrics()
        self.line = Line(self.world)
        self.failures: list[Exception] = []
        self.handled: Counter[str] = Counter()
        self.management = self.world.management(gate)
        fakes: dict[str, Any] = {
            "cluster": self.cluster,
            "management": self.management,
            "metrics": self.metrics,
            "in_force": self.in_force,
            "may_act": self._may_act,
        }
        line: Any = self.line
        self.controller = Controller(
            queue=line,
            region=region,
            base_url="https://s.example",
            instance="operator-1",
            **fakes,
        )
        self.drift = Drift(self.controller, **fakes)
        self.cluster.told = self.controller.saw
        self.deposed: Exception | None = None
        for body in list(self.cluster.objects.values()):
            self.controller.saw("LISTED", body)

    async def run(self, seconds: float = 3.0) -> None:
        """Handle what is due within so many seconds."""
        clock = self.world.clock
        end = clock.clock.steady() + int(seconds * 1000)
        while due := [(at, key) for key, at in self.line.due.items() if at <= end]:
            at, key = min(due)
            clock.advance(max(0, at - clock.clock.steady()))
            del self.line.due[key]
            self.handled[key] += 1
            try:
                again = await self.controller.handle(key)
            except Exception as error:
                self.failures.append(error)
                again = 2.0 ** len(self.failures)
            if again is not None:
                self.line.add(key, again)
        clock.advance(max(0, end - clock.clock.steady()))

    def object(self, key: str) -> Body:
        return self.cluster.objects[key]

    def ready(self, key: str) -> tuple[str, str]:
        """Status and reason of the Ready condition, which is about the object as it is."""
        body = self.object(key)
        (condition,) = body["status"]["conditions"]
        assert condition["observedGeneration"] == body["metadata"]["generation"]
        assert self.metrics.reasons.get(key) == condition["reason"]
        return condition["status"], condition["reason"]

    def said(self, key: str) -> str:
        message: str = self.object(key)["status"]["conditions"][0]["message"]
        return message

    def wrote(self) -> list[tuple[str, str]]:
        """The writes since this was asked for last."""
        writes, self.cluster.writes = self.cluster.writes, []
        return writes

    def _may_act(self) -> None:
        if self.deposed is not None:
            raise self.deposed


async def made(*keys: str, rig: Rig | None = None, **spec: Any) -> Rig:
    """A rig whose objects, each with a drawn code, are Ready."""
    rig = rig or Rig()
    for key in keys:
        rig.cluster.apply(key, {"target": OTHER} | spec)
    await rig.run()
    assert {rig.ready(key)[0] for key in keys} == {"True"}
    rig.wrote()
    return rig


async def swept(rig: Rig) -> None:
    await rig.run()
    await rig.drift.sweep()
    await rig.run()


def named(count: int, namespace: str = "ann") -> list[str]:
    return [f"{namespace}/{number:02}" for number in range(count)]


def states(rig: Rig) -> list[str]:
    return sorted(link.state for link in rig.world.kept.links.values())


def link_of(rig: Rig, key: str = KEY) -> Link:
    return rig.world.link(rig.object(key)["status"]["code"])
