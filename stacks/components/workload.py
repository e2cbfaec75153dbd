"""One service in a cluster: its Deployment, its Service, its disruption budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
from pulumi_kubernetes.apps.v1 import (
    Deployment,
    DeploymentSpecArgs,
    DeploymentStrategyArgs,
    RollingUpdateDeploymentArgs,
)
from pulumi_kubernetes.core import v1 as core
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs
from pulumi_kubernetes.policy.v1 import PodDisruptionBudget, PodDisruptionBudgetSpecArgs

from stacks.outputs import PlatformOutputs
from stacks.services import Service, labels

USER = 65532
"""Who runs in a pod: a number, so that a kubelet can tell that it is not root."""


@dataclass(frozen=True, slots=True)
class WorkloadArgs:
    """Arguments of Workload.

    service: what it is called, and its ports.
    platform: the platform stack's outputs.
    image: what it runs; its entry point is the `shortlink` command.
    memory: what it is sure to have, such as 64Mi.
    memory_limit: where it is killed. There is no limit of processor time, which would delay
        redirects while the node idles.
    dns_policy: Default takes the node's resolver, ClusterFirst the cluster's.
    replicas: 2 by default, so that one can go. With more than one there is a disruption budget,
        which keeps one.
    node_port: the port of every node at which it is reached; None (default) for a ClusterIP.
    arguments: for its command, after its name and `--host`; none by default.
    environment: variables of its own; none by default.
    volumes: by the path where they are mounted; none by default.
    first: what `shortlink` is given in an init container, before the service starts; by default
        there is no such container.
    """

    service: Service
    platform: PlatformOutputs
    image: str
    memory: str
    memory_limit: str
    dns_policy: str
    replicas: int = 2
    node_port: int | None = None
    arguments: Sequence[str] = ()
    environment: Sequence[core.EnvVarArgs] = ()
    volumes: Mapping[str, core.VolumeArgs] = field(default_factory=dict)
    first: Sequence[str] = ()


class Workload(pulumi.ComponentResource):
    """A service that is restricted, spread over nodes, and replaced without a gap.

    Its pods have no preStop hook: on SIGTERM the service itself turns unready, goes on serving
    while the nodes hear of it, and ends within the grace period.
    """

    def __init__(self, args: WorkloadArgs, opts: pulumi.ResourceOptions) -> None:
        name = args.service.name
        super().__init__("shortlink:apps:Workload", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        metadata = ObjectMetaArgs(name=name, namespace=args.platform.namespace, labels=labels(name))
        selector = LabelSelectorArgs(match_labels=labels(name))
        Deployment(
            name,
            metadata=metadata,
            spec=DeploymentSpecArgs(
                replicas=args.replicas,
                revision_history_limit=3,
                progress_deadline_seconds=120,
                strategy=DeploymentStrategyArgs(
                    type="RollingUpdate",
                    rolling_update=RollingUpdateDeploymentArgs(max_unavailable=0, max_surge=1),
                ),
                selector=selector,
                template=core.PodTemplateSpecArgs(
                    metadata=ObjectMetaArgs(
                        labels=labels(name),
                        annotations={"shortlink/configuration": args.platform.checksum},
                    ),
                    spec=_pod(args, selector),
                ),
            ),
            opts=own,
        )
        if args.service.port is not None:
            port = core.ServicePortArgs(
                name="http",
                port=args.service.port,
                target_port="http",
                node_port=args.node_port,
            )
            core.Service(
                name,
                metadata=metadata,
                spec=core.ServiceSpecArgs(
                    type="ClusterIP" if args.node_port is None else "NodePort",
                    selector=labels(name),
                    ports=[port],
                ),
                opts=own,
            )
        if args.replicas > 1:
            PodDisruptionBudget(
                name,
                metadata=metadata,
                spec=PodDisruptionBudgetSpecArgs(
                    min_available=1,
                    selector=selector,
                    # Pods that don't serve anyway must not keep a node from being drained.
                    unhealthy_pod_eviction_policy="AlwaysAllow",
                ),
                opts=own,
            )
        self.register_outputs({})


def _pod(args: WorkloadArgs, selector: LabelSelectorArgs) -> core.PodSpecArgs:
    name = args.service.name
    return core.PodSpecArgs(
        service_account_name=name,
        automount_service_account_token=args.service.token,
        enable_service_links=False,  # else every Service adds variables such as API_PORT
        dns_policy=args.dns_policy,
        termination_grace_period_seconds=30,
        security_context=core.PodSecurityContextArgs(
            run_as_non_root=True,
            run_as_user=USER,
            run_as_group=USER,
            fs_group=USER,
            seccomp_profile=core.SeccompProfileArgs(type="RuntimeDefault"),
        ),
        topology_spread_constraints=[
            core.TopologySpreadConstraintArgs(
                max_skew=1,
                topology_key=key,
                when_unsatisfiable="ScheduleAnyway",
                label_selector=selector,
                match_label_keys=["pod-template-hash"],
            )
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
        init_containers=[_container(args, args.first[0], args.first)] if args.first else None,
        containers=[_main_container(args)],
        volumes=list(args.volumes.values()),
    )


def _main_container(args: WorkloadArgs) -> core.ContainerArgs:
    service = args.service
    arguments = [service.name, "--host", "0.0.0.0", *args.arguments]  # noqa: S104 (of its pod)
    container = _container(args, service.name, arguments)
    ports = {"http": service.port, "ops": service.ops}
    container.ports = [
        core.ContainerPortArgs(name=name, container_port=port, protocol="TCP")
        for name, port in ports.items()
        if port is not None and (name == "http" or port != service.port)
    ]
    # An instance that fails gets no more visitors after two readiness probes and the endpoints'
    # way to every node: under 10 s (M2).
    container.startup_probe = _probe(service, "/healthz", every=1, failures=60)
    container.readiness_probe = _probe(service, "/readyz", every=2, failures=2)
    container.liveness_probe = _probe(service, "/healthz", every=10, failures=3)
    return container


def _container(args: WorkloadArgs, name: str, arguments: Sequence[str]) -> core.ContainerArgs:
    settings, connections = args.platform.settings, args.platform.connections
    return core.ContainerArgs(
        name=name,
        args=list(arguments),
        image=args.image,
        image_pull_policy="IfNotPresent",
        env=list(args.environment),
        env_from=[
            core.EnvFromSourceArgs(config_map_ref=core.ConfigMapEnvSourceArgs(name=settings)),
            core.EnvFromSourceArgs(secret_ref=core.SecretEnvSourceArgs(name=connections)),
        ],
        resources=core.ResourceRequirementsArgs(
            requests={"cpu": "25m", "memory": args.memory}, limits={"memory": args.memory_limit}
        ),
        security_context=core.SecurityContextArgs(
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=core.CapabilitiesArgs(drop=["ALL"]),
        ),
        volume_mounts=[
            core.VolumeMountArgs(name=volume.name, mount_path=path)
            for path, volume in args.volumes.items()
        ],
    )


def _probe(service: Service, path: str, every: int, failures: int) -> core.ProbeArgs:
    """Asks each `every` s and gives an answer 2 s."""
    return core.ProbeArgs(
        http_get=core.HTTPGetActionArgs(path=path, port=service.health),
        period_seconds=every,
        timeout_seconds=2,
        failure_threshold=failures,
    )
