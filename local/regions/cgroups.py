"""Every process of ours is in a control group of its own, so that it is found whatever happens.

A pid file lies after a kill; a control group holds a process and all its children until they are
gone. Works with both versions of control groups.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from local.problem import Problem

TREE = "shortlink-local"
"""Root of ours in each hierarchy: shortlink-local/REGION/COMPONENT, and /pods for containers."""


def hierarchies(mountinfo: str | None = None) -> list[Path]:
    """Where control groups are mounted: one folder on version 2, one a controller on version 1."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in ("cgroup", "cgroup2"):
            found.append(Path(before.split()[4]))
    return found


def tracking() -> Path:
    """The one hierarchy by which processes are found. Raises Problem when there is none."""
    mounted = hierarchies()
    for wanted in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids")):
        if wanted in mounted:
            return wanted
    raise Problem("no control groups: neither /sys/fs/cgroup nor its pids is mounted")


def group(*names: str) -> Path:
    """A group of ours in the hierarchy that tracks processes."""
    return tracking().joinpath(TREE, *names)


def make(*names: str) -> None:
    """Make a group of ours in every hierarchy, as the kubelet wants it for its pods.

    On version 1 a new group may use no processor until it is told which; it gets its parent's.
    """
    for mounted in hierarchies():
        path = mounted
        for name in (TREE, *names):
            path = path / name
            path.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                above = path.parent / setting
                if above.exists():
                    (path / setting).write_text(above.read_text())


def pids(folder: Path) -> list[int]:
    """The processes in a group and in all below it."""
    found: list[int] = []
    for path in _tree(folder):
        with contextlib.suppress(OSError):
            found += map(int, (path / "cgroup.procs").read_text().split())
    return found


def kill(folder: Path, *, seconds: float = 10.0) -> None:
    """SIGKILL for all in a group, until none is left. Raises Problem past the deadline."""
    end = time.monotonic() + seconds
    while left := pids(folder):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise Problem(f"processes {left} in {folder} outlive SIGKILL")
        time.sleep(0.02)


def remove(*names: str, seconds: float = 10.0) -> None:
    """Remove a group of ours (by default all) from every hierarchy, and kill what is still in it.

    What a killed `up` had just begun to start may enter its group late. Raises Problem past the
    deadline.
    """
    end = time.monotonic() + seconds
    while there := left(*names):
        for root in there:
            kill(root)
            for path in sorted(_tree(root), key=lambda path: -len(path.parts)):
                with contextlib.suppress(OSError):
                    path.rmdir()
        if time.monotonic() > end:
            raise Problem(f"can't be removed: {', '.join(map(str, there))}")


def left(*names: str) -> list[Path]:
    """Where a group of ours (by default the root of all) is, in any hierarchy."""
    groups = [mounted.joinpath(TREE, *names) for mounted in hierarchies()]
    return [group for group in groups if group.exists()]


def _tree(folder: Path) -> Iterator[Path]:
    for path, _, _ in os.walk(folder):
        yield Path(path)
