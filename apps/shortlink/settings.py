"""The services' settings, from environment variables: each is checked once, at the start.

No message repeats a value that may hold a password.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import ada_url

from shortlink.links.policy import Policy, check_policy
from shortlink.problem import Problem
from shortlink.store.opening import FORMS

STORE: Final = "SHORTLINK_STORE"
CACHE: Final = "SHORTLINK_CACHE"
REGION: Final = "SHORTLINK_REGION"
DRAIN: Final = "SHORTLINK_DRAIN"
BASE_URL: Final = "SHORTLINK_BASE_URL"
OWN_HOSTS: Final = "SHORTLINK_OWN_HOSTS"
KEYS_FILE: Final = "SHORTLINK_KEYS_FILE"
AUDIT_LOG: Final = "SHORTLINK_AUDIT_LOG"
OPERATOR_NAME: Final = "SHORTLINK_OPERATOR_NAME"
NAMESPACE: Final = "SHORTLINK_NAMESPACE"
SWEEP_SECONDS: Final = "SHORTLINK_SWEEP_SECONDS"

DRAIN_SECONDS: Final = 5.0
"""Until every node of a cluster has heard that a pod gets no more visitors."""

_DRAIN_MOST: Final = 300.0
_SWEEP: Final = 300.0
_SWEEP_LEAST: Final = 5.0
_SWEEP_MOST: Final = 3600.0
_AUDIT_LOG: Final = "/var/lib/shortlink/audit.jsonl"

_STORE: Final = re.compile(r"(sqlite:///|postgresql://|cassandra://).+")
_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class WrongSetting(Problem):
    """A variable that can't be used as it is set."""

    def __init__(self, variable: str, wrong: str) -> None:
        super().__init__(f"{variable} {wrong}")


@dataclass(frozen=True, slots=True)
class Settings:
    """What every service needs. `store` and `cache` are addresses and may hold passwords.

    `drain`: seconds that a service goes on serving after it was asked to stop.
    """

    store: str = field(repr=False)
    cache: str | None = field(default=None, repr=False)
    region: str | None = None
    drain: float = DRAIN_SECONDS


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What the API needs besides. `own_hosts` includes the host of `base_url` (P2)."""

    base_url: str
    own_hosts: frozenset[str]
    keys_file: Path


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What the operator needs besides. `region` is the name of its cluster, `own_hosts` includes
    the host of `base_url` (P2), `name` is what it is known by among those of its cluster,
    `namespace` where its Lease and switches are (None: its own), and `sweep` the seconds between
    two comparisons of all objects with the store.
    """

    region: str
    base_url: str
    own_hosts: frozenset[str]
    audit_log: Path
    name: str
    namespace: str | None
    sweep: float


def read_settings(environ: Mapping[str, str]) -> Settings:
    """What every service needs. Raises WrongSetting, as the other readers here do."""
    store = _needed(environ, STORE, FORMS)
    if not _STORE.fullmatch(store):
        raise WrongSetting(STORE, f"is not the address of a store; set it to {FORMS}")
    region = environ.get(REGION) or None
    if region is None and store.startswith("cassandra:"):
        raise WrongSetting(
            REGION, f"is not set, and Cassandra needs it; set it to this region's DC in {STORE}"
        )
    if region is not None and not _REGION.fullmatch(region):
        raise WrongSetting(
            REGION, f"is {region[:70]!r}; set it to a name of a-z, 0-9 and hyphen, as us-east-1"
        )
    drain = _seconds(environ, DRAIN, DRAIN_SECONDS, 0, _DRAIN_MOST)
    return Settings(store, _cache(environ), region, drain)


def read_api_settings(environ: Mapping[str, str]) -> ApiSettings:
    """What the API needs besides."""
    base_url, own_hosts = _site(environ)
    keys_file = _needed(environ, KEYS_FILE, "the path of the file of API keys")
    return ApiSettings(base_url, own_hosts, Path(keys_file))


def read_operator_settings(environ: Mapping[str, str], host_name: str) -> OperatorSettings:
    """What the operator needs besides. It is known by `host_name` unless it has a name."""
    region = _needed(environ, REGION, "the name of the region whose cluster this is")
    base_url, own_hosts = _site(environ)
    namespace = environ.get(NAMESPACE) or None
    if namespace is not None and not _NAMESPACE.fullmatch(namespace):
        raise WrongSetting(
            NAMESPACE, f"is {namespace[:70]!r}; set it to the namespace that the operator runs in"
        )
    return OperatorSettings(
        region,
        base_url,
        own_hosts,
        _audit_log(environ),
        environ.get(OPERATOR_NAME) or host_name,
        namespace,
        _seconds(environ, SWEEP_SECONDS, _SWEEP, _SWEEP_LEAST, _SWEEP_MOST),
    )


def _site(environ: Mapping[str, str]) -> tuple[str, frozenset[str]]:
    """What short links begin with, and the hosts that none may point at."""
    base_url = _needed(environ, BASE_URL, "what short links begin with, as https://s.example")
    listed = (host.strip() for host in environ.get(OWN_HOSTS, "").split(","))
    own_hosts = frozenset(host for host in listed if host)
    if refusal := check_policy(Policy(own_hosts=own_hosts), production=True):
        raise WrongSetting(OWN_HOSTS, f"can't be used: {refusal.message}")
    return base_url.rstrip("/"), own_hosts | {_host_of(base_url)}


def _audit_log(environ: Mapping[str, str]) -> Path:
    """Where the operator appends what happened to links."""
    path = Path(environ.get(AUDIT_LOG) or _AUDIT_LOG)
    if not path.parent.is_dir():
        raise WrongSetting(
            AUDIT_LOG, f"is {path}, and there is no {path.parent}; make it, or set another path"
        )
    return path


def _needed(environ: Mapping[str, str], variable: str, what: str) -> str:
    value = environ.get(variable)
    if not value:
        raise WrongSetting(variable, f"is not set; set it to {what}")
    return value


def _cache(environ: Mapping[str, str]) -> str | None:
    value = environ.get(CACHE)
    if not value:
        return None
    try:
        url = urlsplit(value)
        good = url.scheme in ("redis", "rediss") and bool(url.hostname) and url.port != 0
    except ValueError:  # of the port, or of the brackets around an address
        good = False
    if not good:
        raise WrongSetting(
            CACHE,
            "is not the address of a Redis; set it to redis://HOST:PORT or rediss://HOST:PORT,"
            " or unset it to go without",
        )
    return value


def _seconds(
    environ: Mapping[str, str], variable: str, default: float, least: float, most: float
) -> float:
    value = environ.get(variable)
    if not value:
        return default
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not least <= seconds <= most:
        raise WrongSetting(
            variable, f"is {value[:20]!r}; set it to seconds, {least:.0f} to {most:.0f}"
        )
    return seconds


def _host_of(base_url: str) -> str:
    try:
        url = ada_url.URL(base_url)
    except ValueError:
        url = None
    if url is None or url.protocol not in ("http:", "https:") or base_url.rstrip("/") != url.origin:
        raise WrongSetting(
            BASE_URL,
            "is not http:// or https:// and a host, without path, user or query, as browsers"
            " write it; set it as https://s.example",
        )
    return str(url.host)
