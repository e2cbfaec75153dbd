"""The `shortlink` command."""

import argparse
import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.names import is_code
from shortlink.links.policy import Policy
from shortlink.links.refusal import Refused
from shortlink.logs import log_to
from shortlink.problem import DATABASE, LOCK, Problem
from shortlink.settings import (
    STORE,
    Settings,
    WrongSetting,
    read_api_settings,
    read_operator_settings,
    read_settings,
)
from shortlink.store.port import StoreError, StoreUnsuitable
from shortlink.store.sql import open_sql_store
from shortlink.why import why

_DATA: Final = Path(".shortlink")


def main() -> None:
    """Parse the command line and run one command.

    A known problem is one line, and exit status 1, or 2 where the command line or a setting
    is wrong.
    """
    parser = argparse.ArgumentParser(prog="shortlink", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="the whole platform in one process")
    demo.add_argument("--once", action="store_true", help="a checked tour with a fast clock")
    demo.add_argument("--folder", type=Path, default=Path("links"), help="ShortLink manifests")
    demo.add_argument("--port", type=_port, default=8080, help="redirects")
    demo.add_argument("--api-port", type=_port, default=8081)
    demo.add_argument("--ops-port", type=_port, default=8082, help="the redirects' metrics")
    demo.set_defaults(run=_demo)

    explain = commands.add_parser("why", help="everything known of a code")
    explain.add_argument("code")
    explain.add_argument("--ops", metavar="HOST:PORT", help="a redirect process's ops listener")
    explain.add_argument(
        "--data", type=Path, help=f"where a demo keeps links, instead of the store at {STORE}"
    )
    explain.set_defaults(run=_why)

    redirect = _service(commands, "redirect", 8080, _redirect)
    redirect.add_argument(
        "--ops-port", type=_port, default=8082, help="metrics; with --data on this machine alone"
    )
    redirect.add_argument(
        "--reuse-port", action="store_true", help="several processes on one port (SO_REUSEPORT)"
    )
    redirect.add_argument(
        "--data", type=Path, help=f"where a demo keeps links, instead of the store at {STORE}"
    )
    _service(commands, "api", 8081, _api)
    operator = _service(commands, "operator", 8082, _operator)
    operator.add_argument(
        "--kubeconfig", type=Path, help="the cluster of its current context, instead of our pod's"
    )

    prepare = commands.add_parser("prepare", help=f"make the store at {STORE} ready, or newer")
    prepare.add_argument(
        "--admit", metavar="DC", help="this data centre was repaired: let it serve again"
    )
    prepare.set_defaults(run=_prepare)

    key = commands.add_parser("key", help="make an API key; it is printed once")
    key.add_argument("owner")
    key.add_argument("--admin", action="store_true")
    key.set_defaults(run=_key)

    for command in (demo, key):
        command.add_argument("--data", type=Path, default=_DATA, help="where links are kept")
    args = parser.parse_args()
    try:
        args.run(args)
    except Refused as refused:
        sys.exit(f"shortlink: {refused.refusal.message}")
    except WrongSetting as wrong:
        print(f"shortlink: {wrong}", file=sys.stderr)
        sys.exit(2)
    except (Problem, StoreError) as problem:
        sys.exit(f"shortlink: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)


def _service(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    port: int,
    run: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=f"the {name} service, set by SHORTLINK_* variables")
    command.add_argument("--host", default="127.0.0.1")
    command.add_argument("--port", type=_port, default=port)
    command.set_defaults(run=run)
    return command


def _port(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a port: 1 to 65535")
    return int(text)


# What only one command needs is imported by it, for `why` is asked in a hurry.


def _demo(args: argparse.Namespace) -> None:
    from shortlink.demo.command import run

    run(args)


def _key(args: argparse.Namespace) -> None:
    from shortlink.demo.command import add_key

    print(add_key(args.data, args.owner, admin=args.admin))
    print("A running demo knows it once it is started again.", file=sys.stderr)


def _redirect(args: argparse.Namespace) -> None:
    from shortlink.redirect.server import run_redirect, serve_redirects

    data = args.data
    if data is None and not os.environ.get(STORE) and (_DATA / DATABASE).exists():
        data = _DATA
    if data is not None:
        database = _database(data)
        log_to(None, service="redirect")
        run_redirect(database, args.host, args.port, args.ops_port, reuse_port=args.reuse_port)
        return

    def serve(settings: Settings) -> None:
        serve_redirects(
            settings, args.host, args.port, args.host, args.ops_port, reuse_port=args.reuse_port
        )

    _run("redirect", serve)


def _api(args: argparse.Namespace) -> None:
    from shortlink.api.process import run_api

    own = read_api_settings(os.environ)
    _run("api", lambda settings: run_api(settings, own, args.host, args.port))


def _operator(args: argparse.Namespace) -> None:
    from shortlink_operator.process import run_operator

    own = read_operator_settings(os.environ, socket.gethostname())
    _run(
        "operator",
        lambda settings: run_operator(settings, own, args.kubeconfig, args.host, args.port),
    )


def _prepare(args: argparse.Namespace) -> None:
    from shortlink.store.opening import prepare

    def run(settings: Settings) -> None:
        print(asyncio.run(prepare(settings.store, settings.region, SYSTEM_CLOCK, args.admit)))

    _run("prepare", run)


def _run(service: str, run: Callable[[Settings], None]) -> None:
    settings = read_settings(os.environ)
    log_to(None, service=service, region=settings.region)
    try:
        run(settings)
    except StoreUnsuitable as error:
        raise WrongSetting(STORE, f"can't be used: {error}") from error


def _why(args: argparse.Namespace) -> None:
    if not is_code(args.code):
        raise Problem(f"{args.code!r} is no code: 3 to 20 characters of 0-9, A-Z, a-z")
    for topic, fact in asyncio.run(_facts(args)):
        print(f"{topic:11}{fact}")


async def _facts(args: argparse.Namespace) -> list[tuple[str, str]]:
    if args.data is None and os.environ.get(STORE):
        return await _facts_of_service(args)
    data = args.data or _DATA
    database = _database(data)
    store = open_sql_store(database, as_it_is=True)
    try:
        ops = _ops(args.ops, data)
        facts = await why(store, args.code, Policy(), SYSTEM_CLOCK.wall(), ops)
        return [("store", f"{database}, a demo's"), *facts]
    finally:
        await store.close()


async def _facts_of_service(args: argparse.Namespace) -> list[tuple[str, str]]:
    from shortlink.serving.policy import kept_policy
    from shortlink.store.opening import open_store

    settings = read_settings(os.environ)
    store = await open_store(settings.store, settings.region, SYSTEM_CLOCK)
    try:
        policy = await kept_policy(store, settings.region)
        ops = _ops(args.ops, None)
        now = SYSTEM_CLOCK.wall()
        facts = await why(store, args.code, policy, now, ops, settings.region)
        return [("store", f"that of {STORE}, asked from {settings.region or 'here'}"), *facts]
    finally:
        await store.close()


def _database(data: Path) -> Path:
    if not (data / DATABASE).exists():
        raise Problem(f"there is no {data / DATABASE}: start a demo, or choose --data")
    return data / DATABASE


def _ops(text: str | None, data: Path | None) -> tuple[str, int] | None:
    if text is None and data is not None:
        try:
            text = json.loads((data / LOCK).read_text(encoding="utf-8"))["ops"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port):
        raise Problem(f"--ops {text[:80]!r} is not HOST:PORT")
    return host, int(port)
