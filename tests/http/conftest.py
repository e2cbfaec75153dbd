"""Which event loops the HTTP tests run on."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

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
    return EVERY_LOOP if item.path.name == "test_redirect_http.py" else LOOPS
