"""The apps layer: the services, on a platform that is there."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from pulumi_kubernetes.core import v1 as core

from stacks import providers
from stacks.components.configuration import KEYS_FILE
from stacks.components.workload import Workload, WorkloadArgs
from stacks.names import Kind, Stack
from stacks.outputs import PlatformOutputs
from stacks.services import API, OPERATOR, REDIRECT
from stacks.settings import apps_settings

_KEYS: Final = "/etc/shortlink"
_AUDIT: Final = "/var/lib/shortlink"

_DNS_POLICY: Final[Mapping[Kind, str]] = {
    "local": "Default",  # there is no DNS in those clusters
    "own": "ClusterFirst",
}


def deploy_apps(stack: Stack) -> None:
    """Redirects, API and operator. Raises RunError for wrong settings and a missing platform."""
    settings = apps_settings()
    here = providers.cluster(stack, settings.cluster)
    platform = PlatformOutputs.of(stack)
    workload = partial(
        WorkloadArgs,
        platform=platform,
        image=settings.image,
        dns_policy=_DNS_POLICY[stack.kind],
    )
    Workload(
        workload(
            service=REDIRECT,
            node_port=settings.node_ports.get(REDIRECT.name),
            memory="64Mi",
            memory_limit="160Mi",
        ),
        here,
    )
    keys = core.SecretVolumeSourceArgs(secret_name=platform.api_keys, default_mode=0o440)
    Workload(
        workload(
            service=API,
            node_port=settings.node_ports.get(API.name),
            memory="96Mi",
            memory_limit="192Mi",
            environment=[core.EnvVarArgs(name="SHORTLINK_KEYS_FILE", value=f"{_KEYS}/{KEYS_FILE}")],
            volumes={_KEYS: core.VolumeArgs(name="api-keys", secret=keys)},
        ),
        here,
    )
    pod = core.EnvVarSourceArgs(field_ref=core.ObjectFieldSelectorArgs(field_path="metadata.name"))
    audit = core.EmptyDirVolumeSourceArgs(size_limit="1Gi")
    Workload(
        workload(
            service=OPERATOR,  # one of the two is at work, the other waits for its Lease
            memory="128Mi",
            memory_limit="320Mi",
            environment=[core.EnvVarArgs(name="SHORTLINK_OPERATOR_NAME", value_from=pod)],
            volumes={_AUDIT: core.VolumeArgs(name="audit", empty_dir=audit)},
            # Makes what the store lacks. Repeated, and in all regions at once, it does no harm;
            # the other services aren't ready until the store is.
            first=["prepare"],
        ),
        here,
    )
