"""Carries out plans. Every step may be cut short and repeated: the claim, written before the
birth, says which link is the object's own.

Nothing is written but on what was seen: a write that finds something else there changes
nothing, and the object is looked at and planned again. So a leader that was deposed, and does
not know it yet, undoes nothing of its successor's.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from shortlink.links.refusal import Reason, Refused
from shortlink.management import ATTEMPTS, CodesExhausted, Management
from shortlink.store.port import Claim, StoreError
from shortlink_operator.desired import FOLDER, Desired, plan
from shortlink_operator.kinds import ShortLink
from shortlink_operator.plan import (
    Action,
    Birth,
    Change,
    Observed,
    Reclaim,
    Rest,
    Resume,
    creation,
    plan_gone,
    plan_object,
    told,
)

log = structlog.get_logger()

_PAGE = 500
_READS = 32

Plan = Callable[[Observed | None], Action]
"""What an object needs, as far as it depends on what is observed."""


class _Stopped(Exception):
    """Carries out what `may_act` raised, past what one object's trouble becomes."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


def _always() -> None:
    pass


class Applier:
    """Brings the links of `cluster`'s objects in line with them, through `management`.

    `may_act` is called before each write and raises when this process may not write any more.
    """

    def __init__(
        self, management: Management, cluster: str, may_act: Callable[[], None] = _always
    ) -> None:
        self._management = management
        self._store = management.store
        self._cluster = cluster
        self._may_act = may_act

    async def settle(self, wanted: ShortLink, *, room: bool = True, fresh: bool = False) -> Rest:
        """Bring the link of an object that exists in line; how it stands then.

        `room`: whether its namespace may have one more link. `fresh`: the object was never
        handled, so that claiming is tried before looking. Raises StoreError, which leaves
        everything to be repeated, and what `may_act` raises. Any other trouble is this object's
        and becomes its outcome.
        """
        planned = self.plan_of(wanted, room=room)
        first = planned(None) if fresh else None
        # Without a claim all else but a birth is a guess: it may have one.
        return await self.finish(wanted.key, planned, first if isinstance(first, Birth) else None)

    async def settle_gone(self, key: str, uid: str | None, retain: bool | None, held: str) -> Rest:
        """Bring the link of an object that is gone or being deleted in line; as `settle`.

        See `plan_gone` for what is passed.
        """
        return await self.finish(key, self.plan_of_gone(key, uid, retain, held))

    async def observe(self, key: str) -> Observed | None:
        """The claim of an object and then the link at its code. Raises StoreError."""
        claim = await self._store.find_claim(key)
        return None if claim is None else await self.look(claim)

    async def look(self, claim: Claim) -> Observed:
        """The link at the code of `claim`. Raises StoreError."""
        return Observed(claim, await self._store.get(claim.code))

    def plan_of(self, wanted: ShortLink, *, room: bool = True) -> Plan:
        """`plan_object` for `wanted`, at the time at which it is called."""

        def planned(observed: Observed | None) -> Action:
            policy, now = self._management.policy, self._management.clock.wall()
            return plan_object(wanted, observed, self._cluster, policy, now, room=room)

        return planned

    def plan_of_gone(self, key: str, uid: str | None, retain: bool | None, held: str) -> Plan:
        """`plan_gone`, at the time at which it is called."""

        def planned(observed: Observed | None) -> Action:
            policy, now = self._management.policy, self._management.clock.wall()
            return plan_gone(
                key, uid, observed, self._cluster, policy, now, retain=retain, held=held
            )

        return planned

    async def finish(self, key: str, planned: Plan, action: Action | None = None) -> Rest:
        """Carry out `action` (None: what is `planned` on a look) and what is planned after it.

        Raises as `settle`.
        """
        try:
            if action is None:
                action = planned(await self.observe(key))
            for _ in range(ATTEMPTS):
                if isinstance(action, Rest):
                    return action
                try:
                    action = planned(await self._perform(action) or await self.observe(key))
                except Refused as refused:
                    return _refused(action, refused)
        except _Stopped as stopped:
            raise stopped.why from None
        except StoreError:
            raise
        except Exception as error:  # one object's trouble may not stop all others
            return _broken(key, error)
        if isinstance(action, Rest):
            return action
        if isinstance(action, Birth) and action.wanted.code is None:
            raise CodesExhausted
        return Rest(key, False, "Progressing", "others change this link; the next pass goes on")

    async def _perform(self, action: Birth | Resume | Change | Reclaim) -> Observed | None:
        """What is there afterwards; None where only a look can tell."""
        match action:
            case Birth():
                return await self._bear(action)
            case Resume():
                return await self._make(action.wanted, action.claim)
            case Reclaim():
                self._act()
                await self._store.reclaim(action.claim, action.new)
                return None
            case Change():
                # The claim was read before the link: another may have taken it over between.
                if await self._store.find_claim(action.key) != action.claim:
                    return None
                self._act()
                link = await self._management.carry_out(action.seen, action.command)
                return None if link is None else Observed(action.claim, link)

    async def _bear(self, birth: Birth) -> Observed | None:
        wanted = birth.wanted
        token = self._management.new_token()
        code, generation = wanted.code, 1
        if code is None:
            code = self._management.draw()
        else:
            try:
                generation = (
                    await self._management.preview(creation(wanted, code, token))
                ).generation
            except Refused:
                # Its own link may hold the code.
                if birth.void is None and (seen := await self.observe(birth.key)) is not None:
                    return seen
                raise
        claim = Claim(birth.key, code, generation, token, self._cluster, wanted.uid, wanted.retain)
        self._act()
        if birth.void is None:
            held = await self._store.claim(claim)
            if held != claim:
                return await self.look(held)
        elif not await self._store.reclaim(birth.void, claim):
            return None
        return await self._make(wanted, claim)

    async def _make(self, wanted: ShortLink, claim: Claim) -> Observed | None:
        self._act()
        try:
            link = await self._management.create(creation(wanted, claim.code, claim.token))
        except Refused as refused:
            self._act()
            await self._store.reclaim(claim, None)
            if wanted.code is not None or refused.refusal.reason is not Reason.TAKEN:
                raise
            # A drawn code that is taken: the next step draws another.
            self._management.collisions += 1
            return None
        return Observed(claim, link)

    def _act(self) -> None:
        try:
            self._may_act()
        except Exception as error:
            raise _Stopped(error) from error


