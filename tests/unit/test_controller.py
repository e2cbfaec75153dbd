"""Controller: what events ask for, what is written for it, what a deletion waits for (T2, L5)."""

import asyncio
from typing import Any

import pytest

from shortlink.links.model import LIVE, State
from shortlink.store.port import StoreUnavailable
from shortlink_operator.cluster import Conflict, Refused, Unreachable
from shortlink_operator.kinds import FINALIZER, TAKE_OVER
from shortlink_operator.plan import Rest
from shortlink_operator.queue import Unfinished
from tests.controller_rig import KEY, OTHER, SPEC, Rig, link_of, made, named, states
from tests.fake_cluster import FakeCluster, fails
from tests.fakes import Crash, FailsAt
from tests.world import World


async def test_T2_a_new_object_costs_two_writes_finalizer_first() -> None:
    rig = Rig()
    rig.cluster.apply(KEY, SPEC, finalizers=["example.com/theirs"])
    await rig.run()
    assert rig.wrote() == [(KEY, ""), (KEY, "status")]
    assert rig.ready(KEY) == ("True", "Ready")
    body = rig.object(KEY)
    assert body["metadata"]["finalizers"] == ["example.com/theirs", FINALIZER]
    assert (body["status"]["url"], body["status"]["home"]) == ("https://s.example/promo", "here")
    assert rig.world.kept.claims[KEY].uid == body["metadata"]["uid"]


@pytest.mark.parametrize("lagging", [False, True])
async def test_T2_our_own_writes_ask_for_nothing_however_late_they_are_told(lagging: bool) -> None:
    calls = FailsAt(0, False, Crash())
    rig = Rig(gate=calls)
    rig.cluster.apply(KEY, SPEC)
    rig.cluster.lagging = lagging
    await rig.run()
    rig.cluster.catch_up()
    await rig.run()
    assert calls.calls == ["get", "claim", "create"]
    assert rig.wrote() == [(KEY, ""), (KEY, "status")]


async def test_T2_an_edit_costs_one_write_and_none_where_the_status_is_the_same() -> None:
    rig = await made(KEY)
    code = rig.object(KEY)["status"]["code"]
    rig.cluster.apply(KEY, {"target": "https://example.com/c"})
    await rig.run()
    assert rig.wrote() == [(KEY, "status")]
    assert rig.world.link(code).target == "https://example.com/c"
    assert rig.ready(KEY) == ("True", "Ready")


async def test_T2_a_restart_handles_only_what_is_new() -> None:
    rig = await made(*named(20))
    again = Rig(rig.world, rig.cluster)
    again.cluster.apply(KEY, SPEC)
    await again.run()
    assert set(again.handled) == {KEY}
    assert len(again.metrics.reasons) == 21


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        ({"status": {"code": "stolen", "url": None}}, True),
        ({"status": {"home": "elsewhere"}}, True),
        ({"metadata": {"finalizers": None}}, False),
        ({"metadata": {"finalizers": ["example.com/theirs"]}}, False),
    ],
)
async def test_T2_what_was_changed_by_hand_is_mended(patch: dict[str, Any], status: bool) -> None:
    rig = await made(KEY)
    before = rig.object(KEY)
    rig.cluster.change(KEY, patch, status=status)
    await rig.run()
    assert rig.object(KEY)["status"] == before["status"]
    assert FINALIZER in rig.object(KEY)["metadata"]["finalizers"]
    assert len(rig.wrote()) == 1


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"team": "a"}},
        {"annotations": {"kopf.zalando.org/last-handled-configuration": "{}"}},
        {"finalizers": [FINALIZER, "example.com/theirs"]},
    ],
)
async def test_T2_what_others_keep_on_an_object_is_theirs(metadata: dict[str, Any]) -> None:
    rig = await made(KEY)
    handled = rig.handled[KEY]
    rig.cluster.change(KEY, {"metadata": metadata})
    await rig.run()
    assert (rig.wrote(), rig.handled[KEY]) == ([], handled)
    rig.cluster.apply(KEY, {"target": "https://example.com/c"})
    await rig.run()
    assert rig.wrote() == [(KEY, "status")]


async def test_T2_an_object_that_cannot_be_read_keeps_its_link_until_it_can() -> None:
    rig = await made(KEY)
    code = rig.object(KEY)["status"]["code"]
    rig.cluster.annotate(KEY, "shortlink.platform/of-a-later-version", "yes")
    await rig.run()
    assert rig.ready(KEY) == ("False", "Unreadable")
    assert "of-a-later-version" in rig.said(KEY)
    assert (rig.object(KEY)["status"]["code"], states(rig)) == (code, [State.ACTIVE])
    rig.cluster.annotate(KEY, "shortlink.platform/of-a-later-version", None)
    await rig.run()
    assert rig.ready(KEY) == ("True", "Ready")
    assert rig.wrote() == [(KEY, "status")] * 2


