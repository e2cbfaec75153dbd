"""The brake on an API server: what counts over namespaces, and how a namespace is read (T2)."""

import asyncio
from typing import Any

import pytest

from shortlink.links.model import State
from shortlink.links.policy import HOUR
from shortlink.store.port import StoreUnavailable
from shortlink_operator import brake
from shortlink_operator.controller import TOGETHER
from shortlink_operator.kinds import ALLOW_DELETE, TAKE_OVER
from tests.controller_rig import KEY, OTHER, Rig, made, named, states
from tests.fake_cluster import FakeCluster


async def test_T2_few_deletions_in_each_of_many_namespaces_are_held_together() -> None:
    keys = [key for number in range(40) for key in named(5, f"team{number}")]
    rig = await made(*keys)
    for key in keys:
        rig.cluster.delete(key)
    await rig.run()
    assert {rig.ready(key) for key in keys} == {("True", "DeletionHeld")}
    assert "200 of 200 links of the cluster" in rig.said(keys[0])


async def test_T2_deletions_in_many_namespaces_one_after_the_other_are_counted_together() -> None:
    spaces = [named(5, f"team{number}") for number in range(10)]
    rig = await made(*(key for space in spaces for key in space))
    for space in spaces:
        for key in space:
            rig.cluster.delete(key)
        await rig.run()
    assert states(rig).count(State.TOMBSTONED) == 10


async def test_T2_a_namespace_that_waits_for_itself_holds_no_other() -> None:
    rig = await made(*named(40), *named(8, "bob"))
    for key in named(40):
        rig.cluster.delete(key)
    await rig.run()
    for key in named(8, "bob"):
        rig.cluster.delete(key)
    await rig.run()
    assert {rig.ready(key)[1] for key in named(40)} == {"DeletionHeld"}
    assert states(rig).count(State.TOMBSTONED) == 8


async def test_T2_links_that_another_cluster_deleted_do_not_count() -> None:
    home = await made(*named(12))
    mirror = Rig(home.world, FakeCluster(), "there")
    for key in named(12):
        mirror.cluster.apply(key, {"target": OTHER})
    await made("ann/own", rig=mirror)
    for key in named(12):
        home.cluster.annotate(key, ALLOW_DELETE, "true")
        home.cluster.delete(key)
    await home.run()
    for key in named(12):
        mirror.cluster.delete(key)
    await mirror.run()
    mirror.cluster.delete("ann/own")
    await mirror.run()
    assert mirror.cluster.objects == {}


async def gone_claims(count: int) -> Rig:
    """A namespace of which one object is left; the links of the others went with them."""
    rig = await made(*named(count), KEY)
    for key in named(count):
        rig.cluster.annotate(key, ALLOW_DELETE, "true")
        rig.cluster.delete(key)
    await rig.run()
    rig.world.clock.advance(HOUR)
    return rig


async def test_T2_what_went_in_a_namespace_is_read_many_at_once() -> None:
    before = await gone_claims(60)
    reading = most = 0

    async def gate(method: str, done: bool) -> None:
        nonlocal reading, most
        if method == "get":
            reading += -1 if done else 1
            most = max(most, reading)
            await asyncio.sleep(0)

    rig = Rig(before.world, before.cluster, gate=gate)
    rig.cluster.annotate(KEY, TAKE_OVER, "elsewhere")
    rig.cluster.delete(KEY)
    await rig.run()
    assert most == 32


async def test_T2_a_namespace_that_is_long_to_read_holds_no_other_up() -> None:
    before = await made(KEY, "bob/promo")
    rig = Rig(before.world, before.cluster)
    pages, reading = rig.cluster.pages, asyncio.Event()

    async def slow(path: str, limit: int = 500) -> Any:
        if "/ann/" in path:
            reading.set()
            await asyncio.Event().wait()
        async for page in pages(path, limit):
            yield page

    rig.cluster.pages = slow  # type: ignore[method-assign]
    rig.cluster.delete(KEY)
    rig.cluster.delete("bob/promo")
    rig.world.clock.advance(TOGETHER)
    handling = asyncio.create_task(rig.controller.handle(KEY))
    await reading.wait()
    await rig.controller.handle("bob/promo")
    assert set(rig.cluster.objects) == {KEY}
    handling.cancel()
    await asyncio.wait([handling])


async def test_T2_a_reading_that_is_cut_short_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brake, "CLAIMS", 10)
    before = await gone_claims(60)
    reads = 0

    async def gate(method: str, done: bool) -> None:
        nonlocal reads
        reads += method == "get" and not done
        if method == "get" and reads % 25 == 0:
            raise StoreUnavailable("it took too long")

    rig = Rig(before.world, before.cluster, gate=gate)
    rig.cluster.delete(KEY)
    await rig.run(100)
    assert (rig.cluster.objects, reads < 100) == ({}, True)


async def test_T2_an_unreadable_row_holds_up_no_deletion_in_its_namespace() -> None:
    before = await gone_claims(3)
    code = before.world.kept.claims["ann/00"].code

    class Rows(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            if key == code:
                raise ValueError("row of another release")
            return super().get(key, default)

    before.world.kept.links = Rows(before.world.kept.links)
    rig = Rig(before.world, before.cluster)
    rig.cluster.delete(KEY)
    await rig.run()
    assert (rig.cluster.objects, rig.failures) == ({}, [])
