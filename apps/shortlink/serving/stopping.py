"""How a service's process listens, and how it ends without losing a request."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from shortlink.problem import Problem

log = structlog.get_logger()


class Stop:
    """Hears SIGTERM and SIGINT of the process whose event loop runs.

    The first asks it to stop. The second ends it at once: by itself, because the first process
    of a container is not ended by signals that it doesn't handle.
    """

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.listen()

    def listen(self) -> None:
        """Hear the signals, also where somebody else took them for himself meanwhile."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._hear, number)

    async def asked(self) -> None:
        """Return when the process is to stop."""
        await self._asked.wait()

    async def drained(self, begin: Callable[[], None], seconds: float) -> None:
        """When the process is to stop, `begin` to turn visitors away, and return `seconds` later.

        Until then whoever has not heard of it goes on sending visitors, who are served.
        """
        await self.asked()
        begin()
        log.info("draining", seconds=seconds)
        await asyncio.sleep(seconds)

    def _hear(self, number: int) -> None:
        if self._asked.is_set():
            log.warning("ended at once, by a second signal")
            os._exit(128 + number)
        self._asked.set()


@contextmanager
def listening(options: str) -> Iterator[None]:
    """Say which `options` to change when an address can't be had. Raises Problem."""
    try:
        yield
    except (OSError, UnicodeError) as error:  # the latter for a host that can't be a name
        raise Problem(f"can't listen: {error}; choose {options}") from error
