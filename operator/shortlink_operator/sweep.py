"""The sweeper: moves rows along when the clock says so (L4). It changes no answer, only rows.

It works through hints of what is due. A hint is dropped only after its link was dealt with, and
not while the row that it announces may still be on its way. So a crash at any point repeats work
that is a compare-and-set or carries the same event id; two sweepers at once do the same thing
twice.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from shortlink.links.lifecycle import Tick, due_times, expiring, look_again_at
from shortlink.links.model import Link
from shortlink.links.policy import HOUR, MINUTE, SECOND, Policy
from shortlink.links.refusal import Refused
from shortlink.management import Management
from shortlink.store.port import Due, StoreError

log = structlog.get_logger()

SWEEP_PAUSE = 1.0
"""Seconds between two runs."""

_BATCH = 200


SETTLE = HOUR
"""How long the clock has to have gone evenly, since the start or a jump, before rows move."""

_UNDER_WAY = MINUTE
"""For how long a hint may be there before its row: any write is given up long before."""

_EVEN = 5 * SECOND
"""How far the wall clock may move against the steady one between two looks."""


class Sweeper:
    """Sweeps what is due, through `management`, once the clock was even for `settle` ms.

    A clock that is wrong for a while would else end links for good and give their codes away;
    waiting costs nothing, for no answer depends on the sweeper. `progressed` is called after
    each batch; while it `is_paused`, nothing is moved.
    """

    def __init__(
        self,
        management: Management,
        settle: int = SETTLE,
        progressed: Callable[[], None] = lambda: None,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._management = management
        self._store = management.store
        self._settle = settle
        self._progressed = progressed
        self._is_paused = is_paused
        self._ahead: int | None = None  # of the wall clock before the steady one, last seen
        self._even_since = 0

    async def run(self) -> None:
        """Deal with everything that is due now. Raises StoreError; the next run goes on."""
        if not self._is_clock_settled():
            return
        now = self._management.clock.wall()
        while not self._is_paused() and (batch := await self._store.due(now, _BATCH)):
            looks = [self._look(due, now) for due in batch]  # together, to share commits
            done: list[Due] = []
            again: list[Due] = []
            for due, instead in zip(
                batch, await asyncio.gather(*looks, return_exceptions=True), strict=True
            ):
                if isinstance(instead, BaseException):
                    raise instead
                if instead is not None:
                    done.append(due)
                    again += instead
            if not done:
                return
            await self._store.done(done, again)
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

    async def _look(self, due: Due, now: int) -> Sequence[Due] | None:
        """The hints to keep in the place of `due`; None: leave it as it is."""
        try:
            return await self._advance(due, now)
        except StoreError:
            raise
        except Exception:  # one unreadable row may not stop the lifecycle of all others
            log.exception("link can't be swept", code=due.code)
            return [Due(now + HOUR, due.code)]

    async def _advance(self, due: Due, now: int) -> Sequence[Due] | None:
        policy = self._management.policy
        link = await self._store.get(due.code)
        while link is not None:
            try:
                link = await self._management.apply(due.code, Tick())
            except Refused:
                break
        if now - due.at < _UNDER_WAY and not _explains(link, due, policy):
            return None
        if link is None:
            return []
        if told := expiring(link, policy, now):
            await self._store.announce(told)
        at = look_again_at(link, policy, now)
        return [] if at is None else [Due(at, due.code)]


def _explains(link: Link | None, due: Due, policy: Policy) -> bool:
    """Whether the row as it is has what `due` announced, or something later."""
    # No hint is for a time before the decision to write its row.
    return link is not None and (due.at <= link.changed_at or due.at in due_times(link, policy))
