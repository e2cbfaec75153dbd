"""What goes over the wire: bodies as callers send them, links as they are shown."""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from shortlink.links.instants import format_instant, parse_instant
from shortlink.links.lifecycle import KEEP, Actor, Create, Edit, Keep, settled, shown_state
from shortlink.links.model import Link, State, as_metadata
from shortlink.links.policy import Policy
from shortlink.links.refusal import Refusal, Refused

T = TypeVar("T")

Instant = Annotated[
    str | None,
    Field(description="RFC 3339 with an offset; null is never", examples=["2027-01-31T12:00:00Z"]),
]
RedirectType = Annotated[
    Literal[301, 302], Field(description="301 needs a link that never expires (R1)")
]


class _Body(BaseModel):
    """A field that is absent is left alone, which null may not be: `given()` tells."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def given(self, field: str, value: T) -> T | Keep:
        """`value` if the caller sent `field`, else KEEP."""
        return value if field in self.model_fields_set else KEEP


class _Expiring(_Body):
    expires_at: Instant = None

    def expiry(self) -> int | Keep | None:
        """Milliseconds, None for never, or KEEP when absent. Raises Refused."""
        if "expires_at" not in self.model_fields_set:
            return KEEP
        if self.expires_at is None:
            return None
        at = parse_instant(self.expires_at)
        if isinstance(at, Refusal):
            raise Refused(at)
        return at


class NewLink(_Expiring):
    """A link to be made. Without `expires_at` it lives for the platform's default (W4)."""

    long_url: str = Field(examples=["https://example.com/a?b=c"])
    custom_alias: str | None = None
    redirect_type: RedirectType = 302
    tags: list[str] = []
    metadata: dict[str, str] = {}
    take_back: bool = Field(False, description="take a freed alias that was yours before (L3)")

    def command(self, by: Actor, token: str) -> Create:
        """The domain's command; `code` is empty when it is to be drawn. Raises Refused."""
        return Create(
            by=by,
            code=self.custom_alias or "",
            target=self.long_url,
            token=token,
            custom=self.custom_alias is not None,
            expires_at=self.expiry(),
            permanent=self.redirect_type == 301,
            take_back=self.take_back,
            tags=tuple(self.tags),
            metadata=as_metadata(self.metadata),
        )


class Changes(_Expiring):
    """New values for a link; fields that are absent stay as they are."""

    long_url: str = ""
    redirect_type: RedirectType = 302
    tags: list[str] = []
    metadata: dict[str, str] = {}

    def command(self, by: Actor) -> Edit:
        """The domain's command. Raises Refused."""
        return Edit(
            by=by,
            target=self.given("long_url", self.long_url),
            expires_at=self.expiry(),
            permanent=self.given("redirect_type", self.redirect_type == 301),
            tags=self.given("tags", tuple(self.tags)),
            metadata=self.given("metadata", as_metadata(self.metadata)),
        )


class Restoration(_Expiring):
    """What a restored link needs: a new expiry, if it had expired."""


class Verdict(_Body):
    """Why an administrator disables a link (W6)."""

    why: str


class LinkView(BaseModel):
    """A link as its owner sees it."""

    short_url: str
    code: str
    long_url: str
    created_at: str
    expires_at: str | None
    redirect_type: Literal[301, 302]
    state: str
    restorable_until: str | None
    disabled_because: str | None
    owner: str
    generation: int
    version: int
    tags: list[str]
    metadata: dict[str, str]
    custom: bool


def view(link: Link, policy: Policy, now: int, base_url: str) -> LinkView:
    """`link` as it is at `now` by the clock, whether or not a sweeper has run."""
    settled_link = settled(link, policy, now)
    restorable_until = None
    if settled_link.state is State.TOMBSTONED and settled_link.tombstoned_at is not None:
        restorable_until = format_instant(settled_link.tombstoned_at + policy.grace)
    return LinkView(
        short_url=f"{base_url}/{link.code}",
        code=link.code,
        long_url=link.target,
        created_at=format_instant(link.created_at),
        expires_at=None if link.expires_at is None else format_instant(link.expires_at),
        redirect_type=301 if link.permanent else 302,
        state=shown_state(link, policy, now),
        restorable_until=restorable_until,
        disabled_because=link.disabled,
        owner=link.owner,
        generation=link.generation,
        version=link.version,
        tags=list(link.tags),
        metadata=dict(link.metadata),
        custom=link.custom,
    )
