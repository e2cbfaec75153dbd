"""Relay: every event reaches the stream, in order, at least once, under one id (N1, O4)."""

import errno
import json
import os
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


@pytest.mark.parametrize(
    ("before", "rest"),
    [
        (b"", []),
        (b"\n", [""]),
        (b'{"id": "a"}\n', ['{"id": "a"}']),
        (b'{"id": "a"}\n{"id": "pro', ['{"id": "a"}', '{"id": "pro']),
        (b"{", ["{"]),
        (b'{"id": "a"}', ['{"id": "a"}']),
        (b'{"id": "\xc3', ['{"id": "\udcc3']),
    ],
)
async def test_O4_after_a_torn_line_every_event_still_has_a_whole_line(
    tmp_path: Path, before: bytes, rest: list[str]
) -> None:
    world = await a_world(2)
    path = tmp_path / "audit.jsonl"
    path.write_bytes(before)
    await Relay(MemoryStore(world.kept), AuditLog(path)).run()
    lines = path.read_bytes().decode(errors="surrogateescape").removesuffix("\n").split("\n")
    assert lines[:-2] == rest
    assert [json.loads(line)["code"] for line in lines[-2:]] == ["promo0", "promo1"]


async def test_O4_events_that_a_full_disk_cut_off_come_again_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await a_world(3)
    path = tmp_path / "audit.jsonl"

    def full(descriptor: int) -> None:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - 10)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            await Relay(MemoryStore(world.kept), AuditLog(path)).run()
    assert len(world.kept.pending) == 3
    await Relay(MemoryStore(world.kept), AuditLog(path)).run()
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    whole = [line for line in text.splitlines() if line.endswith("}")]
    assert [json.loads(line)["code"][-1] for line in whole] == ["0", "1", "0", "1", "2"]


async def test_O4_the_audit_log_is_synced_before_the_store_forgets_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await a_world(1)
    path = tmp_path / "audit.jsonl"
    happened: list[str] = []
    sync = os.fsync

    def synced(descriptor: int) -> None:
        assert os.fstat(descriptor).st_ino == path.stat().st_ino
        happened.append(f"{len(path.read_bytes().splitlines())} lines synced")
        sync(descriptor)

    async def gate(method: str, done: bool) -> None:
        if method == "published" and not done:
            happened.append("forgotten")

    monkeypatch.setattr(os, "fsync", synced)
    await Relay(MemoryStore(world.kept, gate), AuditLog(path)).run()
    assert happened == ["1 lines synced", "forgotten"]
