"""`shortlink demo`: the embedded platform with a live table of its links."""

import asyncio
from collections import Counter
from collections.abc import Iterable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shortlink.demo.embedded import Embedded, Settings
from shortlink.links.lifecycle import expiring, settled
from shortlink.links.model import LIVE, Cause, Link, State
from shortlink.links.policy import Policy
from shortlink.store.port import StoreError
from shortlink.why import span

_ROWS = 40
_PROBLEMS = 10
_COUNTED = 10_000
_STYLES = {
    State.ACTIVE: "green",
    State.DISABLED: "red",
    State.TOMBSTONED: "yellow",
    State.QUARANTINED: "dim",
    State.FREE: "dim",
}


class Screen:
    """What the terminal shows; `clicks` counts redirects of each (code, generation)."""

    def __init__(self, platform: Embedded, settings: Settings, owners: Iterable[str]) -> None:
        self.clicks: Counter[tuple[str, int]] = Counter()
        self._platform = platform
        self._settings = settings
        self._owners = frozenset(owners)

    async def render(self) -> Group:
        """The table of links, and under it what needs somebody's attention."""
        for code, generation, _ in self._platform.clicks.drain():
            if len(self.clicks) < _COUNTED or (code, generation) in self.clicks:
                self.clicks[code, generation] += 1
        try:
            links, more = await self._links()
        except StoreError as error:
            return Group(Text(f"the store does not answer: {error}", "red"))
        table = Table(
            title=f"{self._settings.base_url}/CODE   folder {self._settings.folder}/",
            title_justify="left",
        )
        for heading in ("code", "target", "state", "expires", "clicks", "made by"):
            table.add_column(
                heading, overflow="fold", justify="right" if heading == "clicks" else "left"
            )
        policy, now = self._platform.management.policy, self._platform.management.clock.wall()
        for link in links:
            self._row(table, link, policy, now)
        notes = [Text(f"  and {more}", "dim")] if more else []
        return Group(table, *notes, *self._problems())

    async def _links(self) -> tuple[list[Link], str]:
        store = self._platform.management.store
        namespaces = {key.partition("/")[0] for key in self._platform.reconciler.outcomes}
        links: list[Link] = []
        for owner in sorted(namespaces | self._owners):
            links += await store.by_owner(owner, "", _ROWS + 1)
        links.sort(key=lambda link: (link.state not in LIVE, -link.changed_at))
        return links[:_ROWS], "more links" if len(links) > _ROWS else ""

    def _row(self, table: Table, link: Link, policy: Policy, now: int) -> None:
        view = settled(link, policy, now)
        state = str(view.state)
        if view.cause is Cause.EXPIRED and view.state is State.TOMBSTONED:
            state = "expired"
        elif expiring(link, policy, now):
            state = "expiring"
        table.add_row(
            link.code,
            link.target,
            Text(state, _STYLES[view.state]),
            "never" if link.expires_at is None else span(link.expires_at - now),
            str(self.clicks[link.code, link.generation]),
            link.claim or f"{link.owner} by API",
        )

    def _problems(self) -> list[Text]:
        scan = self._platform.follower.scan
        problems = [f"{one.where}: {one.message}" for one in (scan.unreadable if scan else ())]
        problems += scan.notes if scan else ()
        problems += [
            f"{outcome.key}: {outcome.reason}: {outcome.message}"
            for outcome in self._platform.reconciler.outcomes.values()
            if outcome.message and outcome.reason != "Deleted"
        ]
        shown = [Text(f"! {problem}", "yellow") for problem in problems[:_PROBLEMS]]
        if len(problems) > _PROBLEMS:
            shown.append(Text(f"  and {len(problems) - _PROBLEMS} more", "dim"))
        return shown


async def show(screen: Screen, console: Console) -> None:
    """Keep the screen up to date until cancelled; without a terminal, print what changed."""
    if not console.is_terminal:
        last = ""
        while True:
            with console.capture() as captured:
                console.print(await screen.render())
            if (text := captured.get()) != last:
                console.out(text, highlight=False)
            last = text
            await asyncio.sleep(1.0)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(await screen.render(), refresh=True)
            await asyncio.sleep(0.5)
