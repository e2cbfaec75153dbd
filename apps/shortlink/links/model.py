"""A link: (code, generation, version), its stored states, and the events it leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Stored states. Expiring and expired are derived from the clock, never stored."""

    ACTIVE = "active"
    DISABLED = "disabled"
    TOMBSTONED = "tombstoned"
    QUARANTINED = "quarantined"
    FREE = "free"


LIVE = frozenset({State.ACTIVE, State.DISABLED})


class Cause(StrEnum):
    """Why a link was tombstoned."""

    DELETED = "deleted"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One code in the hands of one owner.

    A new owner of a code is a new `generation`; each change is a new `version` within it.
    Times are milliseconds since the Unix epoch. `token` is the creator's and stays for the
    whole generation. `claim` is the `namespace/name` of the object that owns the link; None
    for links made by the API. `disabled` says why a link was disabled and outlives a
    tombstone, so that a restore can't bring back a link that was banned. `former` are the owners
    of earlier generations, to whom the code doesn't go back unasked (L3).
    """

    code: str
    generation: int
    version: int
    state: State
    owner: str
    target: str
    permanent: bool
    custom: bool
    created_at: int
    changed_at: int
    expires_at: int | None
    token: str
    claim: str | None = None
    tombstoned_at: int | None = None
    cause: Cause | None = None
    disabled: str | None = None
    tags: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()
    former: tuple[str, ...] = ()

    @property
    def stamp(self) -> tuple[int, int]:
        """(generation, version): of two values of one code, the greater stamp is newer."""
        return (self.generation, self.version)


def as_metadata(pairs: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Metadata in the order of its keys, so that equal mappings make equal links."""
    return tuple(sorted(pairs.items()))


class EventKind(StrEnum):
    """What happened to a link, as the event stream tells it (N1)."""

    CREATED = "created"
    EDITED = "edited"
    EXPIRING = "expiring"
    TOMBSTONED = "tombstoned"
    RESTORED = "restored"
    DISABLED = "disabled"
    ENABLED = "enabled"
    QUARANTINED = "quarantined"
    FREED = "freed"


@dataclass(frozen=True, slots=True)
class Event:
    """A fact for the stream. A repeated event carries the same `id` (at least once)."""

    id: str
    kind: EventKind
    code: str
    generation: int
    version: int
    at: int
    owner: str
    target: str


def event(kind: EventKind, link: Link, at: int) -> Event:
    """The event that `link` became what it is; its id follows from code, stamp and kind."""
    return Event(
        id=f"{link.code}.{link.generation}.{link.version}.{kind}",
        kind=kind,
        code=link.code,
        generation=link.generation,
        version=link.version,
        at=at,
        owner=link.owner,
        target=link.target,
    )
