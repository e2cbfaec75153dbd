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
    def pods(self) -> str:
        """The addresses of its pods."""
        return f"10.88.{self.number}.0/24"

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
    def node(self) -> str:
        """Its one Kubernetes node."""
        return f"node-{self.name}"

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
