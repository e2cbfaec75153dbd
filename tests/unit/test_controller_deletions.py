"""Controller: what becomes of a deleted object, and what its deletion waits for (T2, L1)."""

import asyncio
from typing import Any

import pytest

from shortlink.links.model import State
from shortlink_operator.cluster import Conflict
from shortlink_operator.controller import TOGETHER
from shortlink_operator.kinds import ALLOW_DELETE, FINALIZER, TAKE_OVER
from tests.controller_rig import KEY, OTHER, SPEC, Rig, made, named, states, swept
from tests.fake_cluster import FakeCluster, fails


async def test_T2_an_object_that_cannot_be_read_can_be_deleted() -> None:
    rig = await made(KEY)
    rig.cluster.annotate(KEY, "shortlink.platform/of-a-later-version", "yes")
    rig.cluster.delete(KEY)
    await rig.run()
    assert (rig.cluster.objects, states(rig)) == ({}, [State.TOMBSTONED])


async def test_L1_a_deletion_tombstones_the_link_and_then_lets_go() -> None:
    rig = await made(KEY)
    rig.cluster.change(KEY, {"metadata": {"finalizers": [FINALIZER, "example.com/theirs"]}})
    rig.cluster.delete(KEY)
    rig.cluster.annotate(KEY, TAKE_OVER, "elsewhere")
    await rig.run(1.9)
    assert states(rig) == [State.ACTIVE]
    await rig.run()
    assert states(rig) == [State.TOMBSTONED]
    assert rig.object(KEY)["metadata"]["finalizers"] == ["example.com/theirs"]
    assert rig.object(KEY)["status"]["state"] == "tombstoned"
    assert rig.object(KEY)["status"]["conditions"][0]["reason"] == "Deleted"
    assert rig.wrote() == [(KEY, "status"), (KEY, "")]
    await Rig(rig.world, rig.cluster).run()
    assert rig.wrote() == []
    rig.cluster.told = rig.controller.saw
    rig.cluster.change(KEY, {"metadata": {"finalizers": None}})
    await rig.run()
    assert (rig.wrote(), rig.metrics.reasons, rig.failures) == ([], {}, [])


async def test_L1_a_deletion_asks_the_api_server_for_no_more_than_it_takes() -> None:
    rig = await made(KEY, "ann/other")
    asked: list[str] = []
    rig.cluster.before = lambda what, key: asked.append(what)
    rig.cluster.delete(KEY)
    await rig.run()
    rig.cluster.delete("ann/other")
    await rig.run()
    assert (rig.cluster.objects, asked) == ({}, ["list", "patch", "patch"])


async def test_L2_an_object_that_is_made_again_has_its_link_back() -> None:
    rig = await made(KEY)
    code = rig.object(KEY)["status"]["code"]
    rig.cluster.delete(KEY)
    await rig.run()
    await made(KEY, rig=rig)
    assert rig.object(KEY)["status"]["code"] == code
    assert states(rig) == [State.ACTIVE]


async def test_T2_a_retained_link_outlives_its_object() -> None:
    rig = await made(*named(30), deletionPolicy="Retain")
    await made("ann/0", rig=rig)
    for key in (*named(30), "ann/0"):
        rig.cluster.delete(key)
    await rig.run()
    assert rig.cluster.objects == {}
    assert sorted(states(rig)) == [State.ACTIVE] * 30 + [State.TOMBSTONED]
    await made("ann/00", rig=rig, deletionPolicy="Retain")
    assert len(rig.world.kept.links) == 31


