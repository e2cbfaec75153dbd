"""The series of a process's second cache level (O1), collected on a scrape."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shortlink.cache.redis import RedisCache

_PREFIX = "shortlink_second_cache_"


class SecondCacheMetrics(Collector):
    """The series of `cache`."""

    def __init__(self, cache: RedisCache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[Metric]:
        """The series as they are now."""
        counts = self._cache.counts
        for name, help_, results in (
            (
                "lookups",
                "Look-ups; error: no answer in time; skipped: not asked, as it did not answer.",
                {
                    "hit": counts.hits,
                    "miss": counts.misses,
                    "unreadable": counts.unreadable,
                    "error": counts.errors,
                    "skipped": counts.skipped,
                },
            ),
            (
                "writes",
                "Records sent; refused: newer was kept, or they were too old; dropped: too many.",
                {
                    "kept": counts.kept,
                    "refused": counts.refused,
                    "error": counts.write_errors,
                    "skipped": counts.write_skipped,
                    "dropped": counts.dropped,
                },
            ),
        ):
            family = CounterMetricFamily(_PREFIX + name, help_, labels=["result"])
            for result, count in results.items():
                family.add_metric([result], count)
            yield family
        failing = GaugeMetricFamily(
            f"{_PREFIX}failures", "Failed round trips since the last good one.", labels=["line"]
        )
        for line, breaker in self._cache.breakers.items():
            failing.add_metric([line], breaker.failures)
        yield failing
