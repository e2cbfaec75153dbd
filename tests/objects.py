"""Objects, and links that are theirs."""

from dataclasses import replace
from typing import Any

from shortlink.links.lifecycle import Restore
from shortlink.links.model import Link
from shortlink.links.policy import DAY
from shortlink.store.port import Claim
from shortlink_operator.kinds import ShortLink
from shortlink_operator.plan import actor
from tests.samples import NOW, TARGET, a_link

KEY = "ann/promo"
BY = actor(KEY)


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
