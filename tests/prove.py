"""The long evidence: `make prove`, or `make prove ARGS="kill planted"` for some of it.

Those on real parts run only when they are named: some need `make parts`, some `make up`. Each proof
is a command. Its record in docs/evidence/ holds the command, the commit, how long it took and what
it printed; the tables in the README are made from these.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence"
DEADLINE = 3600.0
"""Seconds for one proof."""

PROOFS: dict[str, list[str]] = {
    "planted": ["-m", "tests.planted.run"],
    "state-machine": ["-m", "pytest", "-q", "--timeout=0", "tests/property"],
    "follow": ["-m", "tests.drills.follow_demo", "--rounds", "50"],
    "kill": ["-m", "tests.drills.kill_demo", "--kills", "200"],
    "fresh": ["-m", "tests.drills.fresh_clone"],
    "redirect": ["-m", "bench", "redirect"],
    "creates": ["-m", "bench", "creates"],
}
PARTS_PROOFS: dict[str, list[str]] = {
    "operator": ["-m", "bench.operator"],
    "operator-steps": ["-m", "tests.drills.operator_steps"],
    "operator-wpt": ["-m", "tests.drills.operator_wpt"],
    "two-leaders": ["-m", "tests.drills.two_leaders"],
    "watch-faults": ["-m", "tests.drills.watch_faults"],
}
PLATFORM_PROOFS: dict[str, list[str]] = {
    "objects-spread": ["-m", "tests.drills.objects_spread"],
    "operator-steps-cassandra": ["-m", "tests.drills.operator_steps", "--store", "cassandra"],
    "spread": ["-m", "tests.drills.spread"],
    "races": ["-m", "tests.drills.races"],
    "round-trips": ["-m", "tests.drills.round_trips"],
    "outages": ["-m", "tests.drills.outages"],
    "rollouts": ["-m", "tests.drills.rollouts"],
    "node-of-three": ["-m", "tests.drills.node_of_three"],
    "misses": ["-m", "bench.misses"],
}
ALL_PROOFS = PROOFS | PARTS_PROOFS | PLATFORM_PROOFS


def prove(name: str) -> bool:
    """Run one proof, show what it prints, and record it; whether it held."""
    print(f"== {name}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *ALL_PROOFS[name]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"HYPOTHESIS_PROFILE": "long", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    printed = []
    ending = threading.Timer(DEADLINE, process.kill)
    ending.start()
    for line in process.stdout:
        print(line, end="", flush=True)
        printed.append(line.rstrip("\n"))
    status = process.wait()
    ending.cancel()
    record = {
        "command": " ".join(["python", *ALL_PROOFS[name]]),
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "exit": status,
        "seconds": round(time.monotonic() - began, 1),
        "printed": printed,
    }
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    (EVIDENCE / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"== {name}: exit {status}, {record['seconds']} s", flush=True)
    return status == 0


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    """Run the proofs that are named, or all that need no platform; exit 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("proofs", nargs="*", metavar="PROOF", help=", ".join(ALL_PROOFS))
    names = parser.parse_args().proofs or list(PROOFS)
    if unknown := set(names) - set(ALL_PROOFS):
        parser.error(f"no proof {', '.join(sorted(unknown))}; there are {', '.join(ALL_PROOFS)}")
    failed = [name for name in names if not prove(name)]
    if failed:
        sys.exit(f"not proved: {', '.join(failed)}")


if __name__ == "__main__":
    main()
