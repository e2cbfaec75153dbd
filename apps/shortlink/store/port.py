"""What the platform asks of a store, whatever keeps it (S1, S3, S5).

The contract suite (tests/contract) states each promise as a test; every adapter passes it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shortlink.links.model import Event, Link


@dataclass(frozen=True, slots=True)
class Due:
    """A hint that `code` has to be looked at from `at` on.

    The row decides: a hint may be stale, or there before the row that it is about.
    """

    at: int
    code: str


@dataclass(frozen=True, slots=True)
class Claim:
    """An object's hold on a code: `key` is `namespace/name`.

    It is written before the birth it announces, with the `token` that the birth will carry,
    so a retry after any crash finds its own link instead of making a second one. `cluster` and
    `uid` say whose object it is, both empty where there is no API server; `retain` that its link
    outlives it.
    """

    key: str
    code: str
    generation: int
    token: str
    cluster: str = ""
    uid: str = ""
    retain: bool = False


class StoreError(Exception):
    """The store did not do what was asked; the message says what to do about it."""


class StoreUnavailable(StoreError):
    """It can't answer now (locked, stopped, unreachable): retry later."""


class StoreFull(StoreError):
    """There is no room for the write; reads go on."""


class StoreUnsuitable(StoreError):
    """It can't be used at all: of a newer version, not a store, or not writable."""


class NotFoundHere(StoreUnavailable):
    """Nothing here, and elsewhere was not asked: too many unknown codes already were.

    A redirect may say not found, which no cache may keep; to an owner it would be a guess.
    """


class LinkStore(Protocol):
    """Links, their hints, claims and pending events. All times are milliseconds UTC.

    Every method raises StoreUnavailable when the store can't answer, and every write also
    StoreFull. After either from a write its outcome is unknown; repeating the very same call
    is safe, and its answer tells.
    """

    async def install(self, slot_key: bytes) -> bytes:
        """Keep `slot_key` if none is kept yet; the key in force, which the first writer chose."""

    async def keep_policy(self, region: str, text: str) -> None:
        """Keep `text`, the policy in force in `region`, in the place of an earlier one."""

    async def policies(self) -> Mapping[str, str]:
        """The policy kept last for each region that has one."""

    async def slots(self) -> Collection[int]:
        """The slots in which this process may draw codes; empty when it may draw none."""

    async def create(self, link: Link, events: Sequence[Event], due: Sequence[int]) -> Link:
        """Insert `link` if its code was never used; the link that holds the code now.

        It was inserted, by this call or an earlier one, exactly when the answer carries
        `link`'s token and generation. Events and hints are kept with it.
        """

    async def change(
        self, old: Link, new: Link, events: Sequence[Event], due: Sequence[int]
    ) -> Link:
        """Replace `old` by `new` if the row still has `old`'s stamp; the link as it is now.

        It was replaced, by this call or an earlier one, exactly when the answer equals `new`.
        Raises KeyError when the code has no row.
        """

    async def get(self, code: str) -> Link | None:
        """The link as last written, or None when the code was never used.

        Raises NotFoundHere when only a part of the store was asked.
        """

    async def views(self, code: str) -> Mapping[str, Link | StoreError | None]:
        """What each part of the store that could differ has at `code`, asked alone, or why it
        did not answer. Empty for a store that has no such parts. For people, who look for what
        one region has and another lacks.
        """

    async def by_owner(self, owner: str, after: str, limit: int) -> Sequence[Link]:
        """Links last held by `owner`, by code, starting behind the code `after`."""

    async def due(self, until: int, limit: int) -> Sequence[Due]:
        """Hints with `at` <= `until`, earliest first."""

    async def done(self, due: Sequence[Due], again: Sequence[Due]) -> None:
        """Drop hints that were dealt with, and keep new ones in their place."""

    async def announce(self, event: Event) -> None:
        """Add an event that no change carries; one whose id is pending already is kept once."""

    async def pending(self, limit: int) -> Sequence[Event]:
        """Events not yet published, in the order in which they were kept."""

    async def published(self, ids: Sequence[str]) -> None:
        """Forget these events: the stream has them."""

    async def claim(self, claim: Claim) -> Claim:
        """Keep `claim` if its key has none; the claim in force."""

    async def reclaim(self, old: Claim, new: Claim | None) -> bool:
        """Replace `old` by `new` (None: release it); False when another claim is in force.

        All fields count. Repeating a call that succeeded succeeds.
        """

    async def claims(self, after: str, limit: int) -> Sequence[Claim]:
        """Claims by key, starting behind the key `after`."""

    async def find_claim(self, key: str) -> Claim | None:
        """The claim in force for `key`, or None."""

    async def ping(self) -> None:
        """Return when the store answers."""

    async def close(self) -> None:
        """Let go of the store; nothing acknowledged is lost."""
