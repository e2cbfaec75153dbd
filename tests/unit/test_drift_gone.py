"""Drift: objects that are gone untold, and links that no object has any more (T2)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from shortlink.links.lifecycle import Delete
from shortlink.links.model import Link, State
from shortlink.links.policy import HOUR
from shortlink.store.port import Claim
from shortlink_operator.plan import actor
from tests.controller_rig import KEY, OTHER, Rig, link_of, made, named, states, swept
from tests.fake_cluster import FakeCluster
from tests.samples import a_link
from tests.world import World


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


async def beside(rig: Rig) -> None:
    """A sweep, while what is due is handled."""
    sweeping = asyncio.create_task(rig.drift.sweep())
    while not sweeping.done():
        await asyncio.sleep(0)
        await rig.run(0)
    await sweeping
    await rig.run()


@pytest.mark.parametrize("restarted", [False, True])
async def test_T2_what_is_gone_at_once_is_counted_at_once_however_long_the_look(
    restarted: bool,
) -> None:
    before = await made(*named(99), *named(99, "bob"))
    await swept(before)
    for key in (*named(40), *named(40, "bob")):
        before.cluster.lose(key)

    async def gate(method: str, done: bool) -> None:
        if method == "find_claim" and not done:
            before.world.clock.advance(200)
            await asyncio.sleep(0)

    def slow(what: str, key: str) -> None:
        if what == "get":
            before.world.clock.advance(200)

    rig = Rig(before.world, before.cluster, gate=gate) if restarted else before
    get = rig.cluster.get

    async def late(path: str) -> Any:
        await asyncio.sleep(0)
        return await get(path)

    rig.drift._reads = asyncio.Semaphore(1)
    rig.cluster.before = slow
    rig.cluster.get = late  # type: ignore[method-assign]
    await beside(rig)
    assert set(states(rig)) == {State.ACTIVE}
    assert len(rig.controller.held_gone) == 80


async def test_T2_what_is_made_again_while_it_is_looked_for_is_not_gone() -> None:
    rig = await made(KEY)
    rig.cluster.lose(KEY)
    get = rig.cluster.get

    async def late(path: str) -> Any:
        try:
            return await get(path)
        finally:
            rig.cluster.apply(KEY, {"target": OTHER})

    rig.cluster.get = late  # type: ignore[method-assign]
    await rig.drift.sweep()
    rig.cluster.get = get  # type: ignore[method-assign]
    await rig.run()
    assert (rig.ready(KEY), rig.metrics.drift) == (("True", "Ready"), {})


async def test_T2_held_links_that_end_otherwise_hold_nothing_any_more() -> None:
    rig = await made(*named(40))
    for key in named(20):
        rig.cluster.lose(key)
    await swept(rig)
    assert len(rig.controller.held_gone) == 20
    for number, key in enumerate(named(20)):
        claim = rig.world.kept.claims[key]
        if number < 10:
            rig.world.kept.claims[key] = replace(claim, cluster="there")
        else:
            await rig.management.apply(claim.code, Delete(actor(key)))
    rig.world.clock.advance(HOUR)
    await swept(rig)
    await swept(rig)
    assert (rig.metrics.held, rig.controller.held_gone) == (0, set())
    rig.cluster.delete("ann/30")
    await rig.run()
    assert "ann/30" not in rig.cluster.objects


async def test_T2_a_held_link_that_cannot_be_read_now_still_counts() -> None:
    rig = await made(*named(30))
    for key in named(15):
        rig.cluster.lose(key)
    await swept(rig)
    links = rig.world.kept.links

    class Rows(dict[str, Link]):
        def get(self, code: str, default: Any = None) -> Any:
            raise ValueError("row of another release")

    rig.world.kept.links = Rows(links)
    await rig.drift.sweep()
    rig.world.kept.links = links
    assert len(rig.controller.index.orphans) == 15


async def test_T2_a_claim_whose_link_never_came_is_released() -> None:
    rig = await made("ann/other")
    rig.world.kept.claims[KEY] = Claim(KEY, "never", 1, "t9", "here", "uid-0")
    rig.world.kept.claims["ann/theirs"] = Claim("ann/theirs", "theirs", 1, "t8", "there", "uid-9")
    await swept(rig)
    assert sorted(rig.world.kept.claims) == ["ann/other", "ann/theirs"]
    assert rig.metrics.drift == {}


def orphan(number: int, **changes: Any) -> Link:
    code = f"orphan{number}"
    return a_link(code=code, token=f"lost-{number}", claim=f"ann/lost{number}", **changes)


async def test_T2_links_that_no_claim_holds_are_tombstoned() -> None:
    rig = await made(KEY)
    rig.world.keep(orphan(1), orphan(2), a_link(code="api"))
    again = Rig(rig.world, rig.cluster)
    await again.drift.orphans()
    assert [again.world.link(f"orphan{n}").state for n in (1, 2)] == [State.TOMBSTONED] * 2
    assert (again.world.link("api").state, link_of(again).state) == (State.ACTIVE,) * 2
    assert (again.metrics.drift, again.metrics.orphans) == ({"orphan": 2}, 2)


async def test_L5_a_link_whose_claim_came_meanwhile_is_no_orphan() -> None:
    world = World()

    async def gate(method: str, done: bool) -> None:
        if method == "by_owner" and done:
            world.kept.claims["ann/lost1"] = Claim("ann/lost1", "orphan1", 1, "lost-1", "there")

    rig = await made(KEY, rig=Rig(world))
    again = Rig(world, rig.cluster, gate=gate)
    world.keep(orphan(1))
    await again.drift.orphans()
    assert world.link("orphan1").state is State.ACTIVE


async def test_T2_many_orphans_are_held() -> None:
    rig = await made(KEY)
    rig.world.keep(*(orphan(number) for number in range(11)))
    again = Rig(rig.world, rig.cluster)
    await again.drift.orphans()
    assert set(states(again)) == {State.ACTIVE}
    assert again.metrics.orphans == 11


async def test_T2_no_orphan_is_tombstoned_without_a_policy() -> None:
    rig = await made(KEY)
    rig.world.keep(orphan(1))
    rig.in_force.wrong = "spec.grace is 1s"
    await rig.drift.orphans()
    assert (set(states(rig)), rig.metrics.orphans) == ({State.ACTIVE}, 1)


async def test_L5_who_was_deposed_tombstones_no_orphan() -> None:
    rig = await made(KEY)
    rig.world.keep(orphan(1))
    again = Rig(rig.world, rig.cluster)
    again.deposed = RuntimeError("deposed")
    with pytest.raises(RuntimeError, match="deposed"):
        await again.drift.orphans()
    assert rig.world.link("orphan1").state is State.ACTIVE
