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

DRAIN_SECONDS: Final = 5.0
"""Until every node of a cluster has heard that a pod gets no more visitors."""

_DRAIN_MOST: Final = 300.0
_AUDIT_LOG: Final = "/var/lib/shortlink/audit.jsonl"

_STORE: Final = re.compile(r"(sqlite:///|postgresql://|cassandra://).+")
_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


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
    return Settings(store, _cache(environ), region, _drain(environ))


def read_api_settings(environ: Mapping[str, str]) -> ApiSettings:
    """What the API needs besides."""
    base_url = _needed(environ, BASE_URL, "what short links begin with, as https://s.example")
    listed = (host.strip() for host in environ.get(OWN_HOSTS, "").split(","))
    own_hosts = frozenset(host for host in listed if host)
    if refusal := check_policy(Policy(own_hosts=own_hosts), production=True):
        raise WrongSetting(OWN_HOSTS, f"can't be used: {refusal.message}")
    keys_file = _needed(environ, KEYS_FILE, "the path of the file of API keys")
    return ApiSettings(base_url.rstrip("/"), own_hosts | {_host_of(base_url)}, Path(keys_file))


def read_audit_log(environ: Mapping[str, str]) -> Path:
    """Where the worker appends what happened to links."""
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


def _drain(environ: Mapping[str, str]) -> float:
    value = environ.get(DRAIN)
    if not value:
        return DRAIN_SECONDS
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _DRAIN_MOST:
        raise WrongSetting(DRAIN, f"is {value[:20]!r}; set it to seconds, 0 to {_DRAIN_MOST:.0f}")
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
