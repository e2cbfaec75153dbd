"""When to leave a server alone that doesn't answer, and when to try it again."""

from collections.abc import Callable

import structlog

FIRST = 100
CAP = 5_000
"""Milliseconds that it is left alone, at most: after the first failure, and after many."""

TOLD_AT = 3
"""Failures in a row that are an outage, which is logged; before, it may be a hiccup."""

_log = structlog.get_logger(__name__)


class Breaker:
    """Counts failures in a row of the server at `where`; any success forgets them.

    Each pause is twice the last, up to CAP, less up to half of it by `chance` (0 to 1), so
    that many processes don't all come back at once. `steady` is in milliseconds.
    """

    def __init__(self, where: str, steady: Callable[[], int], chance: Callable[[], float]) -> None:
        self.failures = 0
        self._where = where
        self._steady = steady
        self._chance = chance
        self._until = 0

    @property
    def open(self) -> bool:
        """Whether the server is to be left alone now."""
        return self.failures > 0 and self._steady() < self._until

    def failed(self, error: BaseException) -> None:
        """Leave the server alone for a while."""
        pause = min(CAP, FIRST * 2 ** min(self.failures, 10))
        self._until = self._steady() + int(pause * (1 - self._chance() / 2))
        self.failures += 1
        if self.failures == TOLD_AT:
            _log.error(
                "cache server does not answer; going on without it",
                where=self._where,
                error=str(error) or repr(error),
            )

    def worked(self) -> None:
        """The server answers."""
        if self.failures >= TOLD_AT:
            _log.info("cache server answers again", where=self._where)
        self.failures = 0
