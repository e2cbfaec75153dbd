"""Names, addresses and folders: everything that follows from a region's name and number."""

from dataclasses import dataclass
from pathlib import Path

from local.problem import Problem

CHECKOUT = Path(__file__).resolve().parents[2]
STATE = CHECKOUT / ".local"
KUBECONFIG = STATE / "kubeconfig"

BRIDGE = "shortlink0"
NETWORK = "10.77.0.0/16"
POD_NETWORKS = "10.88.0.0/16"
HOST = "10.77.255.254"
"""The machine's own address on the regions' network, and their default gateway."""

NODE_PORTS = {"redirect": 30080, "api": 30081}


@dataclass(frozen=True)
class ClusterNode:
    """One Kubernetes node. All nodes of a region are in its one network namespace."""

    region: "Region"
    name: str
    suffix: str
    """What the names of its components, files and control groups end with."""
    address: str
    pods: str
    """The addresses of its pods."""
    bridge: str
    """What its pods' cables are joined to."""
    folder: Path
    """Its settings and all that it writes."""


@dataclass(frozen=True)
class Region:
    """One region. `number` is the third part of its addresses."""

    name: str
    number: int

    @property
    def address(self) -> str:
        """Where everything that the region offers is reached."""
        return self.spare_address(1)

    def spare_address(self, last: int) -> str:
        """An address of the region for one more server in its namespace."""
        return f"10.77.{self.number}.{last}"

    @property
    def services(self) -> str:
        """The addresses of its Services; the first is the API server's."""
        return f"10.{96 + self.number}.0.0/16"

    @property
    def api_service(self) -> str:
        """The address under which pods find their API server."""
        return f"10.{96 + self.number}.0.1"

    @property
    def namespace(self) -> str:
        """Its network namespace."""
        return f"shortlink-{self.name}"

    @property
    def cable(self) -> str:
        """The host's end of its veth pair (at most 15 characters)."""
        return f"shortlink{self.number}"

    @property
    def node(self) -> ClusterNode:
        """Its Kubernetes node."""
        pods = f"10.88.{self.number}.0/24"
        return ClusterNode(self, f"node-{self.name}", "", self.address, pods, "cni0", self.folder)

    @property
    def second_node(self) -> ClusterNode:
        """One more, which `up` doesn't start: drills add it and remove it."""
        name, pods = f"node-{self.name}-2", f"10.88.{100 + self.number}.0/24"
        address, folder = self.spare_address(5), self.folder / "node-2"
        return ClusterNode(self, name, "-2", address, pods, "cni1", folder)

    @property
    def context(self) -> str:
        """Its context in the kubeconfig."""
        return f"local-{self.name}"

    @property
    def folder(self) -> Path:
        """All its state."""
        return STATE / self.name

    @property
    def logs(self) -> Path:
        """One file a component."""
        return self.folder / "logs"


REGIONS = (Region("us-east-1", 1), Region("eu-west-1", 2), Region("ap-southeast-1", 3))


def region_named(name: str) -> Region:
    """A region by its name. Raises Problem."""
    for region in REGIONS:
        if region.name == name:
            return region
    raise Problem(f"no region {name!r}: there are {', '.join(each.name for each in REGIONS)}")
