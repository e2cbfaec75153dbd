"""A region's control plane: etcd, API server, controller-manager, scheduler.

etcd listens on the namespace's loopback alone, without TLS: pods have namespaces of their own, so
only root's processes of the region reach it. All else is TLS with client certificates.
"""

from local.parts import Parts
from local.regions import health, pki
from local.regions.layout import Region
from local.regions.processes import Component

_ETCD = "http://127.0.0.1:2379"
_ETCD_PEER = "http://127.0.0.1:2380"

# What the platform's objects need, no more: each idle controller costs memory in three regions.
CONTROLLERS = """
clusterrole-aggregation-controller cronjob-controller daemonset-controller deployment-controller
disruption-controller endpoints-controller endpointslice-controller garbage-collector-controller
horizontal-pod-autoscaler-controller job-controller namespace-controller node-lifecycle-controller
pod-garbage-collector-controller replicaset-controller resourcequota-controller
root-ca-certificate-publisher-controller serviceaccount-controller statefulset-controller
taint-eviction-controller ttl-after-finished-controller
""".split()


def etcd(region: Region, parts: Parts) -> Component:
    """The region's one etcd. It syncs no disk: a lost machine loses this platform anyway."""
    return Component(
        region,
        "etcd",
        [
            parts.program("etcd"),
            f"--name={region.name}",
            f"--data-dir={region.folder}/etcd",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            f"--listen-peer-urls={_ETCD_PEER}",
            f"--initial-advertise-peer-urls={_ETCD_PEER}",
            f"--initial-cluster={region.name}={_ETCD_PEER}",
            f"--listen-metrics-urls=http://{region.address}:2381",
            "--unsafe-no-fsync",
            "--snapshot-count=10000",
            "--log-level=warn",
        ],
        health.http(f"http://{region.address}:2381/readyz"),
        "127.0.0.1:2379",
    )


def api_server(region: Region, parts: Parts) -> Component:
    """The API server; pods and people reach it at the region's address."""
    files = pki.folder(region)
    return Component(
        region,
        "apiserver",
        [
            parts.program("kube-apiserver"),
            f"--etcd-servers={_ETCD}",
            f"--bind-address={region.address}",
            f"--advertise-address={region.address}",
            f"--secure-port={pki.API_PORT}",
            "--endpoint-reconciler-type=lease",
            f"--service-cluster-ip-range={region.services}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--disable-admission-plugins=TaintNodesByCondition",
            "--allow-privileged=false",
            "--profiling=false",
            f"--client-ca-file={files}/ca.crt",
            *_serving(region, "apiserver"),
            f"--kubelet-certificate-authority={files}/ca.crt",
            f"--kubelet-client-certificate={files}/{pki.KUBELET_CLIENT}.crt",
            f"--kubelet-client-key={files}/{pki.KUBELET_CLIENT}.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={files}/service-accounts.key",
            f"--service-account-signing-key-file={files}/service-accounts.key",
        ],
        health.http(f"https://{region.address}:{pki.API_PORT}/readyz", ca=files / "ca.crt"),
        f"{region.address}:{pki.API_PORT}",
        deadline=120.0,
        environment={"GOGC": "50"},
    )


def controller_manager(region: Region, parts: Parts) -> Component:
    """The controllers. They act as service accounts of their own, with their own rights."""
    files = pki.folder(region)
    return Component(
        region,
        "controller-manager",
        [
            parts.program("kube-controller-manager"),
            f"--kubeconfig={files}/controller-manager.kubeconfig",
            f"--bind-address={region.address}",
            *_serving(region, "controller-manager"),
            f"--controllers={','.join(CONTROLLERS)}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={files}/service-accounts.key",
            f"--root-ca-file={files}/ca.crt",
            "--leader-elect=false",
            "--profiling=false",
        ],
        health.http(f"https://{region.address}:10257/healthz", ca=files / "ca.crt"),
        f"{region.address}:10257",
    )


def scheduler(region: Region, parts: Parts) -> Component:
    """The scheduler."""
    files = pki.folder(region)
    return Component(
        region,
        "scheduler",
        [
            parts.program("kube-scheduler"),
            f"--kubeconfig={files}/scheduler.kubeconfig",
            f"--bind-address={region.address}",
            *_serving(region, "scheduler"),
            "--leader-elect=false",
            "--profiling=false",
        ],
        health.http(f"https://{region.address}:10259/healthz", ca=files / "ca.crt"),
        f"{region.address}:10259",
    )


def _serving(region: Region, name: str) -> list[str]:
    files = pki.folder(region)
    return [
        f"--tls-cert-file={files}/{name}.crt",
        f"--tls-private-key-file={files}/{name}.key",
    ]
