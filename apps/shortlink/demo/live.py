"""`shortlink demo`: what the terminal shows of the embedded platform."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shortlink.demo.embedded import Embedded, Settings
from shortlink.links.lifecycle import shown_state
from shortlink.links.model import LIVE, Link
from shortlink.why import span
from shortlink_operator.follow import RELEASE_FILE
from shortlink_operator.plan import HELD, LET_GO

_CLAIMS = 200
_ROWS = 40
_COUNTED = 10_000
_FRAME = 7
"""Lines around the rows: title, borders, headings, and what is left out."""

_STYLES = {"active": "green", "expiring": "yellow", "expired": "yellow", "disabled": "red"}


class Screen:
    """What the terminal shows; `clicks` counts redirects of each (code, generation)."""

    def __init__(self, platform: Embedded, settings: Settings, owners: Iterable[str]) -> None:
        self.clicks: Counter[tuple[str, int]] = Counter()
        self._platform = platform
        self._settings = settings
        self._owners = frozenset(owners)

    async def render(self, console: Console, height: int) -> Group:
        """What needs somebody's attention, and under it a table of links, in `height` lines."""
        for code, generation, _ in self._platform.clicks.drain():
            if len(self.clicks) < _COUNTED or (code, generation) in self.clicks:
                self.clicks[code, generation] += 1
        found = [Text(f"! {problem}", "yellow") for problem in self._problems()]
        problems, taken = _fitting(found, console, height // 2)
        if rest := len(found) - len(problems):
            problems.append(Text(f"  and {rest} more, see the log", "yellow"))
            taken += 1
        try:
            links = await self._links()
        except Exception as error:  # the screen may not end what it shows
            return Group(*problems, Text(f"! links can't be listed: {error!r}", "red"))
        table = Table(title=f"{self._settings.base_url}/CODE", title_justify="left")
        for heading in ("code", "target", "state", "expires", "clicks", "made by"):
            number = heading == "clicks"
            table.add_column(heading, no_wrap=True, justify="right" if number else "left")
        rows = max(1, min(_ROWS, height - taken - _FRAME))
        for link in links[:rows]:
            self._row(table, link)
        notes = [Text("  and more links", "dim")] if len(links) > rows else []
        return Group(*problems, table, *notes)

    async def _links(self) -> list[Link]:
        store = self._platform.management.store
        claims = await store.claims("", _CLAIMS)
        namespaces = {claim.key.partition("/")[0] for claim in claims}
        links: list[Link] = []
        for owner in sorted(namespaces | self._owners):
            links += await store.by_owner(owner, "", _ROWS + 1)
        return sorted(links, key=lambda link: (link.state not in LIVE, -link.changed_at))

    def _row(self, table: Table, link: Link) -> None:
        management = self._platform.management
        now = management.clock.wall()
        state = shown_state(link, management.policy, now)
        table.add_row(
            link.code,
            link.target,
            Text(state, _STYLES.get(state, "dim")),
            "never" if link.expires_at is None else span(link.expires_at - now),
            str(self.clicks[link.code, link.generation]),
            link.claim or f"{link.owner} by API",
        )

    def _problems(self) -> Iterator[str]:
        folder, scan = self._settings.folder, self._platform.follower.scan
        for loop, error in self._platform.failing.items():
            yield f"{loop}: {error}"
        if scan is not None:
            if scan.missing:
                yield f"there is no folder {folder}/"
            yield from (f"{folder}/{one.where}: {one.message}" for one in scan.unreadable)
        outcomes = self._platform.reconciler.outcomes.values()
        held = Counter(
            (one.key.partition("/")[0], one.message) for one in outcomes if one.reason == HELD
        )
        for (namespace, message), count in held.items():
            yield (
                f"{count} deletions in namespace {namespace} are held: {message}."
                f" To let them go: echo {namespace} > {folder}/{RELEASE_FILE}"
            )
        for one in outcomes:
            if not one.ready and one.reason not in LET_GO:
                yield f"{one.key}: {one.reason}: {one.message}"
        if scan is not None:
            yield from (f"{folder}/{note}" for note in scan.notes)


def _fitting(texts: list[Text], console: Console, most: int) -> tuple[list[Text], int]:
    """The first of `texts`, as far as `most` lines hold more than one, and the lines it takes."""
    taken = 0
    for number, text in enumerate(texts):
        size = len(text.wrap(console, console.width))
        if number and taken + size > most:
            return texts[:number], taken
        taken += size
    return texts, taken


async def show(screen: Screen, console: Console) -> None:
    """Keep the screen up to date until cancelled; without a terminal, print what changed."""
    if not console.is_terminal:
        last = ""
        while True:
            with console.capture() as captured:
                console.print(await screen.render(console, _ROWS))
            if (text := captured.get()) != last:
                console.out(text, highlight=False)
            last = text
            await asyncio.sleep(1.0)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(await screen.render(console, console.height), refresh=True)
            await asyncio.sleep(0.5)
