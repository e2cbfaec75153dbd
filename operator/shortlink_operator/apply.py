"""Carries out plans. Every step may be cut short and repeated: the claim, written before the
birth, says which link is the object's own."""

import asyncio

import structlog

from shortlink.links.model import Link
from shortlink.links.refusal import Reason, Refused
from shortlink.management import ATTEMPTS, CodesExhausted, Management
from shortlink.store.port import Claim
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
_STEPS = 4  # claim void, birth, restore, edit: the longest way that one object has to go


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
        observed = await self._observe()
        now = self._management.clock.wall()
        outcomes: dict[str, Rest] = {}
        for action in plan(desired, observed, self._management.policy, now):
            outcome = await self._settle(action, desired.objects.get(action.key))
            if outcome is not None:
                outcomes[action.key] = outcome
                if outcome != self.outcomes.get(action.key):
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
            claim = await self._store.claim(claim)
        elif not await self._store.reclaim(birth.void, claim):
            return  # another pass was faster; the next look shows what it claimed
        await self._make(wanted, claim)

    async def _make(self, wanted: ShortLink, claim: Claim) -> None:
        for _ in range(ATTEMPTS):
            try:
                await self._management.create(creation(wanted, claim.code, claim.token))
                return
            except Refused as refused:
                if wanted.code is not None or refused.refusal.reason is not Reason.TAKEN:
                    await self._store.reclaim(claim, None)
                    raise
            self._management.collisions += 1
            again = Claim(claim.key, self._management.draw(), 1, self._management.new_token())
            if not await self._store.reclaim(claim, again):
                return
            claim = again
        raise CodesExhausted(f"{ATTEMPTS} drawn codes in a row were taken; check the generator")

    async def _observe(self) -> dict[str, Observed]:
        observed: dict[str, Observed] = {}
        reads = asyncio.Semaphore(_READS)

        async def look(claim: Claim) -> None:
            async with reads:
                observed[claim.key] = await self._look(claim)

        after = ""
        while page := await self._store.claims(after, _PAGE):
            await asyncio.gather(*(look(claim) for claim in page))
            after = page[-1].key
        return observed

    async def _look(self, claim: Claim) -> Observed:
        return Observed(claim, await self._store.get(claim.code))


def _tell(outcome: Rest) -> None:
    link: Link | None = outcome.link
    log.info(
        "object",
        key=outcome.key,
        ready=outcome.ready,
        reason=outcome.reason,
        message=outcome.message,
        code=link.code if link else None,
    )
