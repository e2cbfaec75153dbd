"""What the operator and people may do with objects in the cluster."""

from dataclasses import dataclass
from typing import Final

import pulumi
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs
from pulumi_kubernetes.rbac.v1 import (
    ClusterRole,
    ClusterRoleBinding,
    PolicyRuleArgs,
    Role,
    RoleBinding,
    RoleRefArgs,
    SubjectArgs,
)

_GROUP: Final = "shortlink.platform"
_LEASES: Final = "coordination.k8s.io"
_RBAC: Final = "rbac.authorization.k8s.io"

LEASE: Final = "operator"
SWITCHES: Final = "operator-switches"
"""The ConfigMap by which people pause parts of the operator."""


@dataclass(frozen=True, slots=True)
class PermissionsArgs:
    """Arguments of Permissions.

    namespace: where the operator runs.
    account: its service account there.
    """

    namespace: pulumi.Input[str]
    account: str


class Permissions(pulumi.ComponentResource):
    """The operator's rights, each verb named; and people's, as part of Kubernetes' own roles.

    Whoever has `view` in a namespace sees its ShortLinks, whoever has `edit` or `admin` (which
    contain the smaller ones) writes them. A LinkPolicy, which holds for all of a cluster, is its
    administrators' to write, and status the operator's alone.
    """

    def __init__(self, name: str, args: PermissionsArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__("shortlink:platform:Permissions", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)

        def people(role: str, rules: list[PolicyRuleArgs]) -> None:
            labels = {f"{_RBAC}/aggregate-to-{role}": "true"}
            metadata = ObjectMetaArgs(name=f"shortlink-{role}", labels=labels)
            ClusterRole(f"shortlink-{role}", metadata=metadata, rules=rules, opts=own)

        people("view", [_rule(_GROUP, "shortlinks linkpolicies", "get list watch")])
        people("edit", [_rule(_GROUP, "shortlinks", "create update patch delete deletecollection")])

        account = SubjectArgs(kind="ServiceAccount", name=args.account, namespace=args.namespace)
        everywhere = ObjectMetaArgs(name=f"shortlink-{args.account}")
        ClusterRole(
            args.account,
            metadata=everywhere,
            rules=[
                _rule(_GROUP, "shortlinks", "get list watch patch"),
                _rule(_GROUP, "linkpolicies", "get list watch"),
                _rule(_GROUP, "shortlinks/status linkpolicies/status", "patch"),
                _rule("events.k8s.io", "events", "create"),
            ],
            opts=own,
        )
        ClusterRoleBinding(
            args.account,
            metadata=everywhere,
            role_ref=_role("ClusterRole", f"shortlink-{args.account}"),
            subjects=[account],
            opts=own,
        )
        at_home = ObjectMetaArgs(name=args.account, namespace=args.namespace)
        Role(
            args.account,
            metadata=at_home,
            rules=[
                # Kubernetes can't limit `create` to a name.
                _rule(_LEASES, "leases", "create"),
                _rule(_LEASES, "leases", "get update", LEASE),
                _rule("", "configmaps", "get", SWITCHES),
            ],
            opts=own,
        )
        RoleBinding(
            args.account,
            metadata=at_home,
            role_ref=_role("Role", args.account),
            subjects=[account],
            opts=own,
        )
        self.register_outputs({})


def _rule(group: str, resources: str, verbs: str, name: str | None = None) -> PolicyRuleArgs:
    return PolicyRuleArgs(
        api_groups=[group],
        resources=resources.split(),
        verbs=verbs.split(),
        resource_names=None if name is None else [name],
    )


def _role(kind: str, name: str) -> RoleRefArgs:
    return RoleRefArgs(api_group=_RBAC, kind=kind, name=name)
