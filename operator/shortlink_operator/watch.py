"""Watches objects with Kopf, of which only the lists and watches are used.

Kopf is told to keep nothing for itself: no finalizer, no annotation, no Event, no peering, and no
record of an object between two of its events. It is run by its tasks: `kopf.operator()` cancels,
when it ends, all tasks that were begun meanwhile, whoever began them.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import kopf
import structlog
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from shortlink_operator.cluster import Cluster, ClusterError, Login, trust
from shortlink_operator.kinds import API_VERSION

PLURALS: Final = ("shortlinks", "linkpolicies")
LISTED: Final = "LISTED"
"""The type of an event about an object that was there when the watch began."""

STOP_SECONDS: Final = 10.0
_BACKOFF_FIRST: Final = 1.0
_BACKOFF_CAP: Final = 30.0
_REQUEST_CAP: Final = 10.0
"""Between two tries of a request: so late, at most, is the watch after the server is back."""
_DOUBLINGS: Final = 6
_LONG: Final = 60.0
"""Seconds of watching after which the next failure is taken for the first."""

_KOPF: Final = str(Path(kopf.__file__).parent)

_QUIET: Final = 1.0
_QUIET_LOOKS: Final = 2
_LIST_LOOKS: Final = 60

log = structlog.get_logger()

Saw = Callable[[str, str, dict[str, Any]], None]
"""Is told of an event: plural, type and object."""


class Stuck(Exception):
    """Work did not end though it was cancelled: only the end of the process helps."""


class Watch:
    """Tells `saw` of everything that happens to objects of this platform's kinds.

    `begun` is called whenever Kopf was begun, which takes the process's signals for itself.
    """

    def __init__(
        self,
        cluster: Cluster,
        saw: Saw,
        begun: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._saw = saw
        self._begun = begun
        self._sleep = sleep
        self._chance = chance
        self._listed = 0
        _log_to_structlog()

    async def run(self) -> None:
        """Watch until cancelled; what ends Kopf is logged, and it is begun anew.

        Raises Stuck.
        """
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._until_kinds_are_there()
                await self._watch()
            except ClusterError as error:
                log.warning("not watching yet", error=str(error))
            if asyncio.get_running_loop().time() - began > _LONG:
                failures = 0
            failures += 1
            longest = min(_BACKOFF_FIRST * 2 ** min(failures, _DOUBLINGS), _BACKOFF_CAP)
            await self._sleep(longest * (1 - self._chance() / 2))

    async def listed(self) -> None:
        """Return when, as far as can be told, all that was there at the start was reported."""
        seen, quiet = -1, 0
        for _ in range(_LIST_LOOKS):
            quiet = quiet + 1 if seen == self._listed else 0
            if quiet == _QUIET_LOOKS:
                return
            seen = self._listed
            await self._sleep(_QUIET)

    async def _until_kinds_are_there(self) -> None:
        """Kopf would go on without a kind that comes later."""
        there = await self._cluster.get(f"/apis/{API_VERSION}")
        absent = set(PLURALS) - {each["name"] for each in there["resources"]}
        if absent:
            raise ClusterError(
                f"the API server has no {', '.join(sorted(absent))} in {API_VERSION}:"
                " apply the CRDs in operator/crds"
            )

    async def _watch(self) -> None:
        sessions: list[aiohttp.ClientSession] = []
        beginning = asyncio.create_task(self._begin(sessions))
        try:
            tasks = await asyncio.shield(beginning)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(await beginning)
            for session in sessions:  # Kopf does not close them when it ends in a hurry
                await session.close()

    async def _begin(
        self, sessions: list[aiohttp.ClientSession]
    ) -> Collection["asyncio.Task[None]"]:
        tasks = await kopf.spawn_tasks(
            registry=self._registry(sessions),
            settings=_settings(self._chance),
            memories=_Forgetful(),
            clusterwide=True,
            standalone=True,
        )
        self._begun()  # before another signal can come
        return tasks

    def _registry(self, sessions: list[aiohttp.ClientSession]) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> kopf.AiohttpSession:
            sessions.append(session := _session(self._cluster.login))
            return kopf.AiohttpSession(server=self._cluster.login.server, aiohttp_session=session)

        kopf.on.login(registry=registry)(login)
        for plural in PLURALS:
            # A filter hears of each event before Kopf prepares to call a handler, which would be
            # a tenth of all that the operator costs for a new object.
            told = partial(self._told, plural)
            kopf.on.event(API_VERSION, plural, registry=registry, when=told)(_never)
        return registry

    def _told(self, plural: str, *, event: Any, **_: Any) -> bool:
        type_ = event["type"]
        if type_ is None:
            self._listed += 1
        self._saw(plural, type_ or LISTED, event["object"])
        return False


async def _never(**_: Any) -> None:
    raise AssertionError("the filter has let an event through")


class _Forgetful(ResourceMemories):
    """Kopf's memory of objects, which for `on.event` is of no use and never shrinks for those
    whose deletion a re-list hides."""

    async def recall(self, *args: Any, **kwargs: Any) -> ResourceMemory:
        return await super().recall(*args, **kwargs | {"ephemeral": True})


class _NothingHandled(kopf.DiffBaseStorage):
    """What Kopf compares objects by, which would be a deep copy of each in every event."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("no handler here has a state")


