"""The platform layer: what must be there before a service runs."""

from stacks import providers
from stacks.components.configuration import Configuration, ConfigurationArgs
from stacks.components.kinds import Kinds
from stacks.components.permissions import Permissions, PermissionsArgs
from stacks.components.tenancy import Tenancy, TenancyArgs
from stacks.components.traffic import Traffic, TrafficArgs
from stacks.names import Stack
from stacks.outputs import PlatformOutputs
from stacks.services import CASSANDRA, NAMESPACE, OPERATOR, SERVICES
from stacks.settings import platform_settings


def deploy_platform(stack: Stack) -> None:
    """All that services and people need of the cluster. Raises RunError for wrong settings."""
    settings = platform_settings(stack)
    here = providers.cluster(stack, settings.cluster)
    accounts = [service.name for service in SERVICES]
    tenancy = Tenancy("tenancy", TenancyArgs(NAMESPACE, accounts), here)
    Kinds("kinds", here)
    Permissions("permissions", PermissionsArgs(tenancy.namespace, OPERATOR.name), here)
    store_ports = [CASSANDRA, settings.cache_port]
    Traffic("traffic", TrafficArgs(tenancy.namespace, SERVICES, store_ports), here)
    configuration = Configuration(
        "configuration",
        ConfigurationArgs(
            namespace=tenancy.namespace,
            region=stack.region,
            base_url=settings.base_url,
            own_hosts=settings.own_hosts,
            store=settings.store,
            cache=settings.cache,
            api_keys=settings.api_keys,
        ),
        here,
    )
    PlatformOutputs(
        namespace=tenancy.namespace,
        settings=configuration.settings,
        connections=configuration.connections,
        api_keys=configuration.api_keys,
        checksum=configuration.checksum,
    ).export()
