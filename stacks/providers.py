"""The one place where providers are made. Everything else is handed one."""

import pulumi
import pulumi_kubernetes as kubernetes

from stacks.names import Stack
from stacks.settings import ClusterSettings


def cluster(stack: Stack, settings: ClusterSettings) -> pulumi.ResourceOptions:
    """Options that put a component, and all in it, into the cluster (or folder) of `stack`."""
    provider = kubernetes.Provider(
        stack.cluster,
        # Without it, a renewed client certificate would have everything made anew.
        cluster_identifier=stack.cluster,
        kubeconfig=settings.kubeconfig,
        render_yaml_to_directory=settings.render,
        # By default a changed one is deleted and made anew, and pods that start meanwhile fail.
        enable_config_map_mutable=True,
        enable_secret_mutable=True,
    )
    return pulumi.ResourceOptions(providers=[provider])
