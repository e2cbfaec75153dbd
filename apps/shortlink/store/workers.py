"""Threads that serve one bounded queue, so that coroutines can await blocking work."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from sqlalchemy import Connection

from shortlink.store.port import StoreUnavailable

T = TypeVar("T")

DEADLINE = 5.0
"""Seconds until a caller is told that the store doesn't answer."""

WAITING = 1024
"""Jobs that may wait; the next is refused at once."""


@dataclass(slots=True, eq=False)
class Job:
    """Work on a connection, and the coroutine that waits for its result or error."""

    work: Callable[[Connection], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class Workers:
    """`threads` threads; each takes what is waiting, up to `group` jobs, and lets `serve` fill
    in their results and errors.
    """

    def __init__(
        self,
        where: str,
        threads: int,
        group: int,
        serve: Callable[[Sequence[Job]], None],
    ) -> None:
        self._where = where
        self._group = group
        self._serve = serve
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._ended: list[Future[None]] = [Future() for _ in range(threads)]
        # Daemons: a process that forgot to close its store must still be able to end.
        self._threads = [
            threading.Thread(target=self._live, args=(ended,), name=f"store {where}", daemon=True)
            for ended in self._ended
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """The result of `work`, or its exception.

        Raises StoreUnavailable when too much is waiting or no answer came by the deadline;
        then the work may still be done later.
        """
        job = Job(work, asyncio.get_running_loop().create_future())
        with self._changed:
            if self._closed:
                raise StoreUnavailable(f"the store {self._where} was closed; open it again")
            if len(self._waiting) >= WAITING:
                raise StoreUnavailable(
                    f"{WAITING} calls wait for {self._where} already; try again later"
                )
            self._waiting.append(job)
            self._changed.notify()
        try:
            async with asyncio.timeout(DEADLINE):
                result: T = await job.future
        except TimeoutError:
            raise StoreUnavailable(
                f"{self._where} did not answer within {DEADLINE:g} s; check its disk, and repeat"
                " the call to learn its outcome"
            ) from None
        return result

    async def close(self) -> None:
        """Serve what is waiting, take nothing more, end the threads. Again: nothing.

        Raises StoreUnavailable when they are still busy at the deadline.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        ended = [asyncio.wrap_future(one) for one in self._ended]
        _, busy = await asyncio.wait(ended, timeout=DEADLINE)
        if busy:
            raise StoreUnavailable(
                f"{self._where} is still busy {DEADLINE:g} s after it was to close; close it again"
            )
        for thread in self._threads:
            thread.join()

    def _live(self, ended: Future[None]) -> None:
        while jobs := self._take():
            try:
                self._serve(jobs)
            except Exception as error:
                for job in jobs:
                    job.error = job.error or error
            for loop, group in groupby(jobs, key=lambda job: job.future.get_loop()):
                # A loop that was closed has nobody left who waits.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(_settle, list(group))
        ended.set_result(None)

    def _take(self) -> list[Job]:
        """The next jobs in their order; none when closed and all are served."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return [self._waiting.popleft() for _ in range(min(self._group, len(self._waiting)))]


def _settle(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.future.done():  # its caller gave up
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
