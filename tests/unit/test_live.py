"""The demo's screen: what needs somebody comes first, and it shows whatever it can (T2)."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from shortlink.demo.embedded import Embedded, Settings
from shortlink.demo.live import Screen
from shortlink.links.lifecycle import Delete, Disable
from shortlink.links.policy import DAY, HOUR
from shortlink.redirect.counters import Clicks
from shortlink.store.port import Claim, StoreUnavailable
from shortlink_operator.apply import Reconciler
from shortlink_operator.folder import ManifestFolder
from shortlink_operator.follow import Follower
from shortlink_operator.relay import AuditLog, Relay
from shortlink_operator.sweep import Sweeper
from tests.samples import ANN, NOW, POLICY, ROOT, a_create
from tests.world import World


class Rig:
    """A platform on a store in memory, without sockets, and its screen of `width` columns."""

    def __init__(self, place: Path, width: int = 300) -> None:
        self.world = World(replace(POLICY, brake_links=0, brake_share=0.0))
        self.settings = Settings(place / "links", place)
        self.settings.folder.mkdir()
        self.down = False
        self.width = width
        management = self.world.management(self._gate)
        reconciler = Reconciler(management)
        self.clicks = Clicks()
        self.platform = Embedded(
            management,
            self.clicks,
            Follower(ManifestFolder(self.settings.folder), reconciler, self.world.clock.clock),
            reconciler,
            Sweeper(management),
            Relay(management.store, AuditLog(place / "audit.jsonl")),
            AsyncExitStack(),
        )
        self.screen = Screen(self.platform, self.settings, ["demo"])

    async def _gate(self, _method: str, _done: bool) -> None:
        if self.down:
            raise StoreUnavailable("links.db is locked")

    def write(self, name: str, namespace: str = "ann", code: str | None = None) -> Path:
        path = self.settings.folder / f"{namespace}-{name}.yaml"
        manifest = {
            "apiVersion": "shortlink.platform/v1alpha1",
            "kind": "ShortLink",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"target": f"https://example.com/{name}", "code": code or name},
        }
        path.write_text(json.dumps(manifest))
        return path

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.platform.follower.run()

    async def hold(self, *names: str, namespace: str = "ann") -> None:
        paths = [self.write(name, namespace) for name in names]
        await self.look(2)
        for path in paths:
            path.unlink()
        await self.look(2)

    async def shown(self, height: int = 60) -> list[str]:
        """The lines on the screen."""
        console = Console(file=io.StringIO(), width=self.width, height=height)
        with console.capture() as captured:
            console.print(await self.screen.render(console, height))
        return [line.rstrip() for line in captured.get().splitlines()]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    async with rig.platform:
        yield rig


def row(lines: list[str], code: str) -> list[str]:
    """The cells of a link's row."""
    (line,) = [line for line in lines if f" {code} " in line and "│" in line]
    return [cell.strip() for cell in line.strip("│").split("│")]


async def test_a_row_tells_all_of_a_link(rig: Rig) -> None:
    management = rig.world.management()
    made = {
        "alive": a_create(code="alive", token="1", expires_at=NOW + 3 * DAY),
        "soon": a_create(code="soon", token="2", expires_at=NOW + HOUR),
        "over": a_create(code="over", token="3", expires_at=NOW + 1),
        "ever": a_create(code="ever", token="4", expires_at=None, permanent=True),
        "bad": a_create(code="bad", token="5", expires_at=NOW + DAY + HOUR),
        "gone": a_create(code="gone", token="6"),
    }
    for create in made.values():
        await management.create(replace(create, by=ANN))
    await management.apply("bad", Disable(ROOT, "phishing"))
    await management.apply("gone", Delete(ANN))
    rig.world.clock.advance(1)
    for _ in range(3):
        rig.clicks.add(b"/alive", 1, NOW)
    rig.clicks.add(b"/alive", 2, NOW)  # of another generation
    rig.screen = Screen(rig.platform, rig.settings, ["ann"])
    lines = await rig.shown()
    assert row(lines, "alive") == [
        *("alive", "https://example.com/a", "active", "in 2 d 23 h", "3", "ann by API")
    ]
    assert row(lines, "soon")[2:4] == ["expiring", "in 59 min 59 s"]
    assert row(lines, "over")[2] == "expired"
    assert row(lines, "ever")[3] == "never"
    assert row(lines, "bad")[2] == "disabled"
    assert row(lines, "gone")[2] == "tombstoned"
    assert lines.index(next(line for line in lines if " gone " in line)) == len(lines) - 2


async def test_what_ended_with_its_object_is_no_problem(rig: Rig) -> None:
    rig.world.kept.claims["ann/gone"] = Claim("ann/gone", "gone", 1, "t1")
    await rig.look(2)
    assert rig.platform.reconciler.outcomes["ann/gone"].reason == "Gone"
    assert not [line for line in await rig.shown() if line.startswith("!")]


