"""The redirect server under test, and the event loops that it is tested on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from tests.http.redirect_site import Peer, Site

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
EVERY_LOOP = dict(LOOPS)
try:
    import uvloop
except ImportError:  # Windows has none
    pass
else:
    EVERY_LOOP["uvloop"] = uvloop.new_event_loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The redirect server speaks to its loop directly, so its tests run on each."""
    return EVERY_LOOP if item.path.name.startswith("test_redirect_") else LOOPS


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.start()
    yield site
    for peer in site.peers:
        peer.writer.close()
    await site.server.close(0)
    await site.until(lambda: not site.connections())


@pytest.fixture
async def peer(site: Site) -> Peer:
    return await site.connect()
