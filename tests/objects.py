"""Objects, and links that are theirs."""

from dataclasses import replace
from typing import Any

from shortlink.links.lifecycle import Restore
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import DAY
from shortlink.store.port import Claim
from shortlink_operator.kinds import ShortLink
from shortlink_operator.plan import actor
from tests.samples import NOW, TARGET, a_link

KEY = "ann/promo"
BY = actor(KEY)

# How a link may stand, and whose a claim may be: changes for `linked()` and `claim_of()`.
GONE = {"state": State.TOMBSTONED, "tombstoned_at": NOW - DAY, "cause": Cause.DELETED}
LAPSED = GONE | {"cause": Cause.EXPIRED, "expires_at": NOW - DAY}
RESTING = GONE | {"state": State.QUARANTINED, "tombstoned_at": NOW - 40 * DAY}
FREE = RESTING | {"state": State.FREE}
BANNED = {"state": State.DISABLED, "disabled": "spam"}
HERE = {"cluster": "here", "uid": "u1"}


def an_object(**changes: Any) -> ShortLink:
    """The object `ann/promo` as its link, `linked()`, already is."""
    wanted = ShortLink(
        key=KEY,
        namespace="ann",
        name="promo",
        target=TARGET,
        code="promo",
        expires_at=NOW + 10 * DAY,
        permanent=False,
        tags=(),
        metadata=(),
        take_back=False,
    )
    return replace(wanted, **changes)


def linked(**changes: Any) -> Link:
    return a_link(claim=KEY, **changes)


def claim_of(link: Link, key: str = KEY, **changes: Any) -> Claim:
    """The claim that announced `link`."""
    return replace(Claim(key, link.code, link.generation, link.token), **changes)


def restoring(wanted: ShortLink) -> Restore:
    """The command that brings the link of `wanted` back as it is wanted."""
    return Restore(
        by=actor(wanted.key),
        target=wanted.target,
        expires_at=wanted.expires_at,
        permanent=wanted.permanent,
        tags=wanted.tags,
        metadata=wanted.metadata,
    )
