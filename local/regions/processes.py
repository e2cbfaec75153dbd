"""Components as processes: started in their region, asked whether they are well, ended whole."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from local.problem import Problem
from local.regions import cgroups
from local.regions.layout import Region
from local.regions.network import inside

HUNG_AFTER = 30.0
"""Seconds in which a process that already runs must say that it is well; then it is replaced."""

WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""Put before a server's command that needs nothing of root's but its files."""

Health = Callable[[], str | None]
"""None when well, else the reason."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Component:
    """One process (and its children) of a region."""

    region: Region
    name: str
    command: Sequence[str | Path]
    health: Health
    address: str
    deadline: float = 60.0
    """Seconds from its start until it must be well."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    """Its settings, written when it is started."""

    @property
    def log(self) -> Path:
        """What it wrote since it was started; what it wrote before is beside it."""
        return self.region.logs / f"{self.name}.log"

    @property
    def group(self) -> Path:
        """Its control group."""
        return cgroups.group(self.region.name, self.name)

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return cgroups.pids(self.group)

    def ensure(self, say: Say) -> None:
        """Leave it when it is well, else (re)start it and wait until it is.

        Raises Problem with the end of its log when it ends early or the deadline passes.
        """
        if self.pids:
            if self._well_within(HUNG_AFTER) is None:
                return
            self.kill()
        self.start()
        reason = self._well_within(self.deadline)
        if reason is not None:
            raise Problem(
                f"{self.region.name} {self.name} is not well: {reason}; the end of {self.log}:\n"
                + tail(self.log, 15)
            )
        say(f"{self.region.name} {self.name}: started")

    def start(self) -> None:
        """Start it in its region's network and its own group, with a fresh log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.group.mkdir(parents=True, exist_ok=True)
        for path, text in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        # By its fork it is nobody's child: it outlives us, and leaves us nothing to wait for.
        enter = f'echo $$ > "{self.group}/cgroup.procs" && exec setsid --fork "$@"'
        command = ("sh", "-c", enter, self.name, *inside(self.region), *self.command)
        with self.log.open("wb") as log:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
                check=True,
                timeout=10.0,
            )

    def kill(self) -> None:
        """SIGKILL for all its processes."""
        cgroups.kill(self.group)

    def state(self) -> str | None:
        """None when it runs and is well, else the reason."""
        return self.health() if self.pids else "not running"

    def _well_within(self, seconds: float) -> str | None:
        end = time.monotonic() + seconds
        while (reason := self.health()) is not None:
            if not self.pids:
                return "it ended"
            if time.monotonic() > end:
                return f"after {seconds:g} s: {reason}"
            time.sleep(0.1)
        return None


def tail(path: Path, lines: int) -> str:
    """The last lines of a log."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 400 * lines))
            return b"\n".join(log.read().splitlines()[-lines:]).decode(errors="replace")
    except FileNotFoundError:
        return "(there is none)"
