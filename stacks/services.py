"""The services that run in a region, and the ports at which they are reached."""

from dataclasses import dataclass
from typing import Final

NAMESPACE: Final = "shortlink"

CASSANDRA: Final = 9042
API_SERVER: Final = (443, 6443)
"""The port of its Service, and those at which API servers listen: 443 as well, or kubeadm's."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service, and so one Deployment and one service account, of that name.

    `port` is for its callers, None when it has none. `ops` has its metrics. `health` answers
    /readyz and /healthz. `token`: it asks things of the API server, so its pods have its
    account's token.
    """

    name: str
    port: int | None
    ops: int
    health: int
    token: bool = False


REDIRECT: Final = Service("redirect", port=8080, ops=8082, health=8080)
API: Final = Service("api", port=8081, ops=8081, health=8081)
OPERATOR: Final = Service("operator", port=None, ops=8082, health=8082, token=True)

SERVICES: Final = (REDIRECT, API, OPERATOR)


def labels(name: str) -> dict[str, str]:
    """What the pods of a service are known by."""
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "shortlink"}
