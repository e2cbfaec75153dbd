"""Follower: what a folder's looks come to, and when a person lets held deletions go (T2)."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from shortlink.links.model import State
from shortlink.links.policy import SECOND, Policy
from shortlink.store.port import StoreUnavailable
from shortlink_operator.apply import Reconciler
from shortlink_operator.folder import ManifestFolder
from shortlink_operator.follow import RELEASE_FILE, Follower
from shortlink_operator.plan import HELD
from tests.fakes import FailsAt
from tests.samples import POLICY
from tests.world import World


class Rig:
    """A folder, and a follower of it that can be started anew on the same store."""

    def __init__(self, place: Path, policy: Policy) -> None:
        self.world = World(policy)
        self.folder = place / "links"
        self.folder.mkdir()
        self.start()

    def start(self, gate: FailsAt | None = None) -> None:
        """Begin as a new process. `calls` are those to the store since then."""
        gate = gate or FailsAt(0, False, AssertionError())
        self.calls = gate.calls
        self.reconciler = Reconciler(self.world.management(gate))
        self.follower = Follower(
            ManifestFolder(self.folder), self.reconciler, self.world.clock.clock
        )

    def write(
        self,
        name: str,
        namespace: str = "ann",
        target: str = "https://example.com/",
        **spec: str,
    ) -> Path:
        path = self.folder / f"{namespace}-{name}.yaml"
        manifest = {
            "apiVersion": "shortlink.platform/v1alpha1",
            "kind": "ShortLink",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"target": target, "code": name, **spec},
        }
        path.write_text(json.dumps(manifest))
        return path

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.follower.run()

    def release(self, text: str) -> Path:
        path = self.folder / RELEASE_FILE
        path.write_text(text)
        return path

    def live(self) -> set[str]:
        return {link.code for link in self.world.live()}

    def held(self) -> set[str]:
        outcomes = self.reconciler.outcomes.items()
        return {key for key, one in outcomes if one.reason == HELD}

    async def hold(self, *names: str, namespace: str = "ann") -> None:
        """Make links, and take their manifests away: their deletions are held then."""
        paths = [self.write(name, namespace) for name in names]
        await self.look(2)
        for path in paths:
            path.unlink()
        await self.look(2)
        assert {f"{namespace}/{name}" for name in names} <= self.held()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, POLICY)


@pytest.fixture
def braked(tmp_path: Path) -> Rig:
    """Here every deletion is held."""
    return Rig(tmp_path, replace(POLICY, brake_links=0, brake_share=0.0))


# Looks and passes


async def test_T2_the_first_look_of_a_process_changes_nothing(rig: Rig) -> None:
    rig.write("promo")
    await rig.look()
    assert rig.calls == []
    await rig.look()
    assert rig.live() == {"promo"}


async def test_T2_an_edit_is_followed_at_the_next_look(rig: Rig) -> None:
    rig.write("promo")
    await rig.look(2)
    rig.write("promo", target="https://example.com/2")
    await rig.look()
    assert rig.world.link("promo").target == "https://example.com/2"


async def test_T2_an_object_is_gone_when_two_looks_in_a_row_miss_it(rig: Rig) -> None:
    rig.write("stays")
    path = rig.write("promo")
    await rig.look(2)
    for _ in range(3):
        path.unlink()
        await rig.look()
        assert rig.live() == {"promo", "stays"}
        rig.write("promo")
        await rig.look()
    path.unlink()
    await rig.look(2)
    assert rig.live() == {"stays"}
    assert rig.world.told("promo") == ["created", "tombstoned"]


async def test_T2_what_the_first_look_of_a_process_still_saw_is_missed_twice_too(rig: Rig) -> None:
    rig.write("stays")
    path = rig.write("promo")
    await rig.look(2)
    rig.start()
    await rig.look()
    path.unlink()
    await rig.look()
    assert rig.live() == {"promo", "stays"}
    await rig.look()
    assert rig.live() == {"stays"}


async def test_T2_what_went_while_no_process_ran_is_gone_at_the_second_look(rig: Rig) -> None:
    rig.write("stays")
    path = rig.write("promo")
    await rig.look(2)
    path.unlink()
    rig.start()
    await rig.look()
    assert rig.live() == {"promo", "stays"}
    await rig.look()
    assert rig.live() == {"stays"}


async def test_T2_a_full_pass_comes_after_10_s_without_a_change(rig: Rig) -> None:
    rig.write("promo")
    await rig.look(2)
    rig.calls.clear()
    rig.world.clock.advance(10 * SECOND - 1)
    await rig.look()
    assert rig.calls == []
    rig.world.clock.at -= 1000 * SECOND  # the steady clock is what counts
    rig.world.clock.advance(1)
    await rig.look()
    assert rig.calls != []
    rig.calls.clear()
    await rig.look()
    assert rig.calls == []


async def test_T2_a_pass_that_failed_is_repeated_at_the_next_look(rig: Rig) -> None:
    rig.write("promo")
    rig.start(FailsAt(3, False, StoreUnavailable("lost")))
    await rig.look()
    with pytest.raises(StoreUnavailable):
        await rig.look()
    assert rig.live() == set()
    await rig.look()
    assert rig.live() == {"promo"}


async def test_T2_a_pass_that_failed_after_one_that_went_well_is_repeated_too(rig: Rig) -> None:
    rig.write("promo")
    gate = FailsAt(5, False, StoreUnavailable("lost"))
    rig.start(gate)
    await rig.look(2)
    assert rig.live() == {"promo"}
    assert len(gate.calls) == 4
    rig.write("promo", target="https://example.com/2")
    with pytest.raises(StoreUnavailable):
        await rig.look()
    await rig.look()
    assert rig.world.link("promo").target == "https://example.com/2"


async def test_T2_a_failed_pass_over_a_deletion_is_repeated(rig: Rig) -> None:
    rig.write("stays")
    path = rig.write("promo")
    await rig.look(2)
    path.unlink()
    rig.start(FailsAt(1, False, StoreUnavailable("lost")))
    await rig.look()
    with pytest.raises(StoreUnavailable):
        await rig.look()
    await rig.look()
    assert rig.live() == {"stays"}


@pytest.mark.parametrize("before", [True, False], ids=["at the start", "later"])
async def test_T2_an_unreadable_file_is_logged_once(rig: Rig, before: bool) -> None:
    path = rig.write("promo")
    if not before:
        await rig.look(2)
    with structlog.testing.capture_logs() as logs:
        path.write_text("spec: [")
        for _ in range(5):
            rig.world.clock.advance(10 * SECOND)
            await rig.look()
    told = [line for line in logs if line["event"] == "manifest unreadable"]
    assert [line["where"] for line in told] == [path.name]
    assert rig.live() == (set() if before else {"promo"})


async def test_T2_an_unreadable_file_keeps_its_links_and_the_others_go_on(rig: Rig) -> None:
    path = rig.write("promo")
    await rig.look(2)
    path.write_text("")
    rig.write("other")
    await rig.look(3)
    assert rig.live() == {"promo", "other"}
    assert rig.held() == set()


# Links that outlive their objects


async def test_T2_a_retained_link_outlives_its_manifest_and_is_taken_up_by_it_again(
    braked: Rig,
) -> None:
    """No brake holds what is deleted for nobody, and no full pass forgets what the spec said."""
    braked.write("stays")
    path = braked.write("promo", deletionPolicy="Retain")
    await braked.look(2)
    path.unlink()
    for _ in range(3):
        await braked.look(2)
        assert braked.reconciler.outcomes["ann/promo"].reason == "Retained"
        assert (braked.live(), braked.held()) == ({"promo", "stays"}, set())
        braked.start()
        braked.world.clock.advance(10 * SECOND)
    braked.write("promo", target="https://example.com/2")
    await braked.look(2)
    assert braked.world.link("promo").target == "https://example.com/2"
    assert braked.world.told("promo") == ["created", "edited"]


async def test_T2_a_manifest_may_change_its_mind_about_retaining(rig: Rig) -> None:
    rig.write("stays")
    path = rig.write("promo")
    for policy in ("Retain", "Delete"):
        rig.write("promo", deletionPolicy=policy)
        await rig.look(2)
        assert rig.world.kept.claims["ann/promo"].retain is (policy == "Retain")
    path.unlink()
    await rig.look(2)
    assert rig.live() == {"stays"}


# Letting held deletions go


async def test_T2_a_release_lets_only_the_named_namespace_go_and_works_once(braked: Rig) -> None:
    await braked.hold("promo", "away")
    await braked.hold("bobs", namespace="bob")
    release = braked.release("ann\n")
    with structlog.testing.capture_logs() as logs:
        await braked.look()
    assert braked.live() == {"bobs"}
    assert not release.exists()
    assert [line["namespaces"] for line in logs if "namespaces" in line] == [["ann"]]
    await braked.hold("later")
    await braked.look(3)
    assert braked.live() == {"bobs", "later"}


async def test_T2_a_release_may_name_several_namespaces(braked: Rig) -> None:
    await braked.hold("promo")
    await braked.hold("bobs", namespace="bob")
    release = braked.release("bob  ann\ncarol\n")
    await braked.look()
    assert braked.live() == set()
    assert not release.exists()


@pytest.mark.parametrize(
    "text",
    ["", "carol\n", "an", "ANN", "ann/promo", "*", "# ann,\n", "ann\0", "\x00\xff\xfe" * 999],
)
async def test_T2_a_release_of_what_is_not_held_changes_nothing_and_stays(
    braked: Rig, text: str
) -> None:
    await braked.hold("promo")
    release = braked.release("")
    release.write_bytes(text.encode("latin-1"))
    braked.calls.clear()
    await braked.look(3)
    assert (braked.live(), braked.calls) == ({"promo"}, [])
    assert release.exists()


async def test_T2_a_release_laid_down_before_anything_is_held_waits_for_it(braked: Rig) -> None:
    release = braked.release("ann\n")
    path = braked.write("promo")
    await braked.look(2)
    path.unlink()
    await braked.look(2)
    assert release.exists()
    assert (braked.live(), braked.held()) == ({"promo"}, {"ann/promo"})
    await braked.look()
    assert not release.exists()
    assert braked.live() == set()


async def test_T2_a_release_waits_while_a_file_that_may_hold_anything_is_unreadable(
    braked: Rig,
) -> None:
    await braked.hold("promo")
    broken = braked.folder / "broken.yaml"
    broken.write_text("a: [")
    release = braked.release("ann\n")
    await braked.look(3)
    assert braked.live() == {"promo"}
    assert release.exists()
    broken.unlink()
    await braked.look()
    assert braked.live() == set()
    assert not release.exists()


async def test_T2_a_release_waits_while_something_vanished_on_this_look_only(braked: Rig) -> None:
    await braked.hold("promo")
    path = braked.write("other")
    await braked.look(2)
    release = braked.release("ann\n")
    path.unlink()
    await braked.look()
    assert braked.live() == {"promo", "other"}
    assert release.exists()
    braked.write("other")
    await braked.look()
    assert braked.live() == {"other"}
    assert not release.exists()


async def test_T2_a_release_whose_pass_fails_is_used_up_and_asked_for_again(braked: Rig) -> None:
    """The other order could let go, after a crash, of what was held only later."""
    await braked.hold("promo")
    release = braked.release("ann\n")
    braked.start(FailsAt(4, False, StoreUnavailable("lost")))  # a pass is three calls
    await braked.look(2)
    with pytest.raises(StoreUnavailable):
        await braked.look()
    assert not release.exists()
    await braked.look(2)
    assert (braked.live(), braked.held()) == ({"promo"}, {"ann/promo"})


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def endless_link(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [fifo, folder, endless_link])
async def test_T2_a_release_that_is_no_file_is_told_and_lets_nothing_go(
    braked: Rig, make: Callable[[Path], None]
) -> None:
    await braked.hold("promo")
    make(braked.folder / RELEASE_FILE)
    for _ in range(2):
        with pytest.raises(OSError, match=r".+"):
            await braked.look()
    assert braked.live() == {"promo"}
    (shutil.rmtree if make is folder else os.unlink)(braked.folder / RELEASE_FILE)
    braked.release("ann\n")
    await braked.look()
    assert braked.live() == set()


async def test_T2_a_release_that_cannot_be_removed_lets_nothing_go(
    braked: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await braked.hold("promo")
    braked.release("ann\n")

    def denied(_path: Path) -> None:
        raise PermissionError("read-only")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", denied)
        for _ in range(3):
            with pytest.raises(PermissionError):
                await braked.look()
        assert braked.live() == {"promo"}
    await braked.look()
    assert braked.live() == set()


async def test_T2_a_folder_that_is_gone_holds_all_until_it_comes_back_with_a_release(
    rig: Rig,
) -> None:
    rig.write("promo")
    rig.write("away")
    await rig.look(2)
    shutil.rmtree(rig.folder)
    await rig.look(3)
    assert rig.held() == {"ann/promo", "ann/away"}
    assert rig.follower.scan is not None
    assert rig.follower.scan.missing
    rig.folder.mkdir()
    release = rig.release("ann\n")
    await rig.look()
    assert {link.state for link in rig.world.kept.links.values()} == {State.TOMBSTONED}
    assert not release.exists()


async def test_T2_a_folder_that_is_a_file_now_holds_all(braked: Rig) -> None:
    braked.write("promo")
    await braked.look(2)
    shutil.rmtree(braked.folder)
    braked.folder.write_text("a file now")
    await braked.look(3)
    assert braked.held() == {"ann/promo"}