class Reconciler:
    """Brings links in line with a folder's objects, in passes.

    `outcomes` holds, by key, how each object stood after the last pass.
    """

    def __init__(self, management: Management) -> None:
        self._management = management
        self._applier = Applier(management, FOLDER)
        self.outcomes: dict[str, Rest] = {}

    async def run(self, desired: Desired) -> None:
        """One pass over all objects and claims.

        An object that is refused does not stop the others. Raises StoreError when the store
        fails; the next pass goes on from there.
        """
        observed, outcomes = await self._observe()
        whole = {key: one for key, one in desired.objects.items() if key not in outcomes}
        desired = replace(desired, objects=whole)
        now = self._management.clock.wall()
        for action in plan(desired, observed, self._management.policy, now):
            key, wanted = action.key, desired.objects.get(action.key)
            planned = (
                self._applier.plan_of_gone(key, None, None, "")
                if wanted is None
                else self._applier.plan_of(wanted)
            )
            outcomes[key] = await self._applier.finish(key, planned, action)
        for key, outcome in outcomes.items():
            if outcome != self.outcomes.get(key):
                _tell(outcome)
        self.outcomes = outcomes

    async def _observe(self) -> tuple[dict[str, Observed], dict[str, Rest]]:
        """All claims with their links, and those whose link can't be read."""
        observed: dict[str, Observed] = {}
        broken: dict[str, Rest] = {}
        reads = asyncio.Semaphore(_READS)

        async def look(claim: Claim) -> Observed:
            async with reads:
                return await self._applier.look(claim)

        after = ""
        while page := await self._management.store.claims(after, _PAGE):
            looks = await asyncio.gather(*map(look, page), return_exceptions=True)
            for claim, seen in zip(page, looks, strict=True):
                if isinstance(seen, Observed):
                    observed[claim.key] = seen
                elif isinstance(seen, Exception) and not isinstance(seen, StoreError):
                    broken[claim.key] = _broken(claim.key, seen)
                else:
                    raise seen
            after = page[-1].key
        return observed, broken


def _refused(action: Action, refused: Refused) -> Rest:
    reason, message = refused.refusal.reason, told(refused.refusal)
    if isinstance(action, Change):
        return Rest(action.key, False, reason, message, action.seen, action.claim.cluster)
    return Rest(action.key, False, reason, message)


def _broken(key: str, error: Exception) -> Rest:
    log.error("object broken", key=key, exc_info=error)
    return Rest(key, False, "Broken", f"its link can't be handled, see the log: {error!r}")


def _tell(outcome: Rest) -> None:
    link = outcome.link
    log.info(
        "object reconciled",
        key=outcome.key,
        ready=outcome.ready,
        reason=outcome.reason,
        message=outcome.message,
        code=link.code if link else None,
    )