async def test_T2_many_deletions_asked_for_together_are_held_together() -> None:
    rig = await made(*named(40))
    for key in named(11):
        rig.cluster.delete(key)
    await rig.run()
    assert {rig.ready(key) for key in named(11)} == {("True", "DeletionHeld")}
    assert set(states(rig)) == {State.ACTIVE}
    assert "11 of 40" in rig.said("ann/00")
    assert len(rig.cluster.events) == 11
    assert rig.wrote().count(("ann/00", "status")) == 1
    rig.cluster.annotate("ann/00", ALLOW_DELETE, "true")
    await rig.run(600)
    assert "ann/00" not in rig.cluster.objects
    assert rig.ready("ann/01") == ("True", "DeletionHeld")
    assert states(rig).count(State.TOMBSTONED) == 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_T2_deletions_one_after_the_other_are_counted_together(restarted: bool) -> None:
    rig = await made(*named(40))
    for key in named(8):
        rig.cluster.delete(key)
    await rig.run()
    assert states(rig).count(State.TOMBSTONED) == 8
    again = Rig(rig.world, rig.cluster) if restarted else rig
    for key in named(11)[8:]:
        again.cluster.delete(key)
    await again.run()
    assert again.ready("ann/10") == ("True", "DeletionHeld")
    assert states(again).count(State.TOMBSTONED) == 8


async def test_T2_deletions_that_were_taken_back_do_not_count() -> None:
    rig = await made(*named(20))
    for key in named(8):
        rig.cluster.delete(key)
    await rig.run()
    await made(*named(8), rig=rig)
    for key in named(20)[8:16]:
        rig.cluster.delete(key)
    await rig.run()
    assert states(rig).count(State.TOMBSTONED) == 8


async def test_T2_a_held_deletion_stays_held_over_a_restart_and_when_the_window_is_over() -> None:
    rig = await made(*named(20))
    for key in named(11):
        rig.cluster.delete(key)
    await rig.run()
    rig.wrote()
    again = Rig(rig.world, rig.cluster)
    for key in named(10):
        again.cluster.annotate(key, ALLOW_DELETE, "true")
    await again.run(600)
    again.controller.again("ann/10")
    await again.run()
    assert again.ready("ann/10") == ("True", "DeletionHeld")
    assert states(again).count(State.TOMBSTONED) == 10
    assert (("ann/10", "status") in again.wrote(), len(again.cluster.events)) == (False, 11)


async def test_T2_objects_that_lost_their_finalizer_are_deleted_under_the_same_brake() -> None:
    rig = await made(*named(20))
    rig.cluster.wrench("ann/00")
    await rig.run()
    assert states(rig).count(State.TOMBSTONED) == 1
    for key in named(20)[1:]:
        rig.cluster.wrench(key)
    await rig.run()
    assert states(rig).count(State.TOMBSTONED) == 1
    assert rig.failures == []


async def test_T2_objects_that_are_back_at_once_do_not_count_for_the_brake() -> None:
    rig = await made(*named(20))
    for key in named(8):
        rig.cluster.wrench(key)
        rig.cluster.apply(key, {"target": OTHER})
    await rig.run(0)
    for key in named(20)[8:16]:
        rig.cluster.delete(key)
    await rig.run()
    assert states(rig).count(State.TOMBSTONED) == 8
    assert set(rig.cluster.objects) == set(named(20)) - set(named(20)[8:16])


async def test_T2_without_a_policy_nothing_is_made_changed_or_deleted_but_by_a_person() -> None:
    rig = await made("ann/old", "ann/older", "ann/lost", "ann/released")
    rig.in_force.wrong = "spec.grace is 1s"
    rig.cluster.apply(KEY, SPEC)
    rig.cluster.annotate("ann/older", TAKE_OVER, "elsewhere")
    rig.cluster.annotate("ann/released", ALLOW_DELETE, "true")
    rig.cluster.delete("ann/old")
    rig.cluster.delete("ann/released")
    rig.cluster.wrench("ann/lost")
    await swept(rig)
    for key in (KEY, "ann/old"):
        assert (rig.ready(key), rig.said(key)) == (("False", "PolicyInvalid"), "spec.grace is 1s")
    assert rig.ready("ann/older") == ("True", "Ready")
    assert sorted(rig.wrote()) == [("ann/old", "status"), (KEY, "status"), ("ann/released", "")]
    assert states(rig) == [State.ACTIVE] * 3 + [State.TOMBSTONED]
    rig.metrics.drift.clear()
    await swept(rig)
    assert (rig.metrics.drift, rig.wrote(), rig.failures) == ({}, [], [])
    rig.in_force.wrong = ""
    await swept(rig)
    await swept(rig)
    assert set(rig.cluster.objects) == {KEY, "ann/older"}
    assert states(rig) == [State.ACTIVE] * 2 + [State.TOMBSTONED] * 3


