"""How long things last, and what may be pointed at. Durations are milliseconds."""

from dataclasses import dataclass

import ada_url

from shortlink.links.refusal import Reason, Refusal

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY

CACHE_BOUND = 5 * SECOND
"""No cache of ours serves an entry longer than this after its store read began."""

EDGE_BOUND = 10 * SECOND
"""The longest that a shared cache in front of us is allowed to keep a redirect (K2)."""

STALE_BOUND = CACHE_BOUND + EDGE_BOUND
"""After this long nothing that was read before a change is served anywhere: L5's bound."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The platform's rules for links; the defaults are the requirements' own.

    `default_ttl`: life of a link that names no expiry (W4). `grace`: how long a tombstoned
    link can be restored (L1). `quarantine`: from the tombstone until the code may be issued
    again; 0 frees it as soon as the grace is over (L3). `reclaim`: whether codes are ever
    freed (L3). `expiring_ahead`: how long before its expiry a link is announced (L1).
    `own_hosts`: hosts (`host` or `host:port`, as the URL Standard writes them) that links
    may not point at (P2). `brake_links` and `brake_share`: more deletions than both within
    `brake_window` in a namespace, or a cluster, wait for a person (the mass-deletion brake).
    """

    default_ttl: int = 5 * YEAR
    grace: int = 30 * DAY
    quarantine: int = YEAR
    reclaim: bool = True
    expiring_ahead: int = DAY
    own_hosts: frozenset[str] = frozenset()
    brake_links: int = 10
    brake_share: float = 0.2
    brake_window: int = 5 * MINUTE


def _is_canonical(host: str) -> bool:
    try:
        url = ada_url.URL(f"http://{host}/")
    except ValueError:
        return False
    return host in (url.hostname, f"{url.hostname}:{url.port or 80}")


def check_policy(policy: Policy, *, production: bool) -> Refusal | None:
    """The first thing wrong with `policy`, or None. In production the grace has a floor (L1)."""

    def wrong(field: str, message: str) -> Refusal:
        return Refusal(Reason.INVALID_POLICY, message, field)

    if policy.default_ttl <= 0:
        return wrong("default_ttl", "default_ttl must be positive")
    if production and policy.grace < DAY:
        return wrong("grace", "grace is under 24 hours: owners need a day to restore a link")
    if policy.grace < STALE_BOUND:
        return wrong(
            "grace", f"grace is under {STALE_BOUND} ms: a cache could still hold the link then"
        )
    if policy.quarantine != 0 and policy.quarantine < policy.grace:
        return wrong(
            "quarantine",
            "quarantine counts from the tombstone, so it can't be shorter than grace;"
            " make it longer, or 0s to free codes when the grace ends",
        )
    if policy.expiring_ahead < 0:
        return wrong("expiring_ahead", "expiring_ahead can't be negative")
    if policy.brake_links < 0 or not 0 <= policy.brake_share <= 1 or policy.brake_window <= 0:
        return wrong(
            "brake", "brake_links can't be negative, brake_share is 0 to 1, brake_window positive"
        )
    for host in sorted(policy.own_hosts):
        if not _is_canonical(host):
            return wrong("own_hosts", f"{host!r} must be a host or host:port as browsers write it")
    return None