async def test_T2_a_refusal_says_why_and_the_others_go_on() -> None:
    rig = Rig()
    rig.cluster.apply("bob/promo", SPEC)
    await rig.run()
    rig.cluster.apply(KEY, SPEC)
    rig.cluster.apply("ann/own", {"target": "https://sho.rt/x"})
    rig.cluster.apply("ann/fine", {"target": OTHER})
    await rig.run()
    assert rig.ready(KEY) == ("False", "Taken")
    assert rig.ready("ann/own") == ("False", "InvalidTarget")
    assert rig.ready("ann/fine") == ("True", "Ready")
    assert (rig.failures, rig.line.due) == ([], {})


async def test_L5_a_write_on_what_was_changed_meanwhile_is_dropped() -> None:
    rig = Rig()

    def meanwhile(what: str, key: str) -> None:
        if what == "patch status" and "more" not in rig.object(key)["spec"].get("tags", []):
            rig.cluster.change(key, {"spec": {"tags": ["more"]}})

    rig.cluster.before = meanwhile
    rig.cluster.apply(KEY, SPEC)
    await rig.run()
    assert rig.ready(KEY) == ("True", "Ready")
    assert rig.world.link("promo").tags == ("more",)
    assert rig.failures == []


async def test_L5_a_conflict_of_which_no_event_tells_is_looked_at_again() -> None:
    rig = await made(KEY)
    code = rig.object(KEY)["status"]["code"]
    rig.cluster.apply(KEY, {"target": "https://example.com/c"})
    rig.cluster.lagging = True
    rig.cluster.change(KEY, {"spec": {"target": "https://example.com/d"}})
    await rig.run(10)
    assert rig.world.link(code).target == "https://example.com/d"
    assert rig.ready(KEY) == ("True", "Ready")


async def test_T2_an_outage_of_the_store_is_told_once_and_only_where_it_matters() -> None:
    rig = await made("ann/ready")
    away = True

    async def gate(method: str, done: bool) -> None:
        if away:
            raise StoreUnavailable(f"lost at {rig.world.clock.at}")

    again = Rig(rig.world, rig.cluster, gate=gate)
    again.cluster.apply(KEY, SPEC)
    await again.run(100)
    assert again.ready(KEY) == ("False", "WaitingForQuorum")
    assert len(again.failures) > 2
    assert again.wrote() == [(KEY, ""), (KEY, "status")]
    again.controller.again("ann/ready")
    await again.run(0)
    assert again.ready("ann/ready") == ("True", "Ready")
    away = False
    await again.run(1000)
    assert again.ready(KEY) == ("True", "Ready")
    assert again.wrote() == [(KEY, "status")]


@pytest.mark.parametrize("what", ["patch", "patch status", "get"])
@pytest.mark.parametrize("error", [Refused("403", "patch shortlinks"), Unreachable("cut")])
async def test_T2_what_the_api_server_refuses_is_tried_again(what: str, error: Any) -> None:
    rig = Rig()
    rig.cluster.before = fails(error, what, "patch")
    rig.cluster.apply(KEY, SPEC)
    await rig.run(0)
    assert rig.failures == [error]
    rig.cluster.before = fails(error, what)
    await rig.run(100)
    rig.cluster.before = lambda what, key: None
    await rig.run(10_000)
    assert rig.ready(KEY) == ("True", "Ready")


async def test_L5_who_was_deposed_writes_nothing() -> None:
    rig = Rig()
    rig.cluster.apply(KEY, SPEC)
    rig.deposed = RuntimeError("deposed")
    await rig.run(0)
    assert (rig.failures, rig.wrote()) == ([rig.deposed], [])
    assert rig.world.kept.claims == {}


async def test_T2_a_quota_holds_when_all_come_at_once() -> None:
    async def gate(method: str, done: bool) -> None:
        await asyncio.sleep(0)

    rig = Rig(gate=gate)
    rig.in_force.links_per_namespace = 5
    for key in named(12):
        rig.cluster.apply(key, {"target": OTHER})
    await asyncio.gather(*map(rig.controller.handle, named(12)))
    assert len(rig.world.kept.links) == 5
    reasons = [rig.ready(key)[1] for key in named(12)]
    assert (reasons.count("Ready"), reasons.count("OverQuota")) == (5, 7)
    rig.cluster.apply("bob/promo", SPEC)
    await rig.run()
    assert rig.ready("bob/promo") == ("True", "Ready")


async def test_T2_a_take_over_moves_the_home_and_is_told() -> None:
    home = await made(KEY)
    mirror = Rig(home.world, FakeCluster(), "there")
    mirror.cluster.apply(KEY, {"target": OTHER})
    await mirror.run()
    mirror.cluster.annotate(KEY, TAKE_OVER, "here")
    await mirror.run()
    assert mirror.ready(KEY) == ("True", "Ready")
    assert home.world.kept.claims[KEY].cluster == "there"
    (event,) = mirror.cluster.events.values()
    assert (event["reason"], event["regarding"]["name"]) == ("TakenOver", "promo")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("act", ["create", "edit", "delete"])
