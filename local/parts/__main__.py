"""`python -m local.parts`: get all that the local platform runs; `--list`: tell what is here."""

import argparse
import signal
import sys
import time

from local.parts.golang import programs
from local.parts.java import jars, java_command, whole
from local.parts.parts import Parts, ensure, look
from local.parts.table import CASSANDRA, DEBIAN, GO_PARTS
from local.problem import Problem


def tell(line: str) -> None:
    """Print a line of progress at once."""
    print(f"parts: {line}", flush=True)


def list_all() -> None:
    """Print each part, its version, and where it is."""
    seen = look()
    rows = [
        (part.name, part.version, str(next(iter(found.values()))) if found else None)
        for part in GO_PARTS
        for found in [programs(part, seen.cache)]
    ]
    folder = jars(seen.cache)
    rows.append(("cassandra", CASSANDRA, str(folder) if whole(folder) else None))
    rows.append(("java", "17", str(java_command() or "") or None))
    for package, shown_by in DEBIAN.items():
        if not package.startswith("openjdk"):
            where = None if package in seen.packages else str(seen.programs.get(shown_by, "here"))
            rows.append((package, "Debian's", where))
    for name, version, where in rows:
        print(f"{name:28} {version:10} {where or 'missing: `make parts` gets it'}")


def megabytes(parts: Parts) -> float:
    """Return what the parts in the cache take on disk, in MB."""
    built = {path.parent for path in parts.programs.values() if parts.cache in path.parents}
    files = [file for folder in (*built, parts.cassandra) for file in folder.iterdir()]
    return sum(file.stat().st_size for file in files) / 1e6


def main() -> None:
    """Do what the command line says; a Problem is one line on standard error and exit status 1."""
    parser = argparse.ArgumentParser(prog="python -m local.parts", description=__doc__)
    parser.add_argument("--list", action="store_true", help="tell what is here, get nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what we started, like Ctrl-C
    began = time.monotonic()
    try:
        if options.list:
            list_all()
            return
        parts = ensure(tell)
    except (Problem, OSError) as problem:
        sys.exit(f"parts: {problem}")
    except KeyboardInterrupt:
        sys.exit("\nparts: stopped; the next `make parts` goes on with it")
    seconds = time.monotonic() - began
    tell(f"all there in {parts.cache}, {megabytes(parts):.0f} MB, {seconds:.0f} s")


if __name__ == "__main__":
    main()
