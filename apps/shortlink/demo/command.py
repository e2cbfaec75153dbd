"""`shortlink demo`: prepares its folders, holds its lock, listens, shows, and ends in order."""

import argparse
import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import uvloop
from rich.console import Console

from shortlink.api.keys import (
    Key,
    Keys,
    KeysUnreadable,
    digest,
    new_key,
    read_keys,
    write_keys,
)
from shortlink.clock import SYSTEM_CLOCK
from shortlink.demo.embedded import AUDIT_LOG, HOST, Embedded, Settings
from shortlink.demo.live import Screen, show
from shortlink.demo.tour import NOT_SHOWN, tour
from shortlink.links.policy import Policy
from shortlink.logs import log_to
from shortlink.problem import DATABASE, LOCK, Problem
from shortlink.redirect.server import raise_descriptor_limit

KEYS = "keys.json"
LOG = "demo.log"
OWNER = "demo"

_SAMPLE = """\
# A ShortLink. Change it, add more files, or delete this one: the demo follows within a second.
apiVersion: shortlink.platform/v1alpha1
kind: ShortLink
metadata:
  name: hello
spec:
  target: https://example.com/hello
  code: hello
"""

_WIDE = 160
"""Columns where the output is no terminal."""


def run(args: argparse.Namespace) -> None:
    """Run the tour (`--once`; exit 1 when an answer was wrong), or serve until a signal.

    Raises Problem, StoreError and Refused.
    """
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    raise_descriptor_limit()
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    if args.once:
        log_to(None, logging.WARNING)
        if not uvloop.run(tour(console, SYSTEM_CLOCK.wall)):
            sys.exit(1)
        return
    settings = Settings(args.folder, args.data, args.port, args.api_port, args.ops_port)
    if len(set(settings.ports.values())) < len(settings.ports):
        raise Problem(f"{', '.join(settings.ports)} have to differ")
    try:
        _prepare(settings)
    except OSError as error:
        raise Problem(f"can't write {error.filename}: {error.strerror}; choose --data") from error
    with _sole(settings):
        try:
            log_to(settings.data / LOG)
        except OSError as error:
            raise Problem(f"can't write {error.filename}: {error.strerror}") from error
        uvloop.run(_serve(settings, console))


async def _serve(settings: Settings, console: Console) -> None:
    keys, first = _keys(settings.data)
    try:
        platform = await Embedded.open(settings, Policy(), SYSTEM_CLOCK, keys)
    except OSError as error:
        raise _unopened(error, settings) from error
    async with platform:
        if first is not None:
            _keep(settings.data, keys)
            console.out(f"API key of {OWNER!r}, shown this once: {first}", highlight=False)
        console.out(_welcome(settings), highlight=False)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        screen = Screen(platform, settings, {key.owner for key in keys.listed})
        tasks = [
            asyncio.create_task(work)
            for work in (platform.run(), show(screen, console), stop.wait())
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


def _welcome(settings: Settings) -> str:
    return (
        f"Redirects {settings.base_url}/CODE, API http://{HOST}:{settings.api_port}/api/v1/links,"
        f" metrics http://{HOST}:{settings.ops_port}/metrics\n"
        f"Manifests in {settings.folder}/; data, {LOG} and {AUDIT_LOG} in {settings.data}/."
        f" Ctrl-C ends it.\n{NOT_SHOWN}"
    )


def _prepare(settings: Settings) -> None:
    """Make the data folder; with a new one also the folder of manifests, with a sample.

    A folder of manifests that vanished later is not made anew: the mass-deletion brake is for
    a person to release.
    """
    settings.data.mkdir(parents=True, exist_ok=True)
    if not (settings.data / DATABASE).exists() and not settings.folder.exists():
        settings.folder.mkdir(parents=True)
        (settings.folder / "hello.yaml").write_text(_SAMPLE, encoding="utf-8")


@contextlib.contextmanager
def _sole(settings: Settings) -> Iterator[None]:
    """Hold the data folder's lock, which also says where `why` finds this process."""
    with (settings.data / LOCK).open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = ""
            with contextlib.suppress(ValueError, LookupError, TypeError):  # it may be at its end
                holder = f" (process {json.load(lock)['pid']})"
            raise Problem(
                f"a demo{holder} already runs on {settings.data}/; stop it, or choose another"
                " --data, --folder and ports"
            ) from None
        lock.truncate(0)
        json.dump({"pid": os.getpid(), "ops": f"{HOST}:{settings.ops_port}"}, lock)
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def _unopened(error: OSError, settings: Settings) -> Problem:
    """Who has the port that we want."""
    if error.errno != errno.EADDRINUSE:
        return Problem(f"can't listen: {error}; choose {', '.join(settings.ports)}")
    holders = {}
    with contextlib.suppress(psutil.AccessDenied):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr:
                holders[connection.laddr.port] = connection.pid
    told = []
    for option, port in settings.ports.items():
        if port in holders:
            pid = holders[port]
            name = "another user's process"
            with contextlib.suppress(psutil.Error):
                name = f"{psutil.Process(pid).name()} (process {pid})" if pid else name
            told.append(f"port {port} is in use by {name}; stop it or choose {option}")
    return Problem("; ".join(told) or f"a port is in use: {error}")


def add_key(data: Path, owner: str, *, admin: bool) -> str:
    """A new API key of `owner`, kept by its digest in the data folder. Raises Problem."""
    key = new_key(secrets.token_bytes)
    try:
        data.mkdir(parents=True, exist_ok=True)
        with (data / f"{KEYS}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = _read(data).listed if (data / KEYS).exists() else ()
            _keep(data, Keys([*known, Key(owner, admin, digest(key))]))
    except OSError as error:
        raise Problem(f"can't write {error.filename}: {error.strerror}; choose --data") from error
    return key


def _keys(data: Path) -> tuple[Keys, str | None]:
    """The keys, and the first one in clear where there were none."""
    if (data / KEYS).exists():
        return _read(data), None
    key = new_key(secrets.token_bytes)
    return Keys([Key(OWNER, True, digest(key))]), key


def _read(data: Path) -> Keys:
    try:
        return read_keys(data / KEYS)
    except KeysUnreadable as error:
        raise Problem(str(error)) from error


def _keep(data: Path, keys: Keys) -> None:
    try:
        write_keys(data / KEYS, keys.listed)
    except (ValueError, OSError) as error:
        raise Problem(str(error)) from error
