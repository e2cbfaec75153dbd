"""A stack's configuration: read once, typed, checked. Every error names its key and a remedy."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import pulumi
import yaml

from stacks.names import Stack
from stacks.services import API, REDIRECT, Service

NODE_PORTS: Final = range(30000, 32768)
"""Kubernetes' default: https://kubernetes.io/docs/concepts/services-networking/service/"""

_STORE: Final = re.compile(r"cassandra://[^/\s]+/\w+")
_CACHE: Final = re.compile(r"rediss?://(?:[^@/\s]*@)?[^@:/\s]+(?::(\d{1,5}))?(?:/\d*)?")
_BASE_URL: Final = re.compile(r"https?://[^/?#@\s]+")
_HOSTS: Final = re.compile(r"[^\s,/@]+(,[^\s,/@]+)*")
_IMAGE: Final = re.compile(r"\S+(?:@sha256:[0-9a-f]{64}|:(?!latest$)[\w.-]+)")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where a layer goes: to the cluster of `kubeconfig` or, as files, to the folder `render`.

    kubeconfig: `shortlink:kubeconfig`, secret: the file's content. Its current context is used.
    render: `shortlink:render`, an absolute path. Manifests have secrets in clear, also there.
    """

    kubeconfig: pulumi.Output[str] | None
    render: str | None


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    """The platform layer's settings.

    store: `shortlink:store`, cassandra://REGION=HOST,.../KEYSPACE, with this stack's region.
    cache: `shortlink:cache`, redis://HOST:PORT in this region. Without it (default) there is no
        shared cache, only each process's own.
    base_url: `shortlink:base-url`, what short URLs begin with.
    own_hosts: `shortlink:own-hosts`, hosts or host:port with commas between them, at which links
        may not point besides base_url's: other regions', if they have their own. None by default.
    api_keys: `shortlink:api-keys`, secret: the content of the file of hashed API keys.
    """

    cluster: ClusterSettings
    store: pulumi.Output[str]
    cache: pulumi.Output[str] | None
    cache_port: int
    base_url: str
    own_hosts: str | None
    api_keys: pulumi.Output[str]


@dataclass(frozen=True, slots=True)
class AppsSettings:
    """The apps layer's settings.

    image: `shortlink:image`, with a tag or a digest that stays what it is.
    node_ports: `shortlink:redirect-node-port` and `shortlink:api-node-port`, by service name. A
        service without (default) is a ClusterIP, for your ingress or load balancer to reach.
    """

    cluster: ClusterSettings
    image: str
    node_ports: Mapping[str, int]


def platform_settings(stack: Stack) -> PlatformSettings:
    """Read the platform layer's settings. Raises RunError for the first that won't do."""
    store = _Key("store", f"pulumi config set store cassandra://{stack.region}=HOST,.../links")
    address = store.required()
    if not _STORE.fullmatch(address):
        raise store.wrong("is no cassandra://REGION=HOST,.../KEYSPACE")
    if not re.search(rf"[/,@]{re.escape(stack.region)}=", address):
        raise store.wrong(f"has no data centre {stack.region}, and every region has its own")
    cache = _Key("cache", "pulumi config set cache redis://HOST:6379")
    redis = _CACHE.fullmatch(cache.text() or "redis://none")
    if redis is None:
        raise cache.wrong("is no redis://HOST:PORT or rediss://HOST:PORT")
    base_url = _Key("base-url", "pulumi config set base-url https://HOST")
    if not _BASE_URL.fullmatch(base_url.required()):
        raise base_url.wrong("is no http(s)://HOST without user, path and query")
    own_hosts = _Key("own-hosts", "pulumi config set own-hosts HOST,HOST:PORT")
    if not _HOSTS.fullmatch(own_hosts.text() or "none"):
        raise own_hosts.wrong("is no HOST or HOST:PORT, or several with commas between them")
    api_keys = _Key("api-keys", "pulumi config set --secret api-keys < FILE")
    return PlatformSettings(
        cluster=_cluster(),
        store=store.address(),
        cache=None if cache.text() is None else cache.address(),
        cache_port=int(redis[1] or 6379),
        base_url=base_url.required(),
        own_hosts=own_hosts.text(),
        api_keys=api_keys.secret(),
    )


def apps_settings() -> AppsSettings:
    """Read the apps layer's settings. Raises RunError for the first that won't do."""
    image = _Key("image", "pulumi config set image REGISTRY/shortlink:TAG")
    if not _IMAGE.fullmatch(image.required()):
        raise image.wrong("has no tag or digest that stays what it is (`latest` does not)")
    ports = {service.name: _node_port(service) for service in (REDIRECT, API)}
    return AppsSettings(
        cluster=_cluster(),
        image=image.required(),
        node_ports={name: port for name, port in ports.items() if port is not None},
    )


def _cluster() -> ClusterSettings:
    kubeconfig = _Key(
        "kubeconfig",
        "kubectl config view --minify --flatten --context CONTEXT"
        " | pulumi config set --secret kubeconfig",
    )
    render = _Key("render", 'pulumi config set render "$PWD/FOLDER"')
    folder = render.text()
    if folder is not None:
        if kubeconfig.text() is not None:
            raise kubeconfig.wrong(
                "is set beside shortlink:render, and only one of them can be meant",
                "pulumi config rm render, or pulumi config rm kubeconfig",
            )
        if not PurePath(folder).is_absolute():
            raise render.wrong("is no absolute path")
        return ClusterSettings(None, folder)
    # The provider reads anything else as the path of a file, which may be another one tomorrow.
    try:
        content = yaml.safe_load(kubeconfig.required())
    except yaml.YAMLError:
        content = None
    if not isinstance(content, dict) or not content.get("current-context"):
        raise kubeconfig.wrong("is not the content of a kubeconfig with a current context")
    return ClusterSettings(kubeconfig.secret(), None)


def _node_port(service: Service) -> int | None:
    key = _Key(f"{service.name}-node-port", f"pulumi config set {service.name}-node-port 30080")
    text = key.text()
    if text is None:
        return None
    if not text.isdecimal() or int(text) not in NODE_PORTS:
        raise key.wrong(f"is no port from {NODE_PORTS[0]} to {NODE_PORTS[-1]}")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Key:
    """One setting. `remedy` is the command that sets it."""

    name: str
    remedy: str

    @property
    def full(self) -> str:
        return f"shortlink:{self.name}"

    def wrong(self, what: str, remedy: str | None = None) -> pulumi.RunError:
        """The error that says so. The value, which may be secret, is not in it."""
        return pulumi.RunError(f"{self.full} {what}; run: {remedy or self.remedy}")

    def text(self) -> str | None:
        """The setting; None when it is absent or blank."""
        return str(pulumi.runtime.get_config(self.full) or "").strip() or None

    def required(self) -> str:
        text = self.text()
        if text is None:
            raise self.wrong("is not set")
        return text

    def secret(self) -> pulumi.Output[str]:
        """The setting as a secret, refused when it lies in clear in the stack's file."""
        text = self.required()
        if not pulumi.runtime.is_config_secret(self.full):
            raise self.wrong("is secret, and lies in clear in the stack's file")
        return pulumi.Output.secret(text)

    def address(self) -> pulumi.Output[str]:
        """The setting, which has to be secret only when it has a user or a password in it."""
        text = self.required()
        if "@" in text and not pulumi.runtime.is_config_secret(self.full):
            raise self.wrong(
                "has a password in it, and lies in clear in the stack's file",
                f"pulumi config set --secret {self.name}",
            )
        return pulumi.Output.secret(text)
