"""What must be so before anything is started. The verdicts are pure; `look` asks the machine."""

import ipaddress
import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from local.problem import Problem
from local.regions import cgroups, owner
from local.regions.commands import run
from local.regions.layout import BRIDGE, CHECKOUT, NETWORK

MEMORY = 7 << 30
DISK = 10 * 10**9
TOOLS = ("ip", "nsenter", "nft", "setpriv", "prlimit", "mount", "umount")


@dataclass(frozen=True)
class Machine:
    """What counts of a machine. `running`: a platform's processes are there already."""

    system: str
    root: bool
    missing: tuple[str, ...]
    memory: int
    disk: int
    routes: Sequence[tuple[str, str]]
    """(network, device) of every route but the default ones."""
    running: bool
    owner: owner.Owner | None


def verdicts(machine: Machine, checkout: Path) -> list[str]:
    """All reasons why the platform can't be brought up here, each with what to do."""
    if machine.system != "Linux":
        return [
            f"the local platform needs Linux (network namespaces); this is {machine.system}: "
            "`make demo` runs everywhere"
        ]
    if not machine.root:
        return ["it needs root (network namespaces, containers): run it as root"]
    theirs = machine.owner
    if machine.running and theirs is not None and theirs.checkout != checkout:
        return [
            f"the platform of {theirs.checkout} runs: "
            "`make down` there first, or here if that checkout is gone"
        ]
    found = []
    if machine.missing:
        found.append(f"not here: {', '.join(machine.missing)}: run `make parts`")
    if not machine.running:
        found += _room(machine)
    for network, device in machine.routes:
        if device != BRIDGE and _overlap(network, NETWORK):
            found.append(f"{device} uses {network}, the platform needs {NETWORK}: take it down")
    return found


def _room(machine: Machine) -> list[str]:
    found = []
    if machine.memory < MEMORY:
        found.append(
            f"{machine.memory / 2**30:.1f} GiB of memory are free, {MEMORY >> 30} are needed: "
            "end other programs"
        )
    if machine.disk < DISK:
        found.append(
            f"{machine.disk / 1e9:.1f} GB of disk are free, {DISK // 10**9} are needed: make room"
        )
    return found


def _overlap(one: str, other: str) -> bool:
    return ipaddress.ip_network(one, strict=False).overlaps(ipaddress.ip_network(other))


def check() -> None:
    """Raises Problem with all reasons why the platform can't be brought up on this machine."""
    if wrong := verdicts(look(), CHECKOUT):
        raise Problem("\n".join(wrong))


def look() -> Machine:
    """This machine, now."""
    system = platform.system()
    if system != "Linux":
        return Machine(system, False, (), 0, 0, (), False, None)
    missing = tuple(tool for tool in TOOLS if shutil.which(tool) is None)
    return Machine(
        system=system,
        root=os.geteuid() == 0,
        missing=missing,
        memory=_available(Path("/proc/meminfo").read_text()),
        disk=shutil.disk_usage(CHECKOUT).free,
        routes=() if "ip" in missing else _routes(run("ip", "-j", "-4", "route")),
        running=bool(cgroups.pids(cgroups.group())),
        owner=owner.owner(),
    )


def _available(meminfo: str) -> int:
    sizes = dict(line.split(":", 1) for line in meminfo.splitlines())
    return int(sizes["MemAvailable"].split()[0]) * 1024


def _routes(listed: str) -> list[tuple[str, str]]:
    routes = json.loads(listed)
    return [(one["dst"], one.get("dev", "?")) for one in routes if one["dst"] != "default"]
