"""Carries out plans. Every step may be cut short and repeated: the claim, written before the
birth, says which link is the object's own."""

import asyncio
from dataclasses import replace

import structlog

from shortlink.links.model import Link
from shortlink.links.refusal import Reason, Refused
from shortlink.management import ATTEMPTS, CodesExhausted, Management
from shortlink.store.port import Claim, StoreError
from shortlink_operator.kinds import ShortLink
from shortlink_operator.plan import (
    Action,
    Birth,
    Change,
    Desired,
    Observed,
    Release,
    Rest,
    Resume,
    creation,
    plan,
    plan_object,
)

log = structlog.get_logger()

_PAGE = 500
_READS = 32
_STEPS = ATTEMPTS  # as many codes may be drawn for one object


class Reconciler:
    """Brings links in line with objects, through `management`.

    `outcomes` holds, by key, how each object stood after the last pass.
    """

    def __init__(self, management: Management) -> None:
        self._management = management
        self._store = management.store
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
            try:
                outcome = await self._settle(action, desired.objects.get(action.key))
            except StoreError:
                raise
            except Exception as error:  # one object's trouble may not stop all others
                outcome = _broken(action.key, error)
            if outcome is not None:
                outcomes[action.key] = outcome
        for key, outcome in outcomes.items():
            if outcome != self.outcomes.get(key):
                _tell(outcome)
        self.outcomes = outcomes

    async def _settle(self, action: Action, wanted: ShortLink | None) -> Rest | None:
        for _ in range(_STEPS):
            if isinstance(action, Rest):
                return action
            try:
                await self._perform(action)
            except Refused as refused:
                return Rest(action.key, False, refused.refusal.reason, refused.refusal.message)
            if wanted is None:
                return None
            claim = await self._store.find_claim(action.key)
            seen = None if claim is None else await self._look(claim)
            action = plan_object(
                wanted, seen, self._management.policy, self._management.clock.wall()
            )
        if isinstance(action, Birth) and action.wanted.code is None:
            raise CodesExhausted
        return Rest(
            action.key, False, "Progressing", "others change this link; the next pass goes on"
        )

    async def _perform(self, action: Birth | Resume | Change | Release) -> None:
        match action:
            case Birth():
                await self._bear(action)
            case Resume():
                await self._make(action.wanted, action.claim)
            case Change():
                await self._management.apply(action.code, action.command)
            case Release():
                await self._store.reclaim(action.claim, None)

    async def _bear(self, birth: Birth) -> None:
        wanted = birth.wanted
        token = self._management.new_token()
        if wanted.code is None:
            claim = Claim(birth.key, self._management.draw(), 1, token)
        else:
            step = await self._management.preview(creation(wanted, wanted.code, token))
            claim = Claim(birth.key, wanted.code, step.generation, token)
        if birth.void is None:
            won = await self._store.claim(claim) == claim
        else:
            won = await self._store.reclaim(birth.void, claim)
        if won:  # else another pass was faster, and the next step goes on from its claim
            await self._make(wanted, claim)

    async def _make(self, wanted: ShortLink, claim: Claim) -> None:
        try:
            await self._management.create(creation(wanted, claim.code, claim.token))
        except Refused as refused:
            await self._store.reclaim(claim, None)
            if wanted.code is not None or refused.refusal.reason is not Reason.TAKEN:
                raise
            # A drawn code that is taken: the next step draws another.
            self._management.collisions += 1

    async def _observe(self) -> tuple[dict[str, Observed], dict[str, Rest]]:
        """All claims with their links, and those whose link can't be read."""
        observed: dict[str, Observed] = {}
        broken: dict[str, Rest] = {}
        reads = asyncio.Semaphore(_READS)

        async def look(claim: Claim) -> Observed:
            async with reads:
                return await self._look(claim)

        after = ""
        while page := await self._store.claims(after, _PAGE):
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

    async def _look(self, claim: Claim) -> Observed:
        return Observed(claim, await self._store.get(claim.code))


def _broken(key: str, error: Exception) -> Rest:
    log.error("object broken", key=key, exc_info=error)
    return Rest(key, False, "Broken", f"its link can't be handled, see the log: {error!r}")


def _tell(outcome: Rest) -> None:
    link: Link | None = outcome.link
    log.info(
        "object reconciled",
        key=outcome.key,
        ready=outcome.ready,
        reason=outcome.reason,
        message=outcome.message,
        code=link.code if link else None,
    )
