"""The platform's parts on one in-memory store and one hand-set clock, for as many processes as
a test wants."""

from collections import Counter
from collections.abc import Callable, Sequence

from shortlink.clock import HandClock
from shortlink.links.codes import encode
from shortlink.links.model import LIVE, Link
from shortlink.links.policy import Policy
from shortlink.management import Changed, Management
from tests.fakes import Gate, Kept, MemoryStore
from tests.samples import NOW, POLICY


class Told(list[Link]):
    """A cache's place among Management's listeners: remembers what it was told."""

    def __call__(self, link: Link) -> None:
        self.append(link)


class World:
    """`kept` is all that outlives processes; `codes` are drawn next, then ascending ones."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.kept = Kept()
        self.clock = HandClock(NOW)
        self.policy = policy
        self.codes: list[str] = []
        self._number = 0

    def management(self, gate: Gate | None = None, changed: Sequence[Changed] = ()) -> Management:
        """What one process has; its store calls pass through `gate`."""
        store = MemoryStore(self.kept) if gate is None else MemoryStore(self.kept, gate)
        return Management(
            store, self.policy, self.clock.clock, self._draw, self._counted("token"), changed
        )

    def keep(self, *links: Link) -> None:
        """Rows that were there before, without events or hints."""
        self.kept.links |= {link.code: link for link in links}

    def link(self, code: str) -> Link:
        return self.kept.links[code]

    def live(self) -> list[Link]:
        return [link for link in self.kept.links.values() if link.state in LIVE]

    def told(self, code: str) -> list[str]:
        """The kinds of a code's events, in the order in which they were kept."""
        return [event.kind for event in self.kept.told if event.code == code]

    def check_events(self) -> None:
        """No event was kept twice, whatever crashed."""
        ids = Counter(event.id for event in self.kept.told)
        assert not [id_ for id_, times in ids.items() if times > 1]

    def check(self) -> None:
        """What has to hold between passes: also, no link is without its object's claim."""
        self.check_events()
        claims = {
            (one.code, one.generation, one.token): one.key for one in self.kept.claims.values()
        }
        for link in self.live():
            if link.claim is not None:
                held = claims.get((link.code, link.generation, link.token))
                assert held == link.claim, f"{link.code} is an orphan"

    def _draw(self) -> str:
        self._number += 1
        return self.codes.pop(0) if self.codes else encode(self._number)

    def _counted(self, word: str) -> Callable[[], str]:
        def name() -> str:
            self._number += 1
            return f"{word}-{self._number}"

        return name
