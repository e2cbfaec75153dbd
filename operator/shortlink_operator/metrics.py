"""The operator's own series (O1). Labels are of closed sets, so their number is bounded."""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shortlink_operator.queue import Queue

_REASONS_MOST: Final = 40
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class OperatorMetrics(Collector):
    """What the operator did, and how its objects are. `begin` starts anew what only a leader
    knows; `orphans` and `held` are what the last look found, `overdue` is how many seconds ago
    the oldest hint was due, `paused` what is paused.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"shortlink_operator_{name}", about, labels, registry=registry)

        self.orphans = 0
        self.held = 0
        self.overdue = 0.0
        self.paused: Mapping[str, bool] = {}
        self._queue: Queue | None = None
        self._reasons: dict[str, str] = {}
        self._leader = Gauge(
            "shortlink_operator_leader", "1 while this process leads.", registry=registry
        )
        self._events = counter("watch_events", "Events that the watch reported.", "kind")
        self._requests = counter(
            "requests",
            "Requests to the API server other than watches.",
            *("verb", "kind", "result"),
        )
        self._drift = counter("drift_repaired", "What a sweep found and mended.", "kind")
        self.handled = Histogram(
            "shortlink_operator_handled_seconds",
            "From an object's event until it was dealt with.",
            buckets=_SECONDS,
            registry=registry,
        ).observe
        registry.register(self)

    def begin(self, queue: Queue) -> None:
        """This process leads, and works through `queue`."""
        self._queue = queue
        self._leader.set(1)

    def end(self) -> None:
        """It leads no more, and knows nothing of the objects."""
        self._queue = None
        self._reasons.clear()
        self.orphans = self.held = 0
        self.overdue = 0.0
        self._leader.set(0)

    def saw(self, kind: str) -> None:
        """The watch reported something of `kind`."""
        self._events.labels(kind).inc()

    def asked(self, verb: str, kind: str, result: str) -> None:
        """The API server was asked."""
        self._requests.labels(verb, kind, result).inc()

    def settled(self, key: str, reason: str | None) -> None:
        """The object at `key` rests with `reason`; None: it is gone."""
        if reason is None:
            self._reasons.pop(key, None)
        else:
            self._reasons[key] = reason

    def drifted(self, kind: str) -> None:
        """A sweep mended a difference of this kind."""
        self._drift.labels(kind).inc()

    def collect(self) -> Iterable[Metric]:
        """What is looked up when it is asked for."""

        def gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"shortlink_operator_{name}", about, labels=labels)

        objects = gauge("objects", "Objects by the reason of their Ready condition.", "reason")
        for reason, count in Tally(self._reasons.values()).most_common(_REASONS_MOST):
            objects.add_metric([reason], count)
        yield objects
        for name, about, value in (
            (
                "orphans",
                "Links whose object has no claim for them, at the last hourly look.",
                self.orphans,
            ),
            ("held_deletions", "Deletions that the brake holds, at the last sweep.", self.held),
            ("overdue_seconds", "How long ago the oldest hint was due.", self.overdue),
        ):
            family = gauge(name, about)
            family.add_metric([], value)
            yield family
        paused = gauge("paused", "1 for what is paused by a switch.", "what")
        for what, is_paused in self.paused.items():
            paused.add_metric([what], is_paused)
        yield paused
        if self._queue is not None:
            depth = self._queue.depth()
            keys = gauge("queue_keys", "Objects to be looked at.", "state")
            for state in ("due", "later", "running"):
                keys.add_metric([state], getattr(depth, state))
            yield keys
            oldest = gauge("queue_oldest_seconds", "How long the oldest of them has been due.")
            oldest.add_metric([], depth.oldest)
            yield oldest
