"""What services are told: their environment, and the file of API keys."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
from pulumi_kubernetes.core.v1 import ConfigMap, Secret
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs

KEYS_FILE = "keys.json"
"""The name of the file in the Secret of API keys."""


@dataclass(frozen=True, slots=True)
class ConfigurationArgs:
    """Arguments of Configuration.

    namespace: where it goes.
    region: this region's name, also its data centre's in the store.
    base_url: what short URLs begin with.
    own_hosts: more hosts at which links may not point, with commas between them, or None.
    store: the store's address. Secret, for it may have a password in it.
    cache: this region's shared cache, secret for the same reason, or None.
    api_keys: the content of the file of hashed API keys.
    """

    namespace: pulumi.Input[str]
    region: str
    base_url: str
    own_hosts: str | None
    store: pulumi.Output[str]
    cache: pulumi.Output[str] | None
    api_keys: pulumi.Output[str]


class Configuration(pulumi.ComponentResource):
    """A ConfigMap, a Secret of addresses, a Secret of API keys, and a checksum of all three."""

    settings = "settings"
    connections = "connections"
    api_keys = "api-keys"

    def __init__(self, name: str, args: ConfigurationArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__("shortlink:platform:Configuration", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)

        def metadata(what: str) -> ObjectMetaArgs:
            return ObjectMetaArgs(name=what, namespace=args.namespace)

        settings = {"SHORTLINK_REGION": args.region, "SHORTLINK_BASE_URL": args.base_url}
        if args.own_hosts is not None:
            settings["SHORTLINK_OWN_HOSTS"] = args.own_hosts
        connections = {"SHORTLINK_STORE": args.store}
        if args.cache is not None:
            connections["SHORTLINK_CACHE"] = args.cache
        keys = {KEYS_FILE: args.api_keys}
        ConfigMap(self.settings, metadata=metadata(self.settings), data=settings, opts=own)
        for what, content in ((self.connections, connections), (self.api_keys, keys)):
            Secret(what, metadata=metadata(what), string_data=content, opts=own)
        # In clear: the API keys' digests in it, which nobody can guess, keep the rest from
        # being guessed.
        self.checksum: pulumi.Output[str] = pulumi.Output.unsecret(
            pulumi.Output.all(settings, connections, keys).apply(_checksum)
        )
        self.register_outputs({"checksum": self.checksum})


def _checksum(content: list[Mapping[str, str]]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