async def test_problems_come_before_the_links(rig: Rig) -> None:
    rig.write("fine")
    rig.write("taken", code="fine")
    (rig.settings.folder / "broken.yaml").write_text("spec: [")
    (rig.settings.folder / "map.yaml").write_text("apiVersion: v1\nkind: ConfigMap\n")
    await rig.look(2)
    rig.platform.failing["sweep"] = "no room on the disk"
    lines = await rig.shown()
    folder = rig.settings.folder
    assert lines[0] == "! sweep: no room on the disk"
    assert lines[1].startswith(f"! {folder}/broken.yaml: is not readable YAML: line 2")
    assert lines[2].startswith("! ann/taken: Taken: spec.code: fine is taken")
    assert (
        lines[3] == f"! {folder}/map.yaml: kind 'ConfigMap' is not for this platform; passed over"
    )
    assert lines[4] == "http://127.0.0.1:8080/CODE"
    assert row(lines, "fine")[5] == "ann/fine"


async def test_deletions_that_are_held_are_one_line_for_a_namespace(rig: Rig) -> None:
    await rig.hold("one1", "two2", "three")
    await rig.hold("bobs", namespace="bob")
    lines = [line for line in await rig.shown() if line.startswith("!")]
    release = f"{rig.settings.folder}/.allow-mass-delete"
    assert len(lines) == 2
    for namespace, count in (("ann", 3), ("bob", 1)):
        (line,) = [line for line in lines if f" namespace {namespace} are held: " in line]
        assert line.startswith(f"! {count} deletions ")
        assert line.endswith(f" To let them go: echo {namespace} > {release}")


async def test_a_missing_folder_is_told(rig: Rig) -> None:
    rig.settings.folder.rmdir()
    await rig.look()
    assert (await rig.shown())[0] == f"! there is no folder {rig.settings.folder}/"


async def test_more_problems_than_fit_are_counted(rig: Rig) -> None:
    for n in range(30):
        (rig.settings.folder / f"broken{n:02}.yaml").write_text("spec: [")
    await rig.look()
    lines = await rig.shown(24)
    assert len([line for line in lines if line.startswith("!")]) == 12
    assert lines[12] == "  and 18 more, see the log"


async def test_a_link_whose_manifest_became_unreadable_stays_listed(rig: Rig) -> None:
    path = rig.write("promo")
    await rig.look(2)
    path.write_text("spec: [")
    await rig.look(2)
    lines = await rig.shown()
    assert lines[0].startswith(f"! {rig.settings.folder}/{path.name}: ")
    assert row(lines, "promo")[2] == "active"


async def test_a_store_that_fails_is_a_line(rig: Rig) -> None:
    rig.write("promo")
    await rig.look(2)
    rig.platform.failing["relay"] = "down"
    rig.down = True
    lines = await rig.shown()
    assert lines[0] == "! relay: down"
    assert lines[1].startswith("! links can't be listed: ")
    assert "links.db is locked" in lines[1]
    assert len(lines) == 2
    rig.down = False
    assert row(await rig.shown(), "promo")[2] == "active"


async def test_clicks_are_counted_while_the_store_fails(rig: Rig) -> None:
    rig.write("promo")
    await rig.look(2)
    rig.down = True
    rig.clicks.add(b"/promo", 1, NOW)
    await rig.shown()
    rig.down = False
    assert row(await rig.shown(), "promo")[4] == "1"


@pytest.mark.parametrize("problems", [0, 3, 30])
@pytest.mark.parametrize("links", [0, 10, 100])
@pytest.mark.parametrize("height", [20, 50])
@pytest.mark.parametrize("width", [300, 80])
async def test_all_fits_the_height(
    tmp_path: Path, problems: int, links: int, height: int, width: int
) -> None:
    rig = Rig(tmp_path, width)
    for n in range(links):
        await rig.world.management().create(
            a_create(by=replace(ANN, owner="demo"), code=f"code{n:03}", token=str(n))
        )
    for n in range(problems):
        (rig.settings.folder / f"broken{n:02}.yaml").write_text("spec: [")
    await rig.look()
    lines = await rig.shown(height)
    assert len(lines) <= height
    rows = len([line for line in lines if " code" in line and "│" in line])
    assert rows == links or (rows > 0 and lines[-1] == "  and more links")


async def test_markup_and_control_characters_in_what_is_shown_are_only_text(rig: Rig) -> None:
    (rig.settings.folder / "[red]x[.yaml").write_text("spec: [")
    await rig.look()
    assert "/[red]x[.yaml: " in (await rig.shown())[0]