async def test_T2_a_mirror_writes_and_deletes_nothing() -> None:
    home = await made(KEY)
    there = home.object(KEY)["status"]
    mirror = Rig(home.world, FakeCluster(), "there")
    mirror.cluster.apply(KEY, {"target": OTHER})
    await mirror.run()
    assert mirror.ready(KEY) == ("True", "Mirrored")
    assert (mirror.object(KEY)["status"]["url"], there["home"]) == (there["url"], "here")
    mirror.cluster.delete(KEY)
    await mirror.run()
    assert (mirror.cluster.objects, states(home)) == ({}, [State.ACTIVE])


async def test_T2_an_event_of_ours_that_is_there_is_not_told_again() -> None:
    rig = await made(*named(12))
    rig.cluster.before = fails(Conflict("there"), "create events")
    for key in named(12):
        rig.cluster.delete(key)
    await rig.run()
    assert {rig.ready(key)[1] for key in named(12)} == {"DeletionHeld"}
    assert rig.failures == []


async def test_T2_a_last_write_that_takes_too_long_is_tried_again() -> None:
    rig = await made(KEY)
    rig.cluster.delete(KEY)
    rig.world.clock.advance(TOGETHER)
    patch, writing = rig.cluster.patch, asyncio.Event()

    async def hang(*_: Any, **__: Any) -> Any:
        writing.set()
        await asyncio.Event().wait()

    rig.cluster.patch = hang  # type: ignore[method-assign]
    handling = asyncio.create_task(rig.controller.handle(KEY))
    await writing.wait()
    handling.cancel()
    await asyncio.wait([handling])
    rig.cluster.patch = patch  # type: ignore[method-assign]
    await rig.run()
    assert (rig.cluster.objects, states(rig)) == ({}, [State.TOMBSTONED])


async def test_L2_an_object_made_again_before_our_last_write_is_answered_is_handled() -> None:
    rig = await made(KEY)

    def told(kind: str, body: dict[str, Any]) -> None:
        rig.controller.saw(kind, body)
        if kind == "DELETED":
            rig.cluster.apply(KEY, {"target": OTHER})

    rig.cluster.told = told
    rig.cluster.delete(KEY)
    await rig.run()
    assert rig.ready(KEY) == ("True", "Ready")
    assert (states(rig), rig.failures) == ([State.ACTIVE], [])


@pytest.mark.parametrize("again", [False, True])
async def test_L2_an_object_that_ends_while_its_link_is_deleted_leaves_no_trace(
    again: bool,
) -> None:
    before = await made(KEY)

    async def gate(method: str, done: bool) -> None:
        if method == "change" and done and len(before.cluster.writes) == 0:
            before.cluster.change(KEY, {"metadata": {"finalizers": None}})
            if again:
                before.cluster.apply(KEY, {"target": OTHER})

    rig = Rig(before.world, before.cluster, gate=gate)
    rig.cluster.delete(KEY)
    await rig.run(10)
    assert rig.failures == []
    if again:
        assert (rig.ready(KEY), states(rig)) == (("True", "Ready"), [State.ACTIVE])
        rig.cluster.delete(KEY)
        await rig.run()
    assert (rig.cluster.objects, states(rig)) == ({}, [State.TOMBSTONED])


async def test_L2_an_object_made_again_is_not_taken_for_the_one_that_was_let_go() -> None:
    before = await made(KEY)
    before.cluster.change(KEY, {"metadata": {"finalizers": [FINALIZER, "example.com/theirs"]}})
    before.cluster.delete(KEY)
    await before.run()
    ended = False

    async def gate(method: str, done: bool) -> None:
        nonlocal ended
        if method == "find_claim" and done and not ended:
            ended = True
            before.cluster.change(KEY, {"metadata": {"finalizers": None}})
            before.cluster.apply(KEY, {"target": OTHER})

    rig = Rig(before.world, before.cluster, gate=gate)
    await rig.run()
    assert rig.ready(KEY) == ("True", "Ready")
    rig.cluster.delete(KEY)
    await rig.run()
    assert (rig.cluster.objects, states(rig)) == ({}, [State.TOMBSTONED])
