"""The sweeper: moves rows along when the clock says so (L4). It changes no answer, only rows.

It works through hints of what is due. A hint is dropped only after its link was dealt with, so
a crash at any point repeats work that is a compare-and-set or carries the same event id; two
sweepers at once do the same thing twice.
"""

import asyncio
from collections.abc import Callable

import structlog

from shortlink.links.lifecycle import Tick, expiring, look_again_at
from shortlink.links.policy import HOUR, SECOND
from shortlink.links.refusal import Refused
from shortlink.management import Management
from shortlink.store.port import Due, StoreError

log = structlog.get_logger()

_BATCH = 200


SETTLE = HOUR
"""How long the clock has to have gone evenly, since the start or a jump, before rows move."""

_EVEN = 5 * SECOND
"""How far the wall clock may move against the steady one between two looks."""


class Sweeper:
    """Sweeps what is due, through `management`, once the clock was even for `settle` ms.

    A clock that is wrong for a while would else end links for good and give their codes away;
    waiting costs nothing, for no answer depends on the sweeper. `progressed` is called after
    each batch.
    """

    def __init__(
        self,
        management: Management,
        settle: int = SETTLE,
        progressed: Callable[[], None] = lambda: None,
    ) -> None:
        self._management = management
        self._store = management.store
        self._settle = settle
        self._progressed = progressed
        self._ahead: int | None = None  # of the wall clock before the steady one, last seen
        self._even_since = 0

    async def run(self) -> None:
        """Deal with everything that is due now. Raises StoreError; the next run goes on."""
        if not self._is_clock_settled():
            return
        now = self._management.clock.wall()
        while batch := await self._store.due(now, _BATCH):
            looks = [self._look(due, now) for due in batch]  # together, to share commits
            again = []
            for due, next_at in zip(
                batch, await asyncio.gather(*looks, return_exceptions=True), strict=True
            ):
                if isinstance(next_at, BaseException):
                    raise next_at
                if next_at is not None:
                    again.append(Due(next_at, due.code))
            await self._store.done(batch, again)
            self._progressed()

    def _is_clock_settled(self) -> bool:
        clock = self._management.clock
        steady = clock.steady()
        ahead = clock.wall() - steady
        if self._ahead is None:
            self._even_since = steady
        elif abs(ahead - self._ahead) > _EVEN:
            self._even_since = steady
            log.warning("clock jumped: rows stay as they are", milliseconds=ahead - self._ahead)
        self._ahead = ahead
        return steady - self._even_since >= self._settle

    async def _look(self, due: Due, now: int) -> int | None:
        try:
            return await self._advance(due.code, now)
        except StoreError:
            raise
        except Exception:  # one unreadable row may not stop the lifecycle of all others
            log.exception("link can't be swept", code=due.code)
            return now + HOUR

    async def _advance(self, code: str, now: int) -> int | None:
        link = await self._store.get(code)
        while link is not None:
            try:
                link = await self._management.apply(code, Tick())
            except Refused:
                break
        if link is None:
            return None
        if told := expiring(link, self._management.policy, now):
            await self._store.announce(told)
        return look_again_at(link, self._management.policy, now)
