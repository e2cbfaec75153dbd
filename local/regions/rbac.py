"""What a fresh cluster must be told: who may reach the kubelet, and what the deployer may."""

import json

from local.parts import Parts
from local.regions import pki
from local.regions.commands import run
from local.regions.layout import Region

_API = "rbac.authorization.k8s.io"

# Beside the built-in `admin` (everything namespaced). It may grant rights, for the platform's own
# roles are among what it deploys.
_DEPLOYER_RULES: list[dict[str, list[str]]] = [
    {"apiGroups": [group], "resources": resources, "verbs": verbs}
    for group, resources, verbs in (
        ("", ["namespaces", "resourcequotas", "limitranges"], ["*"]),
        ("", ["nodes", "events"], ["get", "list", "watch"]),
        ("apiextensions.k8s.io", ["customresourcedefinitions"], ["*"]),
        (_API, ["clusterroles", "clusterrolebindings", "roles", "rolebindings"], ["*"]),
        ("admissionregistration.k8s.io", ["*"], ["*"]),
        ("scheduling.k8s.io", ["priorityclasses"], ["*"]),
        ("coordination.k8s.io", ["leases"], ["*"]),
        ("shortlink.platform", ["*"], ["*"]),
    )
]


def objects() -> list[dict[str, object]]:
    """The roles and bindings."""
    role = {"apiVersion": f"{_API}/v1", "kind": "ClusterRole", "rules": _DEPLOYER_RULES}
    return [
        role | {"metadata": {"name": "shortlink-deployer"}},
        _bind("shortlink-deployer", "shortlink-deployer", pki.DEPLOYER),
        _bind("shortlink-deployer-admin", "admin", pki.DEPLOYER),
        _bind("shortlink-kubelet-api", "system:kubelet-api-admin", pki.KUBELET_CLIENT),
    ]


def apply(region: Region, parts: Parts) -> None:
    """Give them to the region's API server."""
    items = {"apiVersion": "v1", "kind": "List", "items": objects()}
    admin = pki.folder(region) / f"{pki.ADMIN}.kubeconfig"
    run(
        parts.program("kubectl"),
        *(f"--kubeconfig={admin}", "apply", "--server-side", "--force-conflicts", "-f", "-"),
        given=json.dumps(items),
        seconds=60.0,
    )


def _bind(name: str, role: str, user: str) -> dict[str, object]:
    return {
        "apiVersion": f"{_API}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _API, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _API, "kind": "User", "name": user}],
    }
