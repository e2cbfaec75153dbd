"""Drift: what no event told of is found by one sweep, and nothing is done where nothing is (T2)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shortlink.links.lifecycle import Actor, Disable
from shortlink.links.model import Link, State
from shortlink.links.policy import DAY, HOUR, MINUTE
from shortlink.store.port import Claim, StoreUnavailable
from shortlink_operator.drift import DEAF
from shortlink_operator.kinds import FINALIZER
from tests.controller_rig import SPEC, Rig
from tests.fake_cluster import FakeCluster
from tests.fakes import FailsAt
from tests.samples import NOW, a_link
from tests.world import World

KEY = "ann/promo"
OTHER = "https://example.com/b"


async def made(*keys: str, rig: Rig | None = None, **spec: Any) -> Rig:
    """A rig whose objects, each with a drawn code, were handled and swept."""
    rig = rig or Rig()
    for key in keys:
        rig.cluster.apply(key, {"target": OTHER} | spec)
    await swept(rig)
    rig.wrote()
    assert rig.metrics.drift == {}
    return rig


async def swept(rig: Rig) -> None:
    await rig.run()
    await rig.drift.sweep()
    await rig.run()


def named(count: int) -> list[str]:
    return [f"ann/{number:02}" for number in range(count)]


def is_deaf(rig: Rig) -> bool:
    return rig.drift.deaf


def states(rig: Rig) -> list[str]:
    return sorted(link.state for link in rig.world.kept.links.values())


def link_of(rig: Rig, key: str = KEY) -> Link:
    return rig.world.link(rig.object(key)["status"]["code"])


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


async def test_T2_an_object_that_ended_while_nobody_watched_takes_its_link_along() -> None:
    rig = await made(KEY, "ann/other")
    rig.cluster.lose(KEY)
    await swept(rig)
    assert states(rig) == [State.ACTIVE, State.TOMBSTONED]
    assert rig.metrics.drift == {"gone": 1}
    assert rig.controller.index.get(KEY) is None


async def test_T2_an_object_that_ended_while_no_operator_ran_takes_its_link_along() -> None:
    rig = await made(KEY, "ann/other")
    rig.cluster.lose(KEY)
    again = Rig(rig.world, rig.cluster)
    await swept(again)
    assert states(again) == [State.ACTIVE, State.TOMBSTONED]
    assert again.metrics.drift == {"gone": 1}


@pytest.mark.parametrize("restarted", [False, True])
async def test_T2_many_that_are_gone_at_once_are_held_until_the_brake_lets_go(
    restarted: bool,
) -> None:
    rig = await made(*named(30))
    for key in named(30)[:15]:
        rig.cluster.lose(key)
    if restarted:
        rig = Rig(rig.world, rig.cluster)
    for _ in range(3):
        await swept(rig)
    assert set(states(rig)) == {State.ACTIVE}
    assert (rig.metrics.held, rig.wrote()) == (15, [])
    rig.management.policy = replace(rig.management.policy, brake_share=1.0)
    await swept(rig)
    await swept(rig)
    assert states(rig).count(State.TOMBSTONED) == 15
    assert rig.metrics.held == 0
    rig.management.policy = replace(rig.management.policy, brake_share=0.2)
    rig.world.clock.advance(HOUR)
    rig.cluster.lose("ann/29")
    await swept(rig)
    assert states(rig).count(State.TOMBSTONED) == 16


async def test_T2_a_cluster_without_any_object_ends_no_link() -> None:
    rig = await made(*named(3))
    again = Rig(rig.world, FakeCluster())
    await swept(again)
    assert set(states(again)) == {State.ACTIVE}
    codes = {link.code for link in rig.world.kept.links.values()}
    for key in named(3):
        again.cluster.apply(key, {"target": OTHER})
        await swept(again)
        assert set(states(again)) == {State.ACTIVE}
    assert {again.object(key)["status"]["code"] for key in named(3)} == codes
    again.cluster.lose("ann/00")
    await swept(again)
    assert states(again).count(State.TOMBSTONED) == 1


async def test_T2_a_person_lets_the_links_of_an_empty_cluster_go() -> None:
    rig = await made(*named(3))
    again = Rig(rig.world, FakeCluster())
    await swept(again)
    again.management.policy = replace(again.management.policy, brake_share=1.0)
    await swept(again)
    assert set(states(again)) == {State.TOMBSTONED}


async def test_T2_many_that_are_gone_in_one_namespace_of_a_large_cluster_are_held() -> None:
    rig = await made(*named(30), *(f"bob/{number}" for number in range(80)))
    for key in named(15):
        rig.cluster.lose(key)
    await swept(rig)
    assert set(states(rig)) == {State.ACTIVE}
    rig.cluster.lose("bob/0")
    await swept(rig)
    assert states(rig).count(State.TOMBSTONED) == 1


async def test_T2_a_cluster_that_is_rebuilt_bit_by_bit_loses_no_link() -> None:
    spaces = [[f"{name}/{number}" for number in range(4)] for name in ("ann", "bob", "cat", "eve")]
    keys = [key for space in spaces for key in space]
    rig = await made(*keys)
    again = Rig(rig.world, FakeCluster())
    again.cluster.apply("ann/0", {"target": OTHER})
    await swept(again)
    await swept(again)
    assert again.metrics.held == 15
    for key in keys[1:]:
        again.cluster.apply(key, {"target": OTHER})
        await swept(again)
        again.world.clock.advance(HOUR)
        assert set(states(again)) == {State.ACTIVE}
    await swept(again)
    assert again.metrics.held == 0
    assert len(rig.world.kept.links) == 16
    again.cluster.lose("ann/0")
    await swept(again)
    assert states(again).count(State.TOMBSTONED) == 1


async def test_T2_a_claim_whose_link_never_came_is_released() -> None:
    rig = await made("ann/other")
    rig.world.kept.claims[KEY] = Claim(KEY, "never", 1, "t9", "here", "uid-0")
    rig.world.kept.claims["ann/theirs"] = Claim("ann/theirs", "theirs", 1, "t8", "there", "uid-9")
    await swept(rig)
    assert sorted(rig.world.kept.claims) == ["ann/other", "ann/theirs"]
    assert rig.metrics.drift == {}


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


def orphan(number: int, **changes: Any) -> Link:
    code = f"orphan{number}"
    return a_link(code=code, token=f"lost-{number}", claim=f"ann/lost{number}", **changes)


async def test_T2_links_that_no_claim_holds_are_tombstoned() -> None:
    rig = await made(KEY)
    rig.world.keep(orphan(1), orphan(2), a_link(code="api"))
    again = Rig(rig.world, rig.cluster)
    await swept(again)
    assert [again.world.link(f"orphan{n}").state for n in (1, 2)] == [State.TOMBSTONED] * 2
    assert (again.world.link("api").state, link_of(again).state) == (State.ACTIVE,) * 2
    assert (again.metrics.drift, again.metrics.orphans) == ({"orphan": 2}, 2)


async def test_T2_links_are_compared_with_claims_every_hour() -> None:
    rig = await made(KEY)
    rig.world.keep(orphan(1))
    rig.world.clock.advance(HOUR - MINUTE)
    await swept(rig)
    assert rig.world.link("orphan1").state is State.ACTIVE
    rig.world.clock.advance(MINUTE)
    await swept(rig)
    assert rig.world.link("orphan1").state is State.TOMBSTONED


async def test_L5_a_link_whose_claim_came_meanwhile_is_no_orphan() -> None:
    world = World()

    async def gate(method: str, done: bool) -> None:
        if method == "by_owner" and done:
            world.kept.claims["ann/lost1"] = Claim("ann/lost1", "orphan1", 1, "lost-1", "there")

    rig = await made(KEY, rig=Rig(world))
    again = Rig(world, rig.cluster, gate=gate)
    world.keep(orphan(1))
    await swept(again)
    assert world.link("orphan1").state is State.ACTIVE


async def test_T2_many_orphans_are_held() -> None:
    rig = await made(KEY)
    rig.world.keep(*(orphan(number) for number in range(11)))
    again = Rig(rig.world, rig.cluster)
    await swept(again)
    assert set(states(again)) == {State.ACTIVE}
    assert again.metrics.orphans == 11


async def test_L5_who_was_deposed_tombstones_no_orphan() -> None:
    rig = await made(KEY)
    rig.world.keep(orphan(1))
    again = Rig(rig.world, rig.cluster)
    again.deposed = RuntimeError("deposed")
    with pytest.raises(RuntimeError, match="deposed"):
        await again.drift.sweep()
    assert rig.world.link("orphan1").state is State.ACTIVE


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
