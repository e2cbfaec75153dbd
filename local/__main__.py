"""`python -m local up|down|status|logs`: the platform on this machine, from real parts."""

import argparse
import os
import signal
import sys

from local.parts import find
from local.problem import Problem
from local.regions import owner
from local.regions.layout import KUBECONFIG, REGIONS, STATE, region_named


def main() -> None:
    """Run one command; a Problem is its lines on standard error and exit status 1."""
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("up", help="bring all up, or heal it").set_defaults(run=_up)
    commands.add_parser("down", help="remove all but the parts").set_defaults(run=_down)
    commands.add_parser("status", help="what runs, and is it well").set_defaults(run=_status)
    logs = commands.add_parser("logs", help="the ends of a region's logs")
    logs.add_argument("region", choices=[region.name for region in REGIONS])
    logs.add_argument("component", nargs="?", help="one of `status`, or a Deployment")
    logs.add_argument("--lines", type=int, default=20)
    logs.set_defaults(run=_logs)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        args.run(args)
    except Problem as problem:
        sys.exit(f"local: {problem}")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("local: stopped; the next `up` or `down` goes on from here", file=sys.stderr)
        sys.stderr.flush()
        os._exit(130)  # not waiting for threads that wait for a component


def _up(args: argparse.Namespace) -> None:
    from local.regions import preflight
    from local.regions.status import rows, table
    from local.regions.up import stopwatch, up

    preflight.check()
    say = stopwatch()
    with owner.locked():
        parts = up(say)
    found = rows(parts)
    print(table(found))
    print(f"export KUBECONFIG={KUBECONFIG}   # contexts local-REGION")
    print(f"The API's key is in {STATE / 'api-key'}.")
    sys.exit(any(row.reason is not None for row in found))


def _down(args: argparse.Namespace) -> None:
    from local.regions.down import down
    from local.regions.up import stopwatch

    with owner.locked():
        down(stopwatch())


def _status(args: argparse.Namespace) -> None:
    from local.regions.status import rows, table

    owner.check()
    found = rows(find())
    print(table(found))
    sys.exit(any(row.reason is not None for row in found))


def _logs(args: argparse.Namespace) -> None:
    from local.regions.logs import logs

    owner.check()
    print(logs(region_named(args.region), args.component, args.lines, find()))


if __name__ == "__main__":
    main()
