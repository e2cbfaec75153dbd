"""Who may talk to whom."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs
from pulumi_kubernetes.networking.v1 import (
    NetworkPolicy,
    NetworkPolicyEgressRuleArgs,
    NetworkPolicyIngressRuleArgs,
    NetworkPolicyPeerArgs,
    NetworkPolicyPortArgs,
    NetworkPolicySpecArgs,
)

from stacks.services import API_SERVER, Service, labels

_DNS = (
    NetworkPolicyPortArgs(port=53, protocol="UDP"),
    NetworkPolicyPortArgs(port=53, protocol="TCP"),
)
_ANY_POD = NetworkPolicyPeerArgs(namespace_selector=LabelSelectorArgs())


@dataclass(frozen=True, slots=True)
class TrafficArgs:
    """Arguments of Traffic.

    namespace: whose pods are meant.
    services: these get what they need, every other pod nothing.
    store_ports: where stores and caches listen, on any host.
    """

    namespace: pulumi.Input[str]
    services: Sequence[Service]
    store_ports: Sequence[int]


class Traffic(pulumi.ComponentResource):
    """Nothing in or out by default; then each service's port in, and out to stores and DNS.

    Metrics may be asked for from within the cluster only. Stores and the API server are known by
    their ports alone: their addresses may be names, which a NetworkPolicy can't hold. A cluster's
    network plugin enforces all this, or nothing does.
    """

    def __init__(self, name: str, args: TrafficArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__("shortlink:platform:Traffic", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)

        def policy(
            what: str,
            pods: dict[str, str],
            ingress: Sequence[NetworkPolicyIngressRuleArgs] = (),
            egress: Sequence[NetworkPolicyEgressRuleArgs] = (),
        ) -> None:
            NetworkPolicy(
                what,
                metadata=ObjectMetaArgs(name=what, namespace=args.namespace),
                spec=NetworkPolicySpecArgs(
                    pod_selector=LabelSelectorArgs(match_labels=pods),
                    policy_types=["Ingress", "Egress"],
                    ingress=list(ingress),
                    egress=list(egress),
                ),
                opts=own,
            )

        policy("default-deny", {})
        for service in args.services:
            ingress = []
            if service.port is not None:
                ingress.append(NetworkPolicyIngressRuleArgs(ports=[_port(service.port)]))
            if service.ops != service.port:
                ops = NetworkPolicyIngressRuleArgs(from_=[_ANY_POD], ports=[_port(service.ops)])
                ingress.append(ops)
            needs = (*args.store_ports, *(API_SERVER if service.token else ()))
            egress = NetworkPolicyEgressRuleArgs(ports=[*_DNS, *map(_port, needs)])
            policy(service.name, labels(service.name), ingress, [egress])
        self.register_outputs({})


def _port(number: int) -> NetworkPolicyPortArgs:
    return NetworkPolicyPortArgs(port=number, protocol="TCP")
