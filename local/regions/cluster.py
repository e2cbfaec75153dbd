"""Asks a region's API server, as its admin."""

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from local.problem import Problem
from local.regions import health, pki
from local.regions.layout import NODE_PORTS, ClusterNode, Region

NAMESPACE = "shortlink"
DEPLOYMENTS = ("redirect", "api", "operator")


class Unanswered(Exception):
    """The API server can't be reached, or refuses."""


def get(region: Region, path: str) -> Any:
    """An object or a list. Raises Unanswered."""
    files = pki.folder(region)
    try:
        context = ssl.create_default_context(cafile=files / "ca.crt")
        context.load_cert_chain(files / f"{pki.ADMIN}.crt", files / f"{pki.ADMIN}.key")
        url = f"https://{region.address}:{pki.API_PORT}{path}"
        with urllib.request.urlopen(url, timeout=5.0, context=context) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            raise Unanswered(f"{path} answers {refusal.code}") from refusal
    except (OSError, ValueError) as error:
        raise Unanswered(f"{path}: {error}") from error


def await_node(node: ClusterNode, *, seconds: float = 60.0) -> None:
    """Wait until a node is Ready. Raises Problem with its own reason."""
    _await(node.region, lambda: {node.name: node_state(node)}, seconds)


def await_deployments(region: Region, *, seconds: float = 180.0) -> None:
    """Wait until the platform's Deployments are complete and answer. Raises Problem."""
    _await(region, lambda: deployment_states(region), seconds)


def _await(region: Region, states: Callable[[], dict[str, str | None]], seconds: float) -> None:
    end = time.monotonic() + seconds
    while wrong := {name: reason for name, reason in states().items() if reason is not None}:
        if time.monotonic() > end:
            said = "; ".join(f"{name}: {reason}" for name, reason in wrong.items())
            raise Problem(
                f"{region.name} is not ready after {seconds:g} s: {said}: see `make logs"
                f" R={region.name}`, and kubectl --context {region.context} -n {NAMESPACE}"
                " describe pods"
            )
        time.sleep(0.2)


def node_state(node: ClusterNode) -> str | None:
    """None when a node is Ready, else the reason."""
    try:
        found = get(node.region, f"/api/v1/nodes/{node.name}")["status"].get("conditions", [])
    except Unanswered as error:
        return str(error)
    for condition in found:
        if condition["type"] == "Ready":
            return None if condition["status"] == "True" else str(condition["message"])
    return "its kubelet has not reported"


def deployment_states(region: Region) -> dict[str, str | None]:
    """For each of the platform's Deployments: None when it is complete, else why it isn't."""
    try:
        listed = get(region, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
    except Unanswered as error:
        return dict.fromkeys(DEPLOYMENTS, str(error))
    found = {item["metadata"]["name"]: item for item in listed}
    states = {}
    for name in DEPLOYMENTS:
        states[name] = deployment_state(found[name]) if name in found else "not deployed"
        if states[name] is None and (port := NODE_PORTS.get(name)):
            # What the API server knows may be from before its node was killed.
            states[name] = health.http(f"http://{region.address}:{port}/readyz")()
    return states


def generations(region: Region) -> dict[str, int]:
    """How often each of the platform's Deployments was changed; empty where nobody answers."""
    try:
        listed = get(region, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
    except Unanswered:
        return {}
    return {item["metadata"]["name"]: item["metadata"]["generation"] for item in listed}


def deployment_state(item: dict[str, Any]) -> str | None:
    """None when a Deployment's newest version has all its replicas available, else why not."""
    status = item.get("status", {})
    if status.get("observedGeneration", 0) < item["metadata"]["generation"]:
        return "its last change is not taken up yet"
    wanted = item["spec"]["replicas"]
    new, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    if min(new, available) >= wanted:
        return None
    return f"{available} of {wanted} pods available, {new} new"
