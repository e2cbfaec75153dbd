"""Links, actors and a policy that tests begin with."""

from dataclasses import replace
from typing import Any

from shortlink.links.lifecycle import Actor, Create
from shortlink.links.model import Link, State
from shortlink.links.policy import DAY, Policy

NOW = 1_800_000_000_000  # 2027-01-15T08:00:00Z
POLICY = Policy(own_hosts=frozenset({"sho.rt"}))
TARGET = "https://example.com/a"

ANN = Actor("ann")
BOB = Actor("bob")
ROOT = Actor("root", admin=True)
ANNS_OBJECT = Actor("ann", claim="ann/promo")

ACTIVE = Link(
    code="promo",
    generation=1,
    version=1,
    state=State.ACTIVE,
    owner="ann",
    target=TARGET,
    permanent=False,
    custom=True,
    created_at=NOW - 60 * DAY,
    changed_at=NOW - 60 * DAY,
    expires_at=NOW + 10 * DAY,
    token="t1",
)


def a_link(**changes: Any) -> Link:
    """ACTIVE, with other values."""
    return replace(ACTIVE, **changes)


def a_create(**changes: Any) -> Create:
    """Ann's alias `promo`, with other values."""
    wanted = Create(by=ANN, code="promo", target=TARGET, token="t2", custom=True)
    return replace(wanted, **changes)
