"""`make down` leaves nothing of a platform that ran. Takes it down: run it after all others.

What is ours is known by name or place, for the machine has a life of its own meanwhile. Each kind
is looked for before, too: a look that finds nothing there would find nothing ever.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from local.regions import cgroups, network
from local.regions.commands import attempt, run
from local.regions.down import dead_sockets, mounts, network_results
from local.regions.layout import CHECKOUT, REGIONS, STATE
from local.regions.owner import HOME

Picture = Mapping[str, list[str]]

FIXED_PLACES = (
    HOME,
    Path("/var/lib/kubelet/device-plugins/kubelet.sock"),
    *(Path(f"/run/netns/{region.namespace}") for region in REGIONS),
)


def processes() -> list[str]:
    """Processes in our control groups, or that are told of our folder."""
    found = {str(pid) for pid in cgroups.pids(cgroups.group())}
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes()
        except OSError:
            continue  # it has just ended
        if str(STATE).encode() in words:
            found.add(command.parent.name)
    return sorted(found)


def nft_tables() -> list[str]:
    """Tables that kube-proxy and the CNI plugins make, on the host or in our namespaces."""
    there = [(), *(network.inside(one) for one in REGIONS if one.namespace in network.namespaces())]
    names = []
    for where in there:
        listed = json.loads(run(*where, "nft", "--json", "list", "tables"))["nftables"]
        names += [each["table"]["name"] for each in listed if "table" in each]
    return [name for name in names if name.startswith(("kube-proxy", "cni"))]


def links() -> list[str]:
    """Network links of ours on the host."""
    listed = json.loads(run("ip", "-j", "link", "show"))
    return [link["ifname"] for link in listed if link["ifname"].startswith("shortlink")]


def namespaces() -> list[str]:
    """Named network namespaces of ours."""
    return [name for name in network.namespaces() if name.startswith(("shortlink-", "cni-"))]


def files() -> list[str]:
    """Files of ours: our folder, and what programs keep at places fixed in them."""
    found = [path for path in (STATE, *FIXED_PLACES) if path.exists()] + dead_sockets()
    found += network_results(STATE)
    logs = Path("/var/log/containers")
    if logs.is_dir():
        links = [path for path in logs.iterdir() if path.is_symlink()]
        found += [link for link in links if link.readlink().is_relative_to(STATE)]
    return [str(path) for path in found]


KINDS: Mapping[str, Callable[[], list[str]]] = {
    "processes": processes,
    "mounts": lambda: [str(path) for path in mounts(STATE)],
    "links": links,
    "network namespaces": namespaces,
    "nft tables": nft_tables,
    "control groups": lambda: [str(path) for path in cgroups.left()],
    "files": files,
}


def picture() -> Picture:
    return {kind: look() for kind, look in KINDS.items()}


@dataclass(frozen=True)
class Pictures:
    before: Picture
    after: Picture


def make_down() -> subprocess.CompletedProcess[str]:
    return attempt(sys.executable, "-m", "local", "down", seconds=180.0)


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    before = picture()
    if not before["processes"]:
        pytest.fail(f"no platform of {CHECKOUT} runs: `make up` first")
    done = make_down()
    assert done.returncode == 0, done.stderr
    return Pictures(before, picture())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_kind_is_left(pictures: Pictures, kind: str) -> None:
    assert pictures.before[kind] != []
    assert pictures.after[kind] == []


def test_down_of_nothing_is_no_fault(pictures: Pictures) -> None:
    done = make_down()
    assert done.returncode == 0, done.stderr
    assert picture() == pictures.after
