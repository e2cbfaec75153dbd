"""What a service works with, opened by its settings and closed in order."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector

from shortlink.clock import Clock
from shortlink.settings import CACHE, Settings, WrongSetting
from shortlink.store.opening import open_store
from shortlink.store.port import LinkStore
from shortlink.store.record import from_text, to_text

if TYPE_CHECKING:
    from shortlink.cache.redis import RedisCache


@dataclass(frozen=True, slots=True)
class Parts:
    """The store, Redis where there is one, and the registry of this process's series."""

    store: LinkStore
    second: "RedisCache | None"
    registry: CollectorRegistry


@asynccontextmanager
async def opened(settings: Settings, clock: Clock, *, native: bool = False) -> AsyncIterator[Parts]:
    """The parts; `native` for a process where reads have to be fast.

    Raises WrongSetting, StoreUnsuitable, and StoreUnavailable where a store can't be opened
    without an answer.
    """
    async with AsyncExitStack() as closing:
        store = await open_store(settings.store, settings.region, clock, native=native)
        closing.push_async_callback(store.close)
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        second = None
        if settings.cache is not None:
            from shortlink.cache.metrics import SecondCacheMetrics
            from shortlink.cache.redis import open_cache

            try:
                second = open_cache(settings.cache, clock, to_text, from_text)
            except ValueError as error:
                raise WrongSetting(CACHE, f"can't be used: {error}") from error
            closing.push_async_callback(second.close)
            registry.register(SecondCacheMetrics(second))
        yield Parts(store, second, registry)
