"""The regions' network: a namespace each, one bridge between them, and a cable to cut."""

import json

from local.regions.commands import attempt, run
from local.regions.layout import BRIDGE, HOST, REGIONS, ClusterNode, Region

INSIDE = "eth0"
"""A cable's end in its region."""


def lay() -> None:
    """Make or mend the bridge, and each region's namespace, cable, address and routes."""
    if not _has_link(BRIDGE):
        run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "replace", f"{HOST}/16", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for region in REGIONS:
        _lay(region)


def _lay(region: Region) -> None:
    namespace = region.namespace
    if namespace not in namespaces():
        run("ip", "netns", "add", namespace)
    if not _has_link(region.cable):
        peer = ("peer", "name", INSIDE, "netns", namespace)
        run("ip", "link", "add", region.cable, "type", "veth", *peer)
    run("ip", "link", "set", region.cable, "master", BRIDGE)
    run("ip", "-n", namespace, "link", "set", "lo", "up")
    run("ip", "-n", namespace, "addr", "replace", f"{region.address}/16", "dev", INSIDE)
    mend(region)


def cut(region: Region) -> None:
    """Take the region's cable away: nothing gets in or out, all within goes on."""
    run("ip", "link", "set", region.cable, "down")


def mend(region: Region) -> None:
    """Put the cable back, and the routes that went with it."""
    run("ip", "link", "set", region.cable, "up")
    run("ip", "-n", region.namespace, "link", "set", INSIDE, "up")
    # A Service's address has to have a route before its packets are turned to a pod.
    run("ip", "-n", region.namespace, "route", "replace", "default", "via", HOST)


def is_cut(region: Region) -> bool:
    """Whether its cable is away."""
    said = attempt("ip", "-j", "link", "show", region.cable)
    return said.returncode != 0 or "UP" not in json.loads(said.stdout)[0]["flags"]


def add_address(region: Region, address: str) -> None:
    """One more address in the region's namespace."""
    run("ip", "-n", region.namespace, "addr", "replace", f"{address}/16", "dev", INSIDE)


def remove_address(region: Region, address: str) -> None:
    """Take an address that was added away. That it is already gone is no fault."""
    run("ip", "-n", region.namespace, "addr", "flush", "dev", INSIDE, "to", f"{address}/32")


def remove_node(node: ClusterNode) -> None:
    """Take a node's bridge and address away. What is already gone is no fault."""
    inside_it = ("-n", node.region.namespace)
    if _has_link(node.bridge, *inside_it):
        run("ip", *inside_it, "link", "del", node.bridge)
    remove_address(node.region, node.address)


def remove() -> None:
    """Take all of it away. What is already gone is no fault."""
    for region in REGIONS:
        if _has_link(region.cable):
            run("ip", "link", "del", region.cable)
        if region.namespace in namespaces():
            run("ip", "netns", "del", region.namespace)
    if _has_link(BRIDGE):
        run("ip", "link", "del", BRIDGE)


def namespaces() -> list[str]:
    """The machine's named network namespaces."""
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines()]


def inside(region: Region) -> tuple[str, ...]:
    """What to put before a command to run it in the region's network.

    Not `ip netns exec`: that mounts a new /sys, which hides the control groups.
    """
    return ("nsenter", f"--net=/var/run/netns/{region.namespace}")


def _has_link(name: str, *where: str) -> bool:
    return attempt("ip", *where, "link", "show", name).returncode == 0
