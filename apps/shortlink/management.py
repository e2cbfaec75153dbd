"""How links are made and changed: the one door for the API, objects and the sweeper.

Each change is `decide()` on the row as read, then a compare-and-set on its stamp; whoever
loses the race decides again on what the winner left.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from shortlink.clock import Clock
from shortlink.links.lifecycle import (
    UNKNOWN,
    Actor,
    Command,
    Create,
    Transition,
    decide,
    due_times,
)
from shortlink.links.model import Link, State
from shortlink.links.names import suggestions
from shortlink.links.policy import Policy
from shortlink.links.refusal import Reason, Refusal, Refused
from shortlink.store.port import LinkStore, StoreUnavailable

ATTEMPTS = 8
"""Codes drawn for one link, and compare-and-sets tried for one change. At a billion links a
draw is taken once in 3,500, so eight in a row mean a broken generator (G6)."""

_SUGGESTIONS_TRIED = 5


class CodesExhausted(StoreUnavailable):
    """Every drawn code was taken: the generator is broken or its slots are full (G6)."""

    def __init__(self) -> None:
        super().__init__(
            f"{ATTEMPTS} drawn codes in a row were taken: creating stops, links go on;"
            " check the code generator"
        )


Changed = Callable[[Link], None]
"""Is told of each change after it is stored and before it is acknowledged (K4)."""


class Management:
    """Creates and changes links in `store` by `policy`.

    `draw` gives codes, `new_token` gives tokens that never repeat, `changed` are the caches of
    this process. `created` and `collisions` count links made and drawn codes found taken.
    """

    def __init__(
        self,
        store: LinkStore,
        policy: Policy,
        clock: Clock,
        draw: Callable[[], str],
        new_token: Callable[[], str],
        changed: Sequence[Changed] = (),
    ) -> None:
        self.store = store
        self.policy = policy
        self.clock = clock
        self.draw = draw
        self.new_token = new_token
        self.created = 0
        self.collisions = 0
        self._changed = changed

    async def create(self, wanted: Create) -> Link:
        """Make the link, at its alias (`custom`) or else at the code given, or raise.

        A link that already carries the token of `wanted` is this one: a retry makes no second.
        Raises Refused, with a suggestion when the alias is taken, and StoreError.
        """
        current = None  # the insert is the look-up: it answers with whoever holds the code
        for _ in range(ATTEMPTS):
            if current is not None and current.token == wanted.token:
                return self._tell(current)
            step = decide(current, wanted, self.policy, self.clock.wall())
            if isinstance(step, Refusal):
                raise Refused(await self._suggest(step, wanted))
            held = await self._write(current, step)
            if held == step.link:
                self.created += 1
                return self._tell(held)
            current = held
        raise _contended(wanted.code)

    async def preview(self, wanted: Create) -> Link:
        """The link that `wanted` would make at its alias now. Raises Refused and StoreError."""
        current = await self.store.get(wanted.code)
        step = decide(current, wanted, self.policy, self.clock.wall())
        if isinstance(step, Refusal):
            raise Refused(await self._suggest(step, wanted))
        return step.link

    async def create_generated(self, wanted: Create) -> Link:
        """Make the link at a drawn code; `wanted.code` is ignored.

        Raises Refused, CodesExhausted and StoreError.
        """
        for _ in range(ATTEMPTS):
            wanted = replace(wanted, code=self.draw(), custom=False)
            try:
                return await self.create(wanted)
            except Refused as refused:
                if refused.refusal.reason is not Reason.TAKEN:
                    raise
                self.collisions += 1
        raise CodesExhausted

    async def apply(self, code: str, command: Command) -> Link:
        """Carry out `command` on the link at `code`; the link as it is afterwards.

        Raises Refused and StoreError.
        """
        current = await self.store.get(code)
        for _ in range(ATTEMPTS):
            done, current = await self._attempt(current, command)
            if done:
                return current
        raise _contended(code)

    async def carry_out(self, seen: Link, command: Command) -> Link | None:
        """Carry out `command` on the link as it was `seen`; the link as it is afterwards.

        None: somebody changed it since, or an earlier call of this kind that was never answered
        did; look at it again. So who decides on what is no longer so changes nothing (a leader
        that was deposed). Raises Refused and StoreError.
        """
        done, link = await self._attempt(seen, command)
        return link if done else None

    async def read(self, code: str, by: Actor) -> Link:
        """The link at `code` for its owner or an administrator. Raises Refused and StoreError."""
        link = await self.store.get(code)
        if link is None or link.state is State.FREE:
            raise Refused(UNKNOWN)
        if link.owner != by.owner and not by.admin:
            raise Refused(Refusal(Reason.NOT_OWNER, f"{code} belongs to another owner"))
        return link

    async def _attempt(self, current: Link | None, command: Command) -> tuple[bool, Link]:
        """Whether `command` was carried out on `current`, and the link as it is now."""
        step = decide(current, command, self.policy, self.clock.wall())
        if isinstance(step, Refusal):
            raise Refused(step)
        # A step that changes nothing may be an earlier call's whose write was never answered.
        held = step.link if step.link == current else await self._write(current, step)
        if held == step.link:
            self._tell(held)
        return held == step.link, held

    async def _write(self, current: Link | None, step: Transition) -> Link:
        due = due_times(step.link, self.policy)
        if current is None:
            return await self.store.create(step.link, step.events, due)
        return await self.store.change(current, step.link, step.events, due)

    def _tell(self, link: Link) -> Link:
        for tell in self._changed:
            tell(link)
        return link

    async def _suggest(self, refusal: Refusal, wanted: Create) -> Refusal:
        if not wanted.custom or refusal.reason not in (
            Reason.TAKEN,
            Reason.RESERVED,
            Reason.SAME_OWNER,
        ):
            return refusal
        for _, alias in zip(range(_SUGGESTIONS_TRIED), suggestions(wanted.code), strict=False):
            if await self.store.get(alias) is None:
                return replace(
                    refusal, message=f"{refusal.message}; {alias} is free", suggestion=alias
                )
        return refusal


def _contended(code: str) -> StoreUnavailable:
    return StoreUnavailable(f"{code} was changed by others {ATTEMPTS} times meanwhile; try again")
