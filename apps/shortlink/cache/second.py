"""What a process asks of the cache that it shares with others, between its memory and the store."""

from dataclasses import dataclass
from typing import Protocol

from shortlink.links.model import Link


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look-up came to.

    With a `link`, `began` (steady, milliseconds) is when the store read that it comes from
    began, or earlier. Without one the store has to be read, and what it says goes to `fill`
    with `moment`, which is the cache's own time before that read; None: it wants nothing.
    """

    link: Link | None = None
    began: int = 0
    moment: int | None = None


class SecondLevel(Protocol):
    """A cache behind a process's own. Neither call fails, nor takes longer than it may."""

    async def get(self, code: str) -> Looked:
        """What is kept for `code`, if it still redirects."""

    def fill(self, link: Link, moment: int) -> None:
        """Keep, soon and perhaps, what a store read begun after `moment` has found."""