class _Backoffs:
    """Waits between tries of one request, without end: a watch may never give up."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance

    def __iter__(self) -> Iterator[float]:
        wait = _BACKOFF_FIRST
        while True:
            yield wait * (1 - self._chance() / 2)
            wait = min(2 * wait, _REQUEST_CAP)


def _settings(chance: Callable[[], float]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    # Else it would kill the process so long after it was stopped, whatever runs then.
    settings.process.ultimate_exiting_timeout = None
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.scanning.disabled = True
    # What is told here takes no time. With a limit a task would hold its place while it idles, and
    # the objects of a whole list would wait in memory for their turns.
    settings.queueing.worker_limit = None
    settings.queueing.idle_timeout = 0.05
    settings.queueing.exit_timeout = 1.0
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330.0
    settings.watching.connect_timeout = 5.0
    settings.watching.inactivity_timeout = 75.0  # a bookmark comes every minute
    settings.watching.reconnect_backoff = 0.5
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 5.0
    settings.networking.error_backoffs = _Backoffs(chance)
    settings.persistence.diffbase_storage = _NothingHandled()
    return settings


def _session(login: Login) -> aiohttp.ClientSession:
    """Connections of the watches' own: in a common pool they would starve all else."""

    async def authorise(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if token := login.token():
            request.headers["Authorization"] = f"Bearer {token}"
        return await handler(request)

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=trust(login)), middlewares=(authorise,)
    )


async def _end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """End Kopf: its tasks, and those that it forgets. These are the other watches when one has
    failed, which end their own helpers; and requests that it makes side by side.
    """
    hanging = await _cancelled(tasks)
    hanging |= await _cancelled([task for task in asyncio.all_tasks() if _is_watch(task)])
    hanging |= await _cancelled([task for task in asyncio.all_tasks() if _is_kopfs(task)])
    if hanging:
        names = ", ".join(sorted(task.get_name() for task in hanging))
        raise Stuck(f"the watch did not end within {STOP_SECONDS:.0f} s: {names}")
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("watch ended, it begins anew", task=task.get_name(), error=repr(error))


async def _cancelled(tasks: Collection["asyncio.Task[Any]"]) -> set["asyncio.Task[Any]"]:
    """Those that do not end although they are cancelled."""
    for task in tasks:
        task.cancel()
    return (await asyncio.wait(tasks, timeout=STOP_SECONDS))[1] if tasks else set()


def _is_watch(task: "asyncio.Task[Any]") -> bool:
    return task.get_name().startswith("watcher for ")


def _is_kopfs(task: "asyncio.Task[Any]") -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(_KOPF)


class _Forward(logging.Handler):
    """Gives what Kopf and its event loop log to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def _log_to_structlog() -> None:
    for name in ("kopf", "asyncio"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        logger.handlers = [_Forward()]
