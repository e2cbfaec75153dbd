"""A region's Kubernetes nodes: containerd and kubelet of each, one kube-proxy for all.

Pods of all its nodes are in one network namespace: between their bridges the kernel itself routes.
"""

import json
import os
from pathlib import Path

import yaml

from local.parts import Parts
from local.regions import cgroups, health, pki
from local.regions.commands import attempt, run
from local.regions.layout import POD_NETWORKS, ClusterNode, Region
from local.regions.processes import Component

PAUSE = "registry.local/pause:1"


def groups(node: ClusterNode) -> tuple[str, str]:
    """The control groups of a node's containers, and of its containerd's shims.

    Shims outlive containerd, and so do their containers.
    """
    return (f"pods{node.suffix}", f"shims{node.suffix}")


def socket(node: ClusterNode) -> Path:
    """Where containerd listens."""
    return node.folder / "containerd" / "containerd.sock"


def container_runtime(node: ClusterNode, parts: Parts) -> Component:
    """containerd."""
    settings = node.folder / "containerd.toml"

    def ask() -> str | None:
        said = attempt(*_ctr(node, parts), "--connect-timeout=2s", "version", seconds=10.0)
        return None if said.returncode == 0 else f"ctr: {said.stderr.strip()}"

    return Component(
        node.region,
        f"containerd{node.suffix}",
        [parts.program("containerd"), f"--config={settings}"],
        ask,
        socket(node).name,
        environment={"PATH": _path(parts, "containerd-shim-runc-v2", "runc", "nft")},
        files={
            settings: containerd_settings(node, parts.cni),
            # An image that was not loaded is nowhere: to be told at once, not after a time-out.
            registries(node)
            / PAUSE.partition("/")[0]
            / "hosts.toml": 'server = "http://127.0.0.1:9"',
            node.folder / "cni" / "shortlink.conflist": network_settings(node),
        },
    )


def _path(parts: Parts, *programs: str) -> str:
    # What it starts itself, it looks for on PATH.
    folders = [str(parts.program(name).parent) for name in programs]
    return ":".join([*dict.fromkeys(folders), os.environ.get("PATH", os.defpath)])


def make_groups(node: ClusterNode) -> None:
    """Make the groups of pods and shims, which must be there when the first one starts."""
    for name in groups(node):
        cgroups.make(node.region.name, name)


def registries(node: ClusterNode) -> Path:
    """Where containerd looks up how to reach a registry."""
    return node.folder / "registries"


def containerd_settings(node: ClusterNode, plugins: Path) -> str:
    """containerd's config file; all that it writes lies in the node's folder."""
    home = node.folder / "containerd"
    _, shims = groups(node)
    return f"""\
version = 3
root = "{home}/root"
state = "{home}/state"
[grpc]
  address = "{socket(node)}"
[ttrpc]
  address = "{home}/ttrpc.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"
[plugins.'io.containerd.nri.v1.nri']
  # Its socket has one place on the whole host.
  disable = true
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "{registries(node)}"
[plugins.'io.containerd.cri.v1.runtime']
  # A container may not always lower its score: as root without CAP_SYS_RESOURCE, say.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{node.folder}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = "{home}/runc"
  ShimCgroup = "/{cgroups.TREE}/{node.region.name}/{shims}"
"""


def network_settings(node: ClusterNode) -> str:
    """The pods' network: a bridge in the region's namespace; outside they are the node itself."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": f"{node.folder}/cni-addresses",
    }
    bridge = {
        "type": "bridge",
        "bridge": node.bridge,
        "isGateway": True,
        "ipMasq": True,
        "ipMasqBackend": "nftables",
        "hairpinMode": True,
        "ipam": addresses,
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "shortlink", "plugins": [bridge]}, indent=1)


def load_image(node: ClusterNode, parts: Parts, name: str, archive: Path) -> None:
    """Give containerd an image from an OCI archive, unless it has it."""
    ctr = _images(node, parts)
    if name not in run(*ctr, "ls", "--quiet").split():
        run(*ctr, "import", archive, seconds=120.0)


def copy_images(source: ClusterNode, target: ClusterNode, parts: Parts) -> None:
    """Give a node all images that another has, so that it can run the same pods."""
    listed = run(*_images(source, parts), "ls", "--quiet").split()
    # Images have a second name each, by which the kubelet knows them.
    names = [name for name in listed if not name.startswith("sha256:")]
    archive = target.folder / "images.tar"
    run(*_images(source, parts), "export", archive, *names, seconds=120.0)
    run(*_images(target, parts), "import", archive, seconds=120.0)
    archive.unlink()


def _images(node: ClusterNode, parts: Parts) -> tuple[str | Path, ...]:
    return (*_ctr(node, parts), "--namespace=k8s.io", "images")


def _ctr(node: ClusterNode, parts: Parts) -> tuple[str | Path, ...]:
    return (parts.program("ctr"), f"--address={socket(node)}")


def kubelet(node: ClusterNode, parts: Parts) -> Component:
    """The kubelet."""
    files = pki.folder(node.region)
    settings = node.folder / "kubelet.yaml"
    return Component(
        node.region,
        f"kubelet{node.suffix}",
        [
            parts.program("kubelet"),
            f"--config={settings}",
            f"--kubeconfig={files}/kubelet{node.suffix}.kubeconfig",
            f"--root-dir={node.folder}/kubelet",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
        ],
        health.http(f"http://{node.address}:10248/healthz"),
        f"{node.address}:10250",
        files={settings: yaml.safe_dump(kubelet_settings(node))},
    )


def kubelet_settings(node: ClusterNode) -> dict[str, object]:
    """KubeletConfiguration. What is off can't work on a machine that is shared by all nodes."""
    files = pki.folder(node.region)
    pods, _ = groups(node)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": 10250,
        "readOnlyPort": 0,
        "healthzBindAddress": node.address,
        "healthzPort": 10248,
        "tlsCertFile": f"{files}/kubelet{node.suffix}.crt",
        "tlsPrivateKeyFile": f"{files}/kubelet{node.suffix}.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{files}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{socket(node)}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.TREE}/{node.region.name}/{pods}",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # No cluster DNS runs: the platform's settings are addresses.
        "clusterDNS": [node.region.api_service.rsplit(".", 1)[0] + ".10"],
        "resolvConf": "",
        "podLogsDir": f"{node.folder}/pod-logs",
    }


def proxy(region: Region, parts: Parts) -> Component:
    """kube-proxy: Services and node ports by nftables."""
    settings = region.folder / "kube-proxy.yaml"
    return Component(
        region,
        "proxy",
        [parts.program("kube-proxy"), f"--config={settings}"],
        health.http(f"http://{region.address}:10256/healthz"),
        f"{region.address}:10256",
        environment={"PATH": _path(parts, "nft")},
        files={settings: yaml.safe_dump(proxy_settings(region))},
    )


def proxy_settings(region: Region) -> dict[str, object]:
    """KubeProxyConfiguration."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "bindAddress": region.address,
        "healthzBindAddress": f"{region.address}:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clusterCIDR": POD_NETWORKS,
        "hostnameOverride": region.node.name,
        "clientConnection": {"kubeconfig": f"{pki.folder(region)}/proxy.kubeconfig"},
        # These are the machine's, not the namespace's.
        "conntrack": {"maxPerCore": 0, "min": 0},
    }
