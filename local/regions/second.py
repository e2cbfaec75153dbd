"""A second Kubernetes node in a region, for drills: added, and removed whole.

`up` and `status` don't know it; `down` removes it with the rest.
"""

from local.parts import find
from local.problem import Problem
from local.regions import cgroups, cluster, network, node, pki
from local.regions.commands import run
from local.regions.down import remove_folder
from local.regions.layout import region_named
from local.regions.up import stopwatch


def add_node(region: str) -> str:
    """Add the region's second node, wait until it is Ready, and return its name.

    It gets the first one's images. Raises Problem past a deadline, or when the region has no
    certificate for it.
    """
    where, parts, say = region_named(region), find(), stopwatch()
    second = where.second_node
    if not (pki.folder(where) / f"kubelet{second.suffix}.crt").exists():
        raise Problem(f"{region} is older than its second node: `make down`, then `make up`")
    network.add_address(where, second.address)
    node.make_groups(second)
    node.container_runtime(second, parts).ensure(say)
    node.copy_images(where.node, second, parts)
    node.kubelet(second, parts).ensure(say)
    cluster.await_node(second)
    say(f"{region} {second.name}: ready")
    return second.name


def remove_node(region: str) -> None:
    """Remove the region's second node as a lost machine goes, and all that it left.

    Nothing is asked of it: its pods end at once, so drain it first to spare them. Does nothing
    when there is none. Raises Problem.
    """
    where, parts = region_named(region), find()
    second = where.second_node
    # The kubelet first: it would register its node again.
    cgroups.remove(region, node.kubelet(second, parts).name)
    admin = pki.folder(where) / f"{pki.ADMIN}.kubeconfig"
    kubectl = (parts.program("kubectl"), f"--kubeconfig={admin}")
    run(*kubectl, "delete", "node", second.name, "--ignore-not-found", seconds=60.0)
    for group in (node.container_runtime(second, parts).name, *node.groups(second)):
        cgroups.remove(region, group)
    remove_folder(second.folder)
    network.remove_node(second)
