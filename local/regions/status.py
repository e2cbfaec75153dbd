"""What runs where, and whether it is well."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from local.parts import Parts
from local.regions import cgroups, cluster, network, node
from local.regions.inventory import components
from local.regions.layout import NODE_PORTS, REGIONS, Region
from local.regions.processes import Component


@dataclass(frozen=True)
class Row:
    """One line of the table. `memory` is resident bytes; `reason` is None when it is well."""

    region: str
    component: str
    address: str
    pid: int | None
    memory: int
    reason: str | None


def rows(parts: Parts) -> list[Row]:
    """All components of all regions, their nodes and the platform's Deployments."""
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda region: _region(region, parts), REGIONS))
    return [row for region in found for row in region]


def _region(region: Region, parts: Parts) -> list[Row]:
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(_component, components(region, parts).values()))
    cut = "its cable is cut" if network.is_cut(region) else None
    found.append(Row(region.name, "network", region.address, None, 0, cut))
    pids = [
        pid
        for name in node.groups(region.node)
        for pid in cgroups.pids(cgroups.group(region.name, name))
    ]
    here = region.node
    state = cluster.node_state(here)
    found.append(Row(region.name, here.name, here.pods, None, resident(pids), state))
    for name, reason in cluster.deployment_states(region).items():
        port = NODE_PORTS.get(name)
        address = f"{region.address}:{port}" if port else ""
        found.append(Row(region.name, f"{name} pods", address, None, 0, reason))
    return found


def _component(component: Component) -> Row:
    pids = component.pids
    return Row(
        component.region.name,
        component.name,
        component.address,
        min(pids, default=None),
        resident(pids),
        component.state(),
    )


def resident(pids: Sequence[int]) -> int:
    """Resident memory of processes, in bytes; one that has ended counts nothing."""
    total = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in status.splitlines() if line[:5] == "VmRSS")
    return total * 1024


def table(found: Sequence[Row]) -> str:
    """The rows as text, with the memory of the whole at the end."""
    lines = [("REGION", "COMPONENT", "ADDRESS", "PID", "MEMORY", "STATE")]
    lines += [
        (
            row.region,
            row.component,
            row.address,
            str(row.pid or ""),
            f"{row.memory >> 20} MiB" if row.memory else "",
            row.reason or "well",
        )
        for row in found
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    ill = sum(row.reason is not None for row in found)
    whole = sum(row.memory for row in found) / 2**30
    end = "all well" if not ill else f"{ill} of {len(found)} not well"
    return "\n".join([*text, f"{whole:.1f} GiB of memory in all; {end}"])
