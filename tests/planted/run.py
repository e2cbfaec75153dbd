"""Planted bugs: each has to slip past the example tests and be caught by the state machine.

    python -m tests.planted.run [name ...]

Every `*.patch` here is put into a copy of the tree. The example tests must pass on it, else the
bug shows nothing about schedules; the state machine must fail, else it would miss such a bug.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("apps", "operator", "tests", "pyproject.toml")
EXAMPLES = ("tests/unit", "tests/contract", "tests/http")
MACHINE = ("tests/property", "--timeout=0")
DEADLINE = 1800.0


def main(names: list[str]) -> int:
    patches = [
        patch
        for patch in sorted(ROOT.glob("tests/planted/*.patch"))
        if not names or patch.stem in names
    ]
    if not patches:
        sys.exit(f"no such planted bug: {', '.join(names)}")
    print(f"{'planted bug':<34} {'example tests':<16} {'state machine':<16}")
    if not try_out(None):
        sys.exit("without a planted bug everything has to pass: mend that first")
    sound = [try_out(patch) for patch in patches]
    print(f"{sum(sound)} of {len(sound)} slip past the examples and are caught by the machine")
    return 0 if all(sound) else 1


def try_out(patch: Path | None) -> bool:
    """Whether the tests say what they have to of a copy with the bug of `patch`, or with none."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        (copy / ".cache").symlink_to(ROOT / ".cache")  # the test data
        if patch and subprocess.run(["git", "apply", str(patch)], cwd=copy, check=False).returncode:
            sys.exit(f"{patch.name} no longer fits the code: plant that bug anew")
        print(f"{patch.stem if patch else 'none':<34} ", end="", flush=True)
        examples = run_tests(copy, EXAMPLES)
        print(f"{told('passed', 'FAILED', examples):<16} ", end="", flush=True)
        machine = run_tests(copy, MACHINE)
        print(f"{told('nothing found', 'caught it', machine):<16}", flush=True)
    return (examples[0], machine[0]) == (0, 1 if patch else 0)


def run_tests(copy: Path, what: tuple[str, ...]) -> tuple[int, float, str]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *what],
        cwd=copy,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(("apps", "operator")), "HYPOTHESIS_PROFILE": "planted"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    return done.returncode, time.monotonic() - began, done.stdout + done.stderr


def told(good: str, bad: str, result: tuple[int, float, str]) -> str:
    """For people; pytest's 1 is a failed test, all above are no result at all."""
    status, seconds, printed = result
    if status > 1:
        sys.exit(f"pytest ended with {status}:\n{printed}")
    return f"{bad if status else good} {seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
