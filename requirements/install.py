"""Put a locked set of packages into .venv: ``install.py run`` (the demo's) or ``install.py dev``.

A set that is there already costs one look at a stamp. A stamp says what the set was made from, is
written last, and goes before anything is changed: a set-up that was cut short is simply done again.
Standard library only, for it runs before anything is installed.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SETS = {"run": ("run",), "dev": ("run", "dev")}  # a set -> the sets that are there once it is
DEADLINE = 1200.0  # seconds
UNITS = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}


class Failed(Exception):
    """The set-up cannot go on; the message is for a person."""


class Progress:
    """One line that is rewritten on a terminal, a line every few seconds elsewhere."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.began = self.told = time.monotonic()
        self.fetched = self.cached = 0.0  # megabytes, as pip rounds them
        self.installed = 0
        self.doing = "starting"

    def heard(self, line: str) -> None:
        """Take in one line of pip's output."""
        if size := re.match(r"\s*(Downloading|Using cached) (\S+) \(([\d.]+) (\w+)\)", line):
            how, what, number, unit = size.groups()
            megabytes = float(number) * UNITS.get(unit, 0.0)
            if how == "Downloading":
                self.fetched += megabytes
            else:
                self.cached += megabytes
            self.doing = what.partition("-")[0]
        elif line.startswith("Installing collected packages"):
            self.doing = "installing"
        elif line.startswith("Successfully installed"):
            self.installed += len(line.split()) - 2

    def tell(self) -> None:
        """Show how far it is, if it is time to."""
        terminal = sys.stdout.isatty()
        now = time.monotonic()
        if now - self.told < (0.2 if terminal else 5):
            return
        self.told = now
        line = f"setting up .venv: {now - self.began:.0f} s, {self.fetched:.1f} MB, {self.doing}"
        print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", flush=True)

    def done(self) -> None:
        """Say what it took."""
        seconds = time.monotonic() - self.began
        cached = f", {self.cached:.1f} MB from pip's cache" if self.cached else ""
        print(
            f"{self.start_of_line()}.venv is ready ({self.name} set): {self.installed} packages, "
            f"{self.fetched:.1f} MB downloaded{cached}, {seconds:.1f} s",
            flush=True,
        )

    @staticmethod
    def start_of_line() -> str:
        """Return what clears a half-written progress line."""
        return "\r\033[K" if sys.stdout.isatty() else ""


def main(name: str) -> None:
    """Install the set if it is not there yet."""
    stamps = [stamp(each) for each in SETS[name]]
    same_venv = made_here()
    if same_venv and all(each.exists() for each in stamps):
        return
    progress = Progress(name)
    print(f"setting up .venv ({name} set)", flush=True)
    for old in [*VENV.glob(".run-*"), *VENV.glob(".dev-*")]:
        old.unlink()
    if not same_venv:
        make_venv()
    lock = f"requirements/{name}.txt"
    # Only what is imported gets compiled, when it is: a third less to wait for here.
    lazily = [] if sys.dont_write_bytecode else ["--no-compile"]
    pip(progress, "install", *lazily, "--require-hashes", "-r", lock)
    pip(progress, "install", "--no-deps", "--no-build-isolation", "-e", ".")
    for each in stamps:
        each.touch()
    progress.done()


def stamp(name: str) -> Path:
    """Name the file that says that the set, as it is locked now, is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tables = (project["build-system"], project["project"], project["tool"]["hatch"])
    made_from = json.dumps(tables).encode() + (ROOT / "requirements" / f"{name}.txt").read_bytes()
    return VENV / f".{name}-{hashlib.sha256(made_from).hexdigest()[:12]}"


def birthmark() -> str:
    """Tell this Python and this folder from others: a venv works for one pair of them only."""
    return f"{sys.version}\n{sys.base_prefix}\n{ROOT}\n"


def made_here() -> bool:
    """Whether .venv is whole, and of this Python and this folder."""
    mark = VENV / ".base"
    return PYTHON.exists() and mark.exists() and mark.read_text() == birthmark()


def make_venv() -> None:
    """Make an empty .venv, in place of one that is broken or from elsewhere."""
    try:
        import ensurepip  # noqa: F401 - Debian packs it apart from Python
    except ImportError:
        raise Failed("this Python cannot make venvs: install python3-venv") from None
    if VENV.exists():
        print("the old .venv is incomplete, or of another Python or folder: made anew", flush=True)
        shutil.rmtree(VENV)
    venv.create(VENV, with_pip=True)
    (VENV / ".base").write_text(birthmark())


def pip(progress: Progress, *arguments: str) -> None:
    """Run pip in .venv, telling how far it is; its own words are shown only if it fails."""
    command = [str(PYTHON), "-m", "pip", *arguments, "--progress-bar=off", "--no-input"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    heard: SimpleQueue[str | None] = SimpleQueue()  # None: pip has closed its output
    Thread(target=listen, args=(process.stdout, heard), daemon=True).start()
    said: list[str] = []
    while True:
        try:
            line = heard.get(timeout=0.2)
        except Empty:
            progress.tell()
            if time.monotonic() - progress.began > DEADLINE:
                process.kill()
                raise Failed(f"it took longer than {DEADLINE:.0f} s: look at the network") from None
            continue
        if line is None:
            break
        said.append(line)
        progress.heard(line)
        progress.tell()
    if process.wait() != 0:
        print(f"{progress.start_of_line()}{''.join(said[-20:])}", end="")
        raise Failed(f"pip {arguments[0]} failed: its last words are above")


def listen(output: Iterable[str], heard: SimpleQueue[str | None]) -> None:
    """Pass pip's lines on as they come."""
    for line in output:
        heard.put(line)
    heard.put(None)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Failed as failed:
        sys.exit(f"setting up .venv: {failed}")
    except KeyboardInterrupt:
        sys.exit("\nsetting up .venv was stopped; the next make goes on with it")
