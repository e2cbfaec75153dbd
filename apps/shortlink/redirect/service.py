"""What a request is answered: from memory, from the cache that a region shares, or from the
store; one look behind memory is for all who wait (K1, K3)."""

import asyncio
from collections.abc import Callable
from typing import Protocol
from urllib.parse import unquote_to_bytes

import structlog

from shortlink.cache.memory import CAPACITY, Entry, MemoryCache
from shortlink.cache.second import Looked, SecondLevel
from shortlink.clock import Clock
from shortlink.links.model import Link
from shortlink.links.names import is_code
from shortlink.redirect.counters import Clicks, Counters, GoneHits
from shortlink.redirect.responses import NOT_FOUND, UNAVAILABLE, Response, render, text
from shortlink.store.port import NotFoundHere, StoreError

READ_DEADLINE = 2.0
PING_DEADLINE = 1.0
"""Seconds."""

READS = 256
"""Looks behind memory under way at once."""

HEALTHY = text(200, "ok")
NOT_READY = text(503, "not ready")

Then = Callable[[Response], None]

_log = structlog.get_logger(__name__)


class Source(Protocol):
    """The part of a LinkStore that redirects need."""

    async def get(self, code: str) -> Link | None: ...

    async def ping(self) -> None: ...


class _Flight:
    """One look behind memory, begun at `began` (steady), and those who wait for it."""

    __slots__ = ("began", "code", "waiting")

    def __init__(self, code: str, began: int) -> None:
        self.code = code
        self.began = began
        self.waiting: list[tuple[bool, Then]] = []


