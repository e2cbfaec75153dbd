"""Takes the platform down, whatever is left of it, and leaves nothing but the parts' cache."""

import json
import shutil
import socket
import time
from pathlib import Path

from local.problem import Problem
from local.regions import cgroups, network, owner
from local.regions.commands import attempt
from local.regions.layout import CHECKOUT, REGIONS
from local.regions.processes import Say

SECONDS = 60.0
"""How long mounts may stay busy after the last process is gone."""

_LOG_LINKS = Path("/var/log/containers")
_SHIM_SOCKETS = Path("/run/containerd/s")
_NETWORK_RESULTS = Path("/var/lib/cni/results")
_PLUGINS = Path("/var/lib/kubelet/device-plugins")


def down(say: Say) -> None:
    """Remove all of the platform. Does nothing when there is none. Raises Problem.

    All its processes are killed at once, by their control groups: nothing of theirs is kept, so
    nothing has to end in order.
    """
    theirs = owner.owner()
    checkout = CHECKOUT if theirs is None else theirs.checkout
    running = cgroups.pids(cgroups.group())
    if running and checkout != CHECKOUT and checkout.exists():
        raise Problem(f"the platform of {checkout} runs: `make down` there")
    if running:
        cgroups.kill(cgroups.group(), seconds=SECONDS)
        say(f"{len(running)} processes ended")
    for state in {checkout / ".local", CHECKOUT / ".local"}:
        remove_folder(state)
    network.remove()
    cgroups.remove()
    owner.release()
    say("the platform is down")


def remove_folder(state: Path) -> None:
    """Remove a folder in which nodes kept things, once their processes are gone. Raises Problem."""
    _forget_containers(state)
    _unmount(state)
    shutil.rmtree(state, ignore_errors=True)
    if state.exists():
        raise Problem(f"{state} can't be removed: see what is in it")


def mounts(state: Path, mountinfo: str | None = None) -> list[Path]:
    """What is mounted in a folder, the innermost first."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    points = [_unescape(line.split()[4]) for line in text.splitlines()]
    return [point for point in map(Path, reversed(points)) if point.is_relative_to(state)]


def _unescape(text: str) -> str:
    # The kernel writes these four as octal (proc_pid_mountinfo(5)).
    for octal, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{octal}", character)
    return text


def _unmount(state: Path) -> None:
    end = time.monotonic() + SECONDS
    while left := mounts(state):
        for point in left:
            attempt("umount", point)
        if time.monotonic() > end:
            raise Problem(f"these mounts are still in use: {', '.join(map(str, mounts(state)))}")


def _forget_containers(state: Path) -> None:
    """Remove the few things that containerd and kubelet keep at places fixed in them."""
    for path in dead_sockets():
        path.unlink()
    if _LOG_LINKS.is_dir():
        for link in _LOG_LINKS.iterdir():
            if link.is_symlink() and link.readlink().is_relative_to(state):
                link.unlink()
    for kept in network_results(state):
        kept.unlink()
    if any((state / region.name / "kubelet").exists() for region in REGIONS):
        (_PLUGINS / "kubelet.sock").unlink(missing_ok=True)
        made = (_PLUGINS, _NETWORK_RESULTS, _SHIM_SOCKETS)
        _remove_empty(_LOG_LINKS, *(each for folder in made for each in (folder, folder.parent)))


def network_results(state: Path, folder: Path = _NETWORK_RESULTS) -> list[Path]:
    """What the network plugins remember of containers of ours: all of them are gone."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            namespace = json.loads(path.read_text()).get("netns", "")
        except (OSError, ValueError, AttributeError):
            continue  # not of this kind, or gone meanwhile
        if Path(namespace).is_relative_to(state):
            found.append(path)
    return found


def dead_sockets(folder: Path = _SHIM_SOCKETS) -> list[Path]:
    """Sockets of shims that are gone: no name tells whose they were, and nobody needs them."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                found.append(path)
            except OSError:
                continue  # busy, or gone meanwhile
    return found


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
