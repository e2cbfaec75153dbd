"""The series of a redirect server (O1): its plain integers, collected on a scrape."""

from collections.abc import Callable, Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shortlink.redirect.counters import READ_BOUNDS
from shortlink.redirect.service import RedirectService

_PREFIX = "shortlink_redirect_"


class RedirectMetrics(Collector):
    """The series of `service`. Every label's values are a fixed set, whatever is asked for.

    `connections` tells how many are open.
    """

    def __init__(self, service: RedirectService, connections: Callable[[], int]) -> None:
        self._service = service
        self._connections = connections

    def collect(self) -> Iterable[Metric]:
        """The series as they are now."""
        service, counters = self._service, self._service.counters
        requests = CounterMetricFamily(
            f"{_PREFIX}requests", "Answers sent, by status.", labels=["status"]
        )
        for status, count in counters.answers.items():
            requests.add_metric([str(status)], count + counters.quick_hits[status])
        yield requests
        cache = CounterMetricFamily(
            f"{_PREFIX}cache",
            "Look-ups in the process's own cache; refused: fills that were not kept.",
            labels=["result"],
        )
        cache.add_metric(["hit"], counters.hits + sum(counters.quick_hits.values()))
        cache.add_metric(["miss"], counters.misses)
        cache.add_metric(["refused"], service.cache.refused)
        yield cache
        for name, help_, count in (
            ("store_reads", "Reads asked of the store.", counters.reads),
            ("store_read_errors", "Reads that failed or took too long.", counters.read_errors),
            (
                "clicks_dropped",
                "Clicks lost because nobody took them in time.",
                service.clicks.dropped if service.clicks is not None else 0,
            ),
            (
                "gone_hits_dropped",
                "Visits of gone links that the audit log left out.",
                service.gone.dropped,
            ),
        ):
            yield CounterMetricFamily(_PREFIX + name, help_, value=count)
        yield GaugeMetricFamily(
            f"{_PREFIX}connections", "Open connections.", value=self._connections()
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}cache_entries",
            "Entries in the process's own cache.",
            value=len(service.cache.entries),
        )
        yield self._read_seconds()

    def _read_seconds(self) -> HistogramMetricFamily:
        counters, total, buckets = self._service.counters, 0, []
        names = [str(bound / 1000) for bound in READ_BOUNDS] + ["+Inf"]
        for name, count in zip(names, counters.read_buckets, strict=True):
            total += count
            buckets.append((name, float(total)))
        return HistogramMetricFamily(
            f"{_PREFIX}store_read_seconds",
            "How long store reads took.",
            buckets=buckets,
            sum_value=counters.read_total / 1000,
        )
