"""The operator with a fuse: it kills itself right before or right after one of its steps.

All of it is the real one. Only the store's and the cluster's calls are wrapped where they are
opened. It runs in a fork of a process that has everything imported, so that a life costs little.
"""

import mmap
import multiprocessing
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

import shortlink_operator.process  # noqa: F401 (a life has no time to import it)
from shortlink import cli
from shortlink.links.codes import Entropy
from shortlink.store.cassandra.driver import open_session
from shortlink.store.cassandra.session import Session, Statement
from shortlink.store.opening import open_store
from shortlink.store.port import LinkStore
from shortlink_operator.cluster import Cluster
from shortlink_operator.kinds import FINALIZER

SECONDS = 60.0
"""In which a life reaches the step that ends it."""


class Step(StrEnum):
    """What the operator does for an object, each a call of the store or of the API server."""

    FINALIZER = "finalizer put"
    CLAIM = "claim"
    BIRTH = "birth"
    RECLAIM = "claim changed"
    CHANGE = "link changed"
    STATUS = "status"
    RELEASE = "finalizer taken away"
    HINT = "hint (Cassandra)"
    ROW = "row (Cassandra)"


STEPS = tuple(Step)
_CALLS = {
    "claim": Step.CLAIM,
    "create": Step.BIRTH,
    "reclaim": Step.RECLAIM,
    "change": Step.CHANGE,
}

Call = Callable[..., Awaitable[Any]]


class Fuse:
    """Shared by whoever lights it and the process that it ends."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 3)  # step, whether after it, comings left (0: not lit)

    def light(self, step: Step, *, after: bool, coming: int) -> None:
        """Kill at the `coming`-th time (from 1) of this step."""
        self._memory[:] = bytes((STEPS.index(step), after, coming))

    def put_out(self) -> None:
        self._memory[:] = bytes(3)

    async def around(self, step: Step, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make the call of this step, or die."""
        index, after, left = self._memory[:]
        if not left or STEPS[index] is not step:
            return await call()
        self._memory[2] = left - 1
        if left == 1 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = await call()
        if left == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class Life:
    """One run of `shortlink operator`, in a process of its own that `fuse` may end."""

    def __init__(
        self, fuse: Fuse, environ: Mapping[str, str], options: Sequence[str], output: Path
    ) -> None:
        self._process = multiprocessing.get_context("fork").Process(
            target=_live, args=(fuse, environ, options, output), daemon=True
        )
        self._process.start()

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.join(SECONDS)

    def await_end(self) -> int | None:
        """Wait for the end; its exit status, negative for a signal, None when it goes on."""
        self._process.join(SECONDS)
        return self._process.exitcode


def _live(fuse: Fuse, environ: Mapping[str, str], options: Sequence[str], output: Path) -> None:
    with output.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environ)
    _wrap(fuse)
    sys.argv = ["shortlink", "operator", *options]
    cli.main()


def _wrap(fuse: Fuse) -> None:
    """Lead the calls of everything that is opened from now on past the fuse."""
    patch = Cluster.patch

    async def store(*args: Any, **rest: Any) -> LinkStore:
        opened = await open_store(*args, **rest)
        for name, step in _CALLS.items():
            setattr(opened, name, _past(fuse, step, getattr(opened, name)))
        return opened

    async def session(datacenter: str, hosts: Sequence[str], entropy: Entropy) -> Session:
        opened = await open_session(datacenter, hosts, entropy)
        setattr(opened, "execute", _statement(fuse, opened.execute))  # noqa: B010 (typed)
        return opened

    async def patched(self: Cluster, path: str, body: Mapping[str, Any], **rest: Any) -> Any:
        async def call() -> Any:
            return await patch(self, path, body, **rest)

        return await fuse.around(_patch_step(body), call)

    for target, instead in (
        ("shortlink.serving.parts.open_store", store),
        ("shortlink.store.cassandra.opening.open_session", session),
        ("shortlink_operator.cluster.Cluster.patch", patched),
    ):
        mock.patch(target, instead).start()


def _past(fuse: Fuse, step: Step, call: Call) -> Call:
    async def wrapped(*args: Any, **rest: Any) -> Any:
        return await fuse.around(step, lambda: call(*args, **rest))

    return wrapped


def _statement(fuse: Fuse, call: Call) -> Call:
    async def wrapped(statement: Statement, *args: Any) -> Any:  # `applied` comes by here too
        step = _statement_step(statement.cql)
        if step is None:
            return await call(statement, *args)
        return await fuse.around(step, lambda: call(statement, *args))

    return wrapped


def _statement_step(cql: str) -> Step | None:
    verb, _, rest = cql.partition(" INTO ")
    table = rest.partition(" ")[0].rpartition(".")[2]
    if verb != "INSERT":
        return None
    return {"hints": Step.HINT, "births": Step.ROW, "links": Step.ROW}.get(table)


def _patch_step(body: Mapping[str, Any]) -> Step:
    if "status" in body:
        return Step.STATUS
    return Step.FINALIZER if FINALIZER in body["metadata"]["finalizers"] else Step.RELEASE
