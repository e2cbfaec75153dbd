"""Relay: every event reaches the stream, in order, at least once, under one id (N1, O4)."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from shortlink.links.model import Event
from shortlink.store.port import StoreUnavailable
from shortlink_operator.relay import AuditLog, Relay
from tests.fakes import Crash, FailsAt, MemoryStore
from tests.samples import a_create
from tests.world import World


class Stream:
    """Takes events until it is told to fail."""

    def __init__(self) -> None:
        self.taken: list[Event] = []
        self.down = False

    async def __call__(self, events: Sequence[Event]) -> None:
        if self.down:
            raise OSError("down")
        self.taken += events


async def a_world(links: int) -> World:
    world = World()
    for n in range(links):
        await world.management().create(a_create(code=f"promo{n}", token=str(n)))
    return world


async def test_N1_more_than_a_batch_is_published_in_order_and_forgotten() -> None:
    world = await a_world(450)
    stream = Stream()
    relay = Relay(MemoryStore(world.kept), stream)
    await relay.run()
    assert stream.taken == world.kept.told
    assert world.kept.pending == {}
    await relay.run()
    assert len(stream.taken) == 450


async def test_F6_while_the_stream_is_down_events_wait() -> None:
    world = await a_world(3)
    stream = Stream()
    stream.down = True
    relay = Relay(MemoryStore(world.kept), stream)
    with pytest.raises(OSError, match="down"):
        await relay.run()
    assert len(world.kept.pending) == 3
    stream.down = False
    await relay.run()
    assert stream.taken == world.kept.told


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [Crash(), StoreUnavailable("lost")])
@pytest.mark.parametrize("number", range(1, 6))
async def test_N1_a_crash_at_any_store_call_loses_no_event(
    number: int, error: BaseException, after: bool
) -> None:
    world = await a_world(250)
    stream = Stream()
    with pytest.raises(type(error)):
        await Relay(MemoryStore(world.kept, FailsAt(number, after, error)), stream).run()
    await Relay(MemoryStore(world.kept), stream).run()
    assert list(dict.fromkeys(stream.taken)) == world.kept.told
    assert world.kept.pending == {}


async def test_O4_the_audit_log_has_a_line_for_each_event(tmp_path: Path) -> None:
    world = await a_world(2)
    path = tmp_path / "audit.jsonl"
    for _ in range(2):
        await Relay(MemoryStore(world.kept), AuditLog(path)).run()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["code"] for line in lines] == ["promo0", "promo1"]
    assert lines[0] == {
        "id": "promo0.1.1.created",
        "kind": "created",
        "code": "promo0",
        "generation": 1,
        "version": 1,
        "at": "2027-01-15T08:00:00Z",
        "owner": "ann",
        "target": "https://example.com/a",
    }


async def test_O4_an_audit_log_that_cannot_be_written_keeps_the_events_pending(
    tmp_path: Path,
) -> None:
    world = await a_world(1)
    with pytest.raises(OSError, match="No such file"):
        await Relay(MemoryStore(world.kept), AuditLog(tmp_path / "gone" / "audit.jsonl")).run()
    assert len(world.kept.pending) == 1
