"""Drift: what no event told of is found by one sweep, and nothing is done where nothing is (T2)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shortlink.links.lifecycle import Actor, Disable
from shortlink.links.model import Link, State
from shortlink.links.policy import DAY
from shortlink.store.port import StoreUnavailable
from shortlink_operator.drift import DEAF
from shortlink_operator.kinds import FINALIZER
from tests.controller_rig import KEY, OTHER, SPEC, Rig, link_of, made, named, states, swept
from tests.fake_cluster import FakeCluster
from tests.fakes import FailsAt
from tests.samples import NOW


def is_deaf(rig: Rig) -> bool:
    return rig.drift.deaf


async def everything() -> Rig:
    """One object of each sort, at rest."""
    rig = Rig()
    rig.in_force.links_per_namespace = 6
    rig.cluster.apply("bob/promo", SPEC)
    await rig.run()
    rig.cluster.apply("cat/promo", SPEC)
    specs: dict[str, dict[str, Any]] = {
        "ready": {},
        "refused": {"target": "ftp://x"},
        "past": {"expiresAt": "2020-01-01T00:00:00Z"},
        "retained": {"deletionPolicy": "Retain"},
        "deleted": {},
        "disabled": {},
        "foreign": {},
    }
    for name, spec in specs.items():
        rig.cluster.apply(f"ann/{name}", {"target": OTHER} | spec)
    rig.cluster.apply("ann/unread", {"target": OTHER, "later": 1})
    await rig.run()
    for name in ("retained", "deleted"):
        rig.cluster.delete(f"ann/{name}")
    disabled = rig.object("ann/disabled")["status"]["code"]
    await rig.management.apply(disabled, Disable(Actor("root", admin=True), "spam"))
    claim = rig.world.kept.claims["ann/foreign"]
    rig.world.kept.claims["ann/foreign"] = replace(claim, cluster="there")
    await swept(rig)
    rig.in_force.links_per_namespace = 2
    rig.cluster.apply("ann/over", {"target": OTHER})
    for key in named(3):
        rig.cluster.apply(f"eve/{key[4:]}", {"target": OTHER})
    await rig.run()
    rig.cluster.delete("eve/00")
    await swept(rig)
    return rig


async def test_T2_a_steady_state_writes_nothing() -> None:
    rig = await everything()
    reasons = {key: rig.ready(key)[1] for key in rig.cluster.objects}
    assert set(reasons.values()) == {
        *("Ready", "Taken", "InvalidTarget", "ExpiryInPast", "Disabled", "Mirrored"),
        *("Unreadable", "OverQuota"),
    }
    rig.wrote()
    rig.metrics.drift.clear()
    before = dict(rig.world.kept.links), dict(rig.world.kept.claims)
    for _ in range(3):
        await swept(rig)
    assert (rig.wrote(), rig.metrics.drift, rig.failures) == ([], {}, [])
    assert (rig.world.kept.links, rig.world.kept.claims) == before


async def test_T2_a_restarted_operator_sweeps_a_steady_state_and_writes_nothing() -> None:
    rig = await everything()
    rig.wrote()
    again = Rig(rig.world, rig.cluster)
    again.in_force.links_per_namespace = 2
    await swept(again)
    await swept(again)
    assert (again.wrote(), again.metrics.drift, again.failures) == ([], {}, [])


async def test_T2_what_became_of_a_link_is_told_in_its_status() -> None:
    rig = await made(KEY)
    await rig.management.apply(link_of(rig).code, Disable(Actor("root", admin=True), "spam"))
    await swept(rig)
    assert rig.ready(KEY) == ("False", "Disabled")
    assert (rig.wrote(), rig.metrics.drift) == ([(KEY, "status")], {"status": 1})


def row_changed(rig: Rig) -> None:
    rig.world.keep(replace(link_of(rig), target="https://example.com/c", version=7))


def row_tombstoned(rig: Rig) -> None:
    link = replace(link_of(rig), state=State.TOMBSTONED, tombstoned_at=NOW, version=7)
    rig.world.keep(link)


def finalizer_lost(rig: Rig) -> None:
    rig.cluster.lagging = True
    rig.cluster.change(KEY, {"metadata": {"finalizers": None}})


def status_changed(rig: Rig) -> None:
    rig.cluster.lagging = True
    rig.cluster.change(KEY, {"status": {"url": "https://else.example"}}, status=True)


def spec_changed(rig: Rig) -> None:
    rig.cluster.lagging = True
    rig.cluster.change(KEY, {"spec": {"tags": ["more"]}})


@pytest.mark.parametrize(
    "drift", [row_changed, row_tombstoned, finalizer_lost, status_changed, spec_changed]
)
async def test_T2_one_sweep_repairs(drift: Callable[[Rig], None]) -> None:
    rig = await made(KEY)
    drift(rig)
    await swept(rig)
    assert rig.ready(KEY) == ("True", "Ready")
    link = link_of(rig)
    assert (link.state, link.target) == (State.ACTIVE, OTHER)
    assert link.tags == tuple(rig.object(KEY)["spec"].get("tags", ()))
    assert FINALIZER in rig.object(KEY)["metadata"]["finalizers"]
    assert rig.object(KEY)["status"]["url"] == f"https://s.example/{link.code}"
    await swept(rig)
    assert rig.metrics.drift.total() <= 1


async def test_T2_a_cluster_that_was_put_back_is_followed_again() -> None:
    rig = await made(KEY)
    rig.cluster.change(KEY, {"metadata": {"labels": {"a": "b"}}})
    rig.cluster.put_back(2)
    rig.cluster.apply(KEY, {"target": "https://example.com/c"})
    await swept(rig)
    assert (rig.ready(KEY), link_of(rig).target) == (("True", "Ready"), "https://example.com/c")
    rig.cluster.apply(KEY, {"target": OTHER})
    await rig.run()
    assert link_of(rig).target == OTHER


async def test_T2_an_object_that_nobody_told_of_is_handled() -> None:
    rig = await made("ann/first")
    rig.cluster.lagging = True
    rig.cluster.apply(KEY, SPEC)
    await swept(rig)
    assert rig.ready(KEY) == ("True", "Ready")


async def test_T2_a_deletion_that_nobody_told_of_is_carried_out() -> None:
    rig = await made(KEY)
    rig.cluster.lagging = True
    rig.cluster.delete(KEY)
    await swept(rig)
    assert (rig.cluster.objects, states(rig)) == ({}, [State.TOMBSTONED])
    await swept(rig)
    assert rig.controller.index.get(KEY) is None


async def test_T2_the_watch_is_deaf_when_it_does_not_tell_what_sweeps_see() -> None:
    rig = await made(KEY)
    rig.cluster.lagging = True
    rig.cluster.change(KEY, {"metadata": {"labels": {"a": "b"}}})
    await swept(rig)
    await swept(rig)
    assert not is_deaf(rig)
    rig.world.clock.advance(DEAF)
    rig.cluster.change(KEY, {"metadata": {"labels": {"a": "c"}}})
    await swept(rig)
    assert is_deaf(rig)
    rig.cluster.catch_up()
    await swept(rig)
    assert not is_deaf(rig)


async def test_T2_a_watch_that_tells_of_everything_is_not_deaf() -> None:
    rig = Rig()
    for key in named(5):
        rig.cluster.apply(key, {"target": OTHER})
        await rig.drift.sweep()
        await rig.run()
    await swept(rig)
    rig.cluster.wrench("ann/01")
    for _ in range(3):
        rig.world.clock.advance(DEAF)
        rig.cluster.change("ann/00", {"metadata": {"labels": {"at": str(rig.world.clock.at)}}})
        await swept(rig)
        assert not is_deaf(rig)


async def test_T2_a_mirror_follows_what_its_home_does() -> None:
    home = await made(KEY)
    mirror = await made(KEY, rig=Rig(home.world, FakeCluster(), "there"))
    home.cluster.apply(KEY, {"target": "https://example.com/c"})
    await home.run()
    await swept(mirror)
    assert mirror.ready(KEY) == ("False", "SpecDiffers")
    home.cluster.delete(KEY)
    await home.run()
    await swept(mirror)
    assert mirror.ready(KEY) == ("False", "HomeDeleted")
    await swept(mirror)
    assert mirror.wrote() == [(KEY, "status")] * 2
    assert states(home) == [State.TOMBSTONED]


async def test_T2_room_that_another_left_is_found() -> None:
    rig = Rig()
    rig.in_force.links_per_namespace = 1
    for key in named(2):
        rig.cluster.apply(key, {"target": OTHER})
    await swept(rig)
    assert rig.ready("ann/01") == ("False", "OverQuota")
    rig.cluster.delete("ann/00")
    await swept(rig)
    assert rig.ready("ann/01") == ("True", "Ready")


async def test_T2_a_policy_that_was_mended_lets_objects_go_on() -> None:
    rig = Rig()
    rig.in_force.wrong = "spec.grace is 1s"
    rig.cluster.apply(KEY, SPEC)
    await swept(rig)
    assert rig.ready(KEY) == ("False", "PolicyInvalid")
    rig.in_force.wrong = ""
    await swept(rig)
    assert rig.ready(KEY) == ("True", "Ready")


async def test_T2_one_unreadable_row_hides_no_other_object() -> None:
    rig = await made(*named(3))
    codes = [link_of(rig, key).code for key in named(3)]
    rig.world.kept.links[codes[0]] = None  # type: ignore[assignment]
    for code in codes[1:]:
        rig.world.keep(replace(rig.world.link(code), target="https://x.example", version=7))
    broken = rig.world.kept.links

    class Rows(dict[str, Link]):
        def get(self, code: str, default: Any = None) -> Any:
            if code == codes[0]:
                raise ValueError("row of another release")
            return super().get(code, default)

    rig.world.kept.links = Rows(broken)
    await swept(rig)
    assert [link_of(rig, key).target for key in named(3)[1:]] == [OTHER] * 2
    assert rig.ready("ann/00") == ("False", "Broken")


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("when", ["claims", "get"])
async def test_T2_an_object_changed_while_it_is_swept_is_not_taken_for_drift(
    handled: bool, when: str
) -> None:
    rig = await made(KEY)
    changed = False

    async def gate(method: str, done: bool) -> None:
        nonlocal changed
        if method == when and done and not changed:
            changed = True
            rig.cluster.apply(KEY, {"target": "https://example.com/c"})
            rig.cluster.apply("ann/new", {"target": OTHER})
            if handled:
                await again.run()

    again = Rig(rig.world, rig.cluster, gate=gate)
    await again.drift.sweep()
    assert changed
    assert again.metrics.drift == {}
    await again.run()
    assert link_of(again).target == "https://example.com/c"


async def test_T2_a_store_that_is_away_ends_the_sweep_and_the_next_goes_on() -> None:
    rig = await made(KEY)
    row_changed(rig)
    for number in range(1, 4):
        again = Rig(rig.world, rig.cluster, gate=FailsAt(number, False, StoreUnavailable("lost")))
        with pytest.raises(StoreUnavailable):
            await again.drift.sweep()
    await swept(rig)
    assert link_of(rig).target == OTHER


async def test_T2_an_expired_link_is_shown_as_it_is() -> None:
    rig = await made(KEY, expiresAt="2027-02-15T08:00:00Z")
    rig.world.clock.advance(32 * DAY)
    await swept(rig)
    assert rig.ready(KEY) == ("False", "Expired")
    rig.wrote()
    await swept(rig)
    assert rig.wrote() == []


async def test_T2_progress_is_told_page_by_page() -> None:
    rig = await made(*named(3))
    told: list[int] = []
    rig.drift._progressed = lambda: told.append(1)
    await rig.drift.sweep()
    assert len(told) >= 2
