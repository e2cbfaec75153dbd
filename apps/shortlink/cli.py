"""The `shortlink` command."""

import argparse
import asyncio
import contextlib
import errno
import fcntl
import json
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import structlog
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
from shortlink.demo.embedded import DATABASE, Embedded, Settings
from shortlink.demo.live import Screen, show
from shortlink.demo.tour import SHOWN, tour
from shortlink.links.codes import SLOT_KEY_BYTES, SlotMap
from shortlink.links.names import is_code
from shortlink.links.policy import Policy
from shortlink.redirect.server import run_redirect
from shortlink.store.port import StoreError
from shortlink.store.sql import open_sql_store
from shortlink.why import why

KEYS = "keys.json"
LOCK = "demo.lock"
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


class Problem(Exception):
    """Ends the command with one line that says what is wrong and how to mend it."""


def main() -> None:
    """Parse the command line and run one command; exit 1 with one line on a known problem."""
    parser = argparse.ArgumentParser(prog="shortlink", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="the whole platform in one process")
    demo.add_argument("--once", action="store_true", help="a checked tour with a fast clock")
    demo.add_argument("--folder", type=Path, default=Path("links"), help="ShortLink manifests")
    demo.add_argument("--host", default="127.0.0.1")
    demo.add_argument("--port", type=int, default=8080, help="redirects")
    demo.add_argument("--api-port", type=int, default=8081)
    demo.add_argument("--ops-port", type=int, default=8082, help="metrics of the redirect service")
    demo.set_defaults(run=_demo)

    explain = commands.add_parser("why", help="everything known of a code")
    explain.add_argument("code")
    explain.add_argument("--ops", metavar="HOST:PORT", help="a redirect process's ops listener")
    explain.set_defaults(run=_why)

    redirect = commands.add_parser("redirect", help="a redirect service alone")
    redirect.add_argument("--host", default="127.0.0.1")
    redirect.add_argument("--port", type=int, default=8080)
    redirect.add_argument("--ops-port", type=int, default=8082)
    redirect.add_argument(
        "--reuse-port", action="store_true", help="several processes on one port (SO_REUSEPORT)"
    )
    redirect.set_defaults(run=_redirect)

    key = commands.add_parser("key", help="make an API key; it is printed once")
    key.add_argument("owner")
    key.add_argument("--admin", action="store_true")
    key.set_defaults(run=_key)

    for command in (demo, explain, redirect, key):
        command.add_argument(
            "--data", type=Path, default=Path(".shortlink"), help="where links are kept"
        )
    args = parser.parse_args()
    try:
        args.run(args)
    except (Problem, StoreError, KeysUnreadable) as problem:
        sys.exit(f"shortlink: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)


def _demo(args: argparse.Namespace) -> None:
    console = Console()
    if args.once:
        _log_to(Path(os.devnull))
        if not uvloop.run(tour(console, SYSTEM_CLOCK.wall)):
            sys.exit(1)
        return
    settings = Settings(args.folder, args.data, args.host, args.port, args.api_port, args.ops_port)
    _prepare(settings)
    with _sole(settings):
        _log_to(settings.data / LOG)
        if not (settings.data / KEYS).exists():
            key = _add_key(settings.data, OWNER, admin=True)
            console.out(f"API key of {OWNER!r}, shown this once: {key}", highlight=False)
        console.print(SHOWN)
        uvloop.run(_serve(settings, read_keys(settings.data / KEYS), console))


async def _serve(settings: Settings, keys: Keys, console: Console) -> None:
    try:
        platform = await Embedded.open(settings, Policy(), SYSTEM_CLOCK, keys)
    except OSError as error:
        raise _unopened(error, settings) from error
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    screen = Screen(platform, settings, {key.owner for key in keys.listed})
    async with platform:
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


def _prepare(settings: Settings) -> None:
    """Make the data folder; with a new one also the folder of manifests, with a sample.

    A folder of manifests that vanished later is not made anew: the mass-deletion brake is for
    a person to release.
    """
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
        if not (settings.data / DATABASE).exists() and not settings.folder.exists():
            settings.folder.mkdir(parents=True)
            (settings.folder / "hello.yaml").write_text(_SAMPLE, encoding="utf-8")
    except OSError as error:
        raise Problem(f"{error.filename} can't be made: {error.strerror}; choose --data") from error


@contextlib.contextmanager
def _sole(settings: Settings) -> Iterator[None]:
    """Hold the data folder's lock, which also says where `why` finds this process."""
    with (settings.data / LOCK).open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise Problem(
                f"a demo already runs on {settings.data} ({lock.read().strip()}); stop it, or"
                " choose another --data and other ports"
            ) from None
        lock.truncate(0)
        json.dump({"pid": os.getpid(), "ops": f"{settings.host}:{settings.ops_port}"}, lock)
        lock.flush()
        yield
        lock.truncate(0)


def _unopened(error: OSError, settings: Settings) -> Problem:
    """Who has the port that we want."""
    if error.errno != errno.EADDRINUSE:
        return Problem(f"{settings.host}: can't listen: {error.strerror or error}; choose --host")
    holders = {}
    with contextlib.suppress(psutil.AccessDenied):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr:
                holders[connection.laddr.port] = connection.pid
    options = {
        settings.port: "--port",
        settings.api_port: "--api-port",
        settings.ops_port: "--ops-port",
    }
    told = []
    for port, option in options.items():
        if port in holders:
            pid = holders[port]
            name = "another user's process"
            with contextlib.suppress(psutil.Error):
                name = f"{psutil.Process(pid).name()} (process {pid})" if pid else name
            told.append(f"port {port} is in use by {name}; stop it or choose {option}")
    return Problem("; ".join(told) or f"a port is in use: {error}")


def _why(args: argparse.Namespace) -> None:
    if not is_code(args.code):
        raise Problem(f"{args.code!r} is no code: 3 to 20 characters of 0-9, A-Z, a-z")
    if not (args.data / DATABASE).exists():
        raise Problem(f"there is no {args.data / DATABASE}; choose --data")
    for topic, fact in asyncio.run(_facts(args)):
        print(f"{topic:11}{fact}")


async def _facts(args: argparse.Namespace) -> list[tuple[str, str]]:
    store = open_sql_store(args.data / DATABASE)
    try:
        slots = SlotMap(await store.install(secrets.token_bytes(SLOT_KEY_BYTES)))
        now = SYSTEM_CLOCK.wall()
        return await why(store, slots, args.code, Policy(), now, _ops(args))
    finally:
        await store.close()


def _ops(args: argparse.Namespace) -> tuple[str, int] | None:
    text = args.ops
    if text is None:
        try:
            text = json.loads((args.data / LOCK).read_text(encoding="utf-8"))["ops"]
        except (OSError, ValueError):
            return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal():
        raise Problem(f"--ops {text!r} is not HOST:PORT")
    return host, int(port)


def _redirect(args: argparse.Namespace) -> None:
    _log_to(None)
    if not (args.data / DATABASE).exists():
        raise Problem(f"there is no {args.data / DATABASE}; choose --data")
    run_redirect(
        args.data / DATABASE, args.host, args.port, args.ops_port, reuse_port=args.reuse_port
    )


def _key(args: argparse.Namespace) -> None:
    args.data.mkdir(parents=True, exist_ok=True)
    print(_add_key(args.data, args.owner, admin=args.admin))


def _add_key(data: Path, owner: str, *, admin: bool) -> str:
    path = data / KEYS
    key = new_key(secrets.token_bytes)
    try:
        known = read_keys(path).listed if path.exists() else ()
        write_keys(path, [*known, Key(owner, admin, digest(key))])
    except (KeysUnreadable, ValueError, OSError) as error:
        raise Problem(str(error)) from error
    return key


def _log_to(path: Path | None) -> None:
    """JSON lines to `path`, or to standard error."""
    file = path.open("a", encoding="utf-8") if path else sys.stderr
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file),
        cache_logger_on_first_use=True,
    )