class RedirectService:
    """Answers requests for links in `store`. Belongs to the event loop that it is used in.

    `changed` is one of Management's listeners, where both share a process. `clicks` gets the
    visits that were redirected; None: nobody wants them. `second` is asked before the store.
    """

    def __init__(
        self,
        store: Source,
        clock: Clock,
        clicks: Clicks | None = None,
        *,
        second: SecondLevel | None = None,
        capacity: int = CAPACITY,
        read_deadline: float = READ_DEADLINE,
        ping_deadline: float = PING_DEADLINE,
        reads: int = READS,
    ) -> None:
        self.clock = clock
        self.cache: MemoryCache[Response] = MemoryCache(clock, render, capacity)
        self.counters = Counters()
        self.clicks = clicks
        self.gone = GoneHits()
        self.draining = False
        self._store = store
        self._second = second
        self._read_deadline = read_deadline
        self._ping_deadline = ping_deadline
        self._most_reads = reads
        self._flights: dict[str, _Flight] = {}
        self._pinging: list[Then] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = 0
        self._failing = False

    def route(self, target: bytes, head: bool, then: Then) -> Response | None:
        """The response to GET (or, with `head`, HEAD) of a request target.

        None: it takes time, and `then` is called with it. Queries are ignored, never obeyed.
        """
        path = path_of(target)
        if path == b"/healthz":
            return HEALTHY
        if path == b"/readyz":
            return self._ready(then)
        code = path[1:].decode("latin-1")
        if not path.startswith(b"/") or not is_code(code):
            return NOT_FOUND
        entry = self.cache.get(code)
        if entry is not None:
            self.counters.hits += 1
            return self._visited(code, entry, head)
        self.counters.misses += 1
        flight = self._flights.get(code) or self._depart(code)
        if flight is None:
            return UNAVAILABLE
        flight.waiting.append((head, then))
        return None

    def changed(self, link: Link) -> None:
        """Serve what `link` became from now on (K4)."""
        self.cache.changed(link)
        # A read under way may have seen the old link: it answers those who came before now.
        self._flights.pop(link.code, None)

    def reading(self, code: str) -> bool:
        """Whether a store read for `code` is under way that new requests would join."""
        return code in self._flights

    def log_gone(self) -> None:
        """Write the audit lines (R2) of the visits since the last call."""
        for (code, generation), hits in self.gone.drain().items():
            _log.info("gone link visited", code=code, generation=generation, hits=hits)

    async def close(self) -> None:
        """Give up what is still being read; those who wait get no answer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.log_gone()

    def _visited(self, code: str, entry: Entry[Response], head: bool) -> Response:
        status = entry.response.status
        if status == 410:
            self.gone.add(code, entry.stamp[0])
        elif status < 400 and not head and self.clicks is not None:
            self.clicks.add(b"/" + code.encode("ascii"), entry.stamp[0], self.clock.wall())
        return entry.response

    def _depart(self, code: str) -> _Flight | None:
        if self._reading >= self._most_reads:
            return None
        flight = _Flight(code, self.clock.steady())
        self._flights[code] = flight
        self._reading += 1
        self._start(self._read(flight))
        return flight

    async def _read(self, flight: _Flight) -> None:
        entry, otherwise = None, UNAVAILABLE
        try:
            entry = await self._find(flight)
        except NotFoundHere:
            otherwise = NOT_FOUND
        except (StoreError, TimeoutError) as error:
            self.counters.read_errors += 1
            self._store_works(False, repr(error))
        except Exception:
            self.counters.read_errors += 1
            _log.exception("store read failed unexpectedly", code=flight.code)
        finally:
            self._reading -= 1
            if self._flights.get(flight.code) is flight:
                del self._flights[flight.code]
        for head, then in flight.waiting:
            _tell(then, otherwise if entry is None else self._visited(flight.code, entry, head))

    async def _find(self, flight: _Flight) -> Entry[Response] | None:
        code, looked = flight.code, Looked()
        if self._second is not None:
            looked = await self._second.get(code)
        if looked.link is not None:
            entry = self.cache.put(looked.link, code, looked.began, asked=flight.began)
            # Not when memory knows of a newer link, nor when the answer's time is over by now.
            if entry is not None and self.clock.steady() < entry.fresh_until:
                return entry
        began = self.clock.steady()
        link = await self._fetch(code, began)
        if self._second is not None and link is not None and looked.moment is not None:
            self._second.fill(link, looked.moment)
        entry = self.cache.put(link, code, began)
        if entry is None:
            _log.error("store answered with an older link than is known", code=code)
        return entry

    async def _fetch(self, code: str, began: int) -> Link | None:
        self.counters.reads += 1
        try:
            async with asyncio.timeout(self._read_deadline):
                link = await self._store.get(code)
        except NotFoundHere:
            self._store_works(True)
            raise
        finally:
            self.counters.read_took(self.clock.steady() - began)
        self._store_works(True)
        return link

    def _store_works(self, works: bool, error: str = "") -> None:
        # Said once each way: during an outage every miss would say it.
        if works is self._failing:
            self._failing = not works
            if works:
                _log.info("store answers again")
            else:
                _log.error(
                    "store does not answer; serving what is cached, 503 for the rest", error=error
                )

    def _ready(self, then: Then) -> Response | None:
        if self.draining:
            return NOT_READY
        self._pinging.append(then)
        if len(self._pinging) == 1:  # one ping for all who ask meanwhile
            self._start(self._ping())
        return None

    async def _ping(self) -> None:
        response = NOT_READY
        try:
            async with asyncio.timeout(self._ping_deadline):
                await self._store.ping()
            response = HEALTHY
        except (StoreError, TimeoutError) as error:
            _log.warning("not ready: store does not answer", error=repr(error))
        except Exception:
            _log.exception("not ready: store failed unexpectedly")
        finally:
            waiting, self._pinging = self._pinging, []
        for then in waiting:
            _tell(then, response)

    def _start(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _tell(then: Then, response: Response) -> None:
    try:
        then(response)
    except Exception:  # one connection's trouble is not the others'
        _log.exception("response could not be sent")


def path_of(target: bytes) -> bytes:
    """The decoded path of a request target in origin-form or absolute-form (RFC 9112, 3.2)."""
    if not target.startswith(b"/"):
        scheme, found, rest = target.partition(b"://")
        if not found or scheme.lower() not in (b"http", b"https"):
            return b""
        target = b"/" + rest.partition(b"?")[0].partition(b"/")[2]
    return unquote_to_bytes(target.partition(b"?")[0])
