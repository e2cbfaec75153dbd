"""Faults for drills, and their mending, by the regions' names: real processes and cables.

What mends waits until it is well; all of them raise Problem past their deadlines.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor

from local.parts import find
from local.regions import cgroups, network
from local.regions.cassandra import Node, cassandra, node_of, nodetool
from local.regions.inventory import components
from local.regions.layout import REGIONS, region_named
from local.regions.up import regions_up, services_up, stopwatch


def kill(region: str, component: str) -> list[int]:
    """SIGKILL for a component; returns the processes that were there."""
    group = cgroups.group(region_named(region).name, component)
    killed = cgroups.pids(group)
    cgroups.kill(group)
    return killed


def start(region: str, component: str) -> None:
    """Start a component that was killed."""
    components(region_named(region), find())[component].ensure(stopwatch())


def cut(region: str) -> None:
    """Take the region's cable away."""
    network.cut(region_named(region))


def mend(region: str) -> None:
    """Put the region's cable back."""
    network.mend(region_named(region))


def heal() -> None:
    """What `up` does, but for deploying: all cables back, all that isn't well started anew."""
    say = stopwatch()
    regions_up(find(), {}, say)
    services_up(say)


def cassandra_of(region: str) -> Node:
    """The region's node of the platform's ring."""
    return node_of(region_named(region))


def wipe_cassandra(region: str) -> None:
    """Kill the region's Cassandra, remove its data as a lost disk does, and start it empty."""
    kill(region, "cassandra")
    cassandra_of(region).wipe()
    start(region, "cassandra")


def rebuild_cassandra(region: str, keyspace: str = "links") -> None:
    """Give a wiped node its data: streamed from another data centre, then repaired, Paxos too."""
    node, parts = cassandra_of(region), find()
    source = next(each.name for each in REGIONS if each.name != region)
    nodetool(node, parts, "rebuild", "--keyspace", keyspace, "--", source, seconds=300.0)
    nodetool(node, parts, "repair", "--full", keyspace, seconds=300.0)


def start_spares(region: str, count: int = 3) -> list[str]:
    """Start a ring of its own in one region, one data centre; returns the nodes' addresses."""
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda number: start_spare(region, number), range(count)):
            pass
    return [_spare(region, number).address for number in range(count)]


def start_spare(region: str, number: int) -> None:
    """Start node `number` (0 to 2) of the region's own ring."""
    node = _spare(region, number)
    network.add_address(node.region, node.address)
    cassandra(node, find()).ensure(stopwatch())


def kill_spare(region: str, number: int) -> list[int]:
    """SIGKILL for one node of the region's own ring; `start_spare` brings it back."""
    return kill(region, _spare(region, number).name)


def remove_spares(region: str, count: int = 3) -> None:
    """End the region's own ring, and remove all of it: the next one starts as the first did."""
    for number in range(count):
        kill_spare(region, number)
        node = _spare(region, number)
        if node.folder.exists():
            shutil.rmtree(node.folder)
        network.remove_address(node.region, node.address)


def _spare(region: str, number: int) -> Node:
    where = region_named(region)
    return Node(
        where,
        f"cassandra-spare-{number}",
        where.spare_address(2 + number),
        "spares",
        tuple(where.spare_address(last) for last in (2, 3, 4)),
        jmx_port=7200 + number,
    )