async def test_L5_a_crash_between_any_two_steps_leaves_one_link_and_no_stuck_object(
    act: str, after: bool
) -> None:
    for number in range(1, 20):
        gate = FailsAt(number, after, Crash())
        world, cluster = World(), FakeCluster()
        if act != "create":
            await made(KEY, rig=Rig(world, cluster))
        rig = Rig(world, cluster, gate=gate)
        if act == "delete":
            cluster.delete(KEY)
        else:
            cluster.apply(KEY, {"target": OTHER + act})
        ended = await _until_crash(rig)
        again = Rig(world, cluster)
        await again.run()
        await again.drift.sweep()
        await again.run()
        live = [link for link in world.kept.links.values() if link.state in LIVE]
        if act == "delete":
            assert (cluster.objects, live) == ({}, [])
        else:
            assert again.ready(KEY) == ("True", "Ready")
            assert [link.target for link in live] == [OTHER + act]
        world.check()
        if ended:
            return
    raise AssertionError("it never came to an end")


async def _until_crash(rig: Rig) -> bool:
    try:
        await rig.run()
    except Crash:
        return False
    return True


@pytest.mark.parametrize("act", ["create", "delete"])
@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize("done", [False, True])
async def test_L5_a_crash_at_any_write_to_the_api_server_leaves_no_stuck_object(
    act: str, written: int, done: bool
) -> None:
    rig = Rig() if act == "create" else await made(KEY)

    def crash(what: str, key: str) -> None:
        if what.startswith("patch") and len(rig.cluster.writes) == written:
            if done:
                rig.cluster.writes.append((key, "more"))
                rig.cluster.change(key, {"metadata": {"labels": {"late": "write"}}})
            raise Crash

    rig.cluster.before = crash
    if act == "create":
        rig.cluster.apply(KEY, SPEC)
    else:
        rig.cluster.delete(KEY)
    await _until_crash(rig)
    rig.cluster.before = lambda what, key: None
    again = Rig(rig.world, rig.cluster)
    await again.run()
    if act == "create":
        assert again.ready(KEY) == ("True", "Ready")
        assert states(again) == [State.ACTIVE]
    else:
        assert (again.cluster.objects, states(again)) == ({}, [State.TOMBSTONED])
    assert again.failures == []


@pytest.mark.parametrize("what", ["patch", "patch status"])
@pytest.mark.parametrize("error", [Conflict("changed"), Unreachable("cut")])
async def test_T2_an_object_found_where_none_was_expected_is_tried_again(
    what: str, error: Exception
) -> None:
    rig = await made(KEY)
    rig.cluster.wrench(KEY)
    rig.cluster.lagging = True
    rig.cluster.apply(KEY, {"target": "https://example.com/c"})
    rig.cluster.before = fails(error, what)  # type: ignore[arg-type]
    await rig.run(2.1)
    rig.cluster.before = lambda what, key: None
    await rig.run(10)
    assert rig.ready(KEY) == ("True", "Ready")


async def test_T2_an_answer_that_is_older_than_what_was_told_meanwhile_changes_nothing() -> None:
    rig = await made(KEY)
    rig.controller.again(KEY)
    get = rig.cluster.get

    async def late(path: str) -> Any:
        body = await get(path)
        rig.cluster.get = get  # type: ignore[method-assign]
        rig.cluster.wrench(KEY)
        rig.cluster.apply(KEY, {"target": "https://example.com/c"})
        return body

    rig.cluster.get = late  # type: ignore[method-assign]
    await rig.run(4)
    assert rig.ready(KEY) == ("True", "Ready")
    assert link_of(rig).target == "https://example.com/c"


async def test_T2_an_object_whose_link_others_change_is_tried_again_ever_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await made(KEY)

    async def settle(*_: Any, **__: Any) -> Rest:
        return Rest(KEY, False, "Progressing", "others change this link")

    monkeypatch.setattr(rig.controller.applier, "settle", settle)
    rig.controller.again(KEY)
    await rig.run(1000)
    assert {type(error) for error in rig.failures} == {Unfinished}
    assert rig.ready(KEY) == ("False", "Progressing")


async def test_T2_two_who_mend_what_the_other_writes_do_not_race() -> None:
    rig = await made(KEY)

    def told(kind: str, body: dict[str, Any]) -> None:
        rig.controller.saw(kind, body)
        if body["status"].get("url") != "https://else.example":
            rig.cluster.change(KEY, {"status": {"url": "https://else.example"}}, status=True)

    rig.cluster.told = told
    rig.cluster.change(KEY, {"metadata": {"labels": {"a": "b"}}})
    await rig.run(60)
    assert len(rig.wrote()) <= 30
    rig.cluster.apply(KEY, {"target": "https://example.com/c"})
    await rig.run(0)
    assert rig.world.link(rig.object(KEY)["status"]["code"]).target == "https://example.com/c"
