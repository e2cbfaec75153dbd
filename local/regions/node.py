"""A region's one Kubernetes node: containerd, kubelet, kube-proxy."""

import json
import os
from pathlib import Path

import yaml

from local.parts import Parts
from local.regions import cgroups, health, pki
from local.regions.commands import attempt, run
from local.regions.layout import Region
from local.regions.processes import Component

PAUSE = "registry.local/pause:1"
PODS = "pods"
"""The control group that the region's containers are in."""
SHIMS = "shims"
"""The control group of containerd's shims: they outlive it, and so do their containers."""


def socket(region: Region) -> Path:
    """Where containerd listens."""
    return region.folder / "containerd" / "containerd.sock"


def container_runtime(region: Region, parts: Parts) -> Component:
    """containerd."""
    settings = region.folder / "containerd.toml"

    def ask() -> str | None:
        said = attempt(*_ctr(region, parts), "--connect-timeout=2s", "version", seconds=10.0)
        return None if said.returncode == 0 else f"ctr: {said.stderr.strip()}"

    return Component(
        region,
        "containerd",
        [parts.program("containerd"), f"--config={settings}"],
        ask,
        socket(region).name,
        environment={"PATH": _path(parts, "containerd-shim-runc-v2", "runc", "nft")},
        files={
            settings: containerd_settings(region, parts.cni),
            region.folder / "cni" / "shortlink.conflist": network_settings(region),
        },
    )


def _path(parts: Parts, *programs: str) -> str:
    # What it starts itself, it looks for on PATH.
    folders = [str(parts.program(name).parent) for name in programs]
    return ":".join([*dict.fromkeys(folders), os.environ.get("PATH", os.defpath)])


def make_groups(region: Region) -> None:
    """Make the groups of pods and shims, which must be there when the first one starts."""
    for name in (PODS, SHIMS):
        cgroups.make(region.name, name)


def containerd_settings(region: Region, plugins: Path) -> str:
    """containerd's config file; all that it writes lies in the region's folder."""
    home = region.folder / "containerd"
    return f"""\
version = 3
root = "{home}/root"
state = "{home}/state"
[grpc]
  address = "{socket(region)}"
[ttrpc]
  address = "{home}/ttrpc.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
  # A container may not always lower its score: as root without CAP_SYS_RESOURCE, say.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{region.folder}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = "{home}/runc"
  ShimCgroup = "/{cgroups.TREE}/{region.name}/{SHIMS}"
"""


def network_settings(region: Region) -> str:
    """The pods' network: a bridge in the region's namespace; outside they are the node itself."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": region.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": f"{region.folder}/cni-addresses",
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "ipMasqBackend": "nftables",
        "hairpinMode": True,
        "ipam": addresses,
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "shortlink", "plugins": [bridge]}, indent=1)


def load_image(region: Region, parts: Parts, name: str, archive: Path) -> None:
    """Give containerd an image from an OCI archive, unless it has it."""
    ctr = (*_ctr(region, parts), "--namespace=k8s.io", "images")
    if name not in run(*ctr, "ls", "--quiet").split():
        run(*ctr, "import", archive, seconds=120.0)


def _ctr(region: Region, parts: Parts) -> tuple[str | Path, ...]:
    return (parts.program("ctr"), f"--address={socket(region)}")


def kubelet(region: Region, parts: Parts) -> Component:
    """The kubelet."""
    files = pki.folder(region)
    settings = region.folder / "kubelet.yaml"
    return Component(
        region,
        "kubelet",
        [
            parts.program("kubelet"),
            f"--config={settings}",
            f"--kubeconfig={files}/kubelet.kubeconfig",
            f"--root-dir={region.folder}/kubelet",
            f"--hostname-override={region.node}",
            f"--node-ip={region.address}",
        ],
        health.http(f"http://{region.address}:10248/healthz"),
        f"{region.address}:10250",
        files={settings: yaml.safe_dump(kubelet_settings(region))},
    )


def kubelet_settings(region: Region) -> dict[str, object]:
    """KubeletConfiguration. What is off can't work on a machine that is shared by three nodes."""
    files = pki.folder(region)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": region.address,
        "port": 10250,
        "readOnlyPort": 0,
        "healthzBindAddress": region.address,
        "healthzPort": 10248,
        "tlsCertFile": f"{files}/kubelet.crt",
        "tlsPrivateKeyFile": f"{files}/kubelet.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{files}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{socket(region)}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.TREE}/{region.name}/{PODS}",
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
        "clusterDNS": [region.api_service.rsplit(".", 1)[0] + ".10"],
        "resolvConf": "",
        "podLogsDir": f"{region.folder}/pod-logs",
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
        "clusterCIDR": region.pods,
        "hostnameOverride": region.node,
        "clientConnection": {"kubeconfig": f"{pki.folder(region)}/proxy.kubeconfig"},
        # These are the machine's, not the namespace's.
        "conntrack": {"maxPerCore": 0, "min": 0},
    }
