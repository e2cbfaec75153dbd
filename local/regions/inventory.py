"""All components of a region, by name, in the order in which they start."""

from local.parts import Parts
from local.regions import controlplane, node
from local.regions.cassandra import cassandra, node_of
from local.regions.layout import Region
from local.regions.processes import Component
from local.regions.redis import redis


def components(region: Region, parts: Parts) -> dict[str, Component]:
    """The region's components."""
    found = (
        redis(region, parts),
        controlplane.etcd(region, parts),
        controlplane.api_server(region, parts),
        controlplane.controller_manager(region, parts),
        controlplane.scheduler(region, parts),
        node.container_runtime(region.node, parts),
        node.kubelet(region.node, parts),
        node.proxy(region, parts),
        cassandra(node_of(region), parts),
    )
    return {component.name: component for component in found}
