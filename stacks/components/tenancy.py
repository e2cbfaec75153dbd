"""The namespace, and the service accounts in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_kubernetes.core.v1 import Namespace, ServiceAccount
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs


@dataclass(frozen=True, slots=True)
class TenancyArgs:
    """Arguments of Tenancy.

    namespace: its name.
    accounts: a service account for each of these names.
    """

    namespace: str
    accounts: Sequence[str]


class Tenancy(pulumi.ComponentResource):
    """A namespace that refuses pods which are not restricted, and an account for each service.

    No pod gets a token by its account alone: the one service that asks things of the API server
    says so itself, and what it may ask is spelled out in `permissions`.
    """

    def __init__(self, name: str, args: TenancyArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__("shortlink:platform:Tenancy", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        namespace = Namespace(
            args.namespace,
            metadata=ObjectMetaArgs(
                name=args.namespace,
                labels={
                    "app.kubernetes.io/part-of": "shortlink",
                    "pod-security.kubernetes.io/enforce": "restricted",
                    "pod-security.kubernetes.io/enforce-version": "latest",
                },
            ),
            opts=own,
        )
        self.namespace: pulumi.Output[str] = namespace.metadata.apply(lambda made: str(made.name))
        for account in args.accounts:
            ServiceAccount(
                account,
                metadata=ObjectMetaArgs(name=account, namespace=self.namespace),
                automount_service_account_token=False,
                opts=own,
            )
        self.register_outputs({"namespace": self.namespace})
