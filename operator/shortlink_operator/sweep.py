"""The sweeper: moves rows along when the clock says so (L4). It changes no answer, only rows.

It works through hints of what is due. A hint is dropped only after its link was dealt with, so
a crash at any point repeats work that is a compare-and-set or carries the same event id; two
sweepers at once do the same thing twice.
"""

from dataclasses import dataclass

import structlog

from shortlink.links.lifecycle import Tick, expiring, look_again_at
from shortlink.links.policy import HOUR
from shortlink.links.refusal import Refused
from shortlink.management import Management
from shortlink.store.port import Due, StoreError

log = structlog.get_logger()

_BATCH = 200


@dataclass(slots=True)
class Swept:
    """Counts since the start: hints looked at, transitions made, links that could not be read."""

    looked: int = 0
    moved: int = 0
    broken: int = 0


class Sweeper:
    """Sweeps what is due, through `management`."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._store = management.store
        self.swept = Swept()

    async def run(self) -> None:
        """Deal with everything that is due now. Raises StoreError; the next run goes on."""
        now = self._management.clock.wall()
        while batch := await self._store.due(now, _BATCH):
            again = []
            for due in batch:
                next_at = await self._look(due, now)
                if next_at is not None:
                    again.append(Due(next_at, due.code))
            await self._store.done(batch, again)

    async def _look(self, due: Due, now: int) -> int | None:
        self.swept.looked += 1
        try:
            return await self._advance(due.code, now)
        except StoreError:
            raise
        except Exception:  # one unreadable row may not stop the lifecycle of all others
            self.swept.broken += 1
            log.exception("sweep_broken_link", code=due.code)
            return now + HOUR

    async def _advance(self, code: str, now: int) -> int | None:
        link = await self._store.get(code)
        while link is not None:
            try:
                link = await self._management.apply(code, Tick())
            except Refused:
                break
            self.swept.moved += 1
        if link is None:
            return None
        if told := expiring(link, self._management.policy, now):
            await self._store.announce(told)
        return look_again_at(link, self._management.policy, now)
