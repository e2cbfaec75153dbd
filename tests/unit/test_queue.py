"""The operator's work queue: each key once, one worker a key, and no hot loop under any fault."""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import structlog

from shortlink.clock import HandClock
from shortlink.store.port import StoreUnavailable
from shortlink_operator import queue as queue_module
from shortlink_operator.cluster import Failed, Unreachable
from shortlink_operator.lease import Deposed
from shortlink_operator.queue import (
    BACKOFF_CAP,
    BACKOFF_FIRST,
    PROBE_CAP,
    STUCK_SECONDS,
    WORKERS,
    Queue,
    Unfinished,
)
from tests.samples import NOW

_TURNS = 12
"""Of the event loop: more than any chain of steps here takes."""


class Rig:
    """A queue that runs on time that is let pass. `looks` are the keys handled so far, each with
    the second; `answer` says what becomes of one."""

    def __init__(self) -> None:
        self.hand = HandClock(NOW)
        self.looks: list[tuple[str, float]] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.answer: Callable[[str], Awaitable[float | None]] = self.fine
        self._numbers = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self.queue = Queue(
            self._handle, self.hand.clock, self.seconds.append, self._sleep, lambda: 0.0
        )

    @property
    def now(self) -> float:
        return self.hand.clock.steady() / 1000

    def keys(self) -> list[str]:
        return [key for key, _ in self.looks]

    def times(self, key: str) -> list[float]:
        return [at for each, at in self.looks if each == key]

    async def fine(self, _key: str) -> float | None:
        return None

    async def go(self, seconds: float = 0.0) -> None:
        """Let time pass, and all that is due in it be done at its time."""
        end = self.hand.clock.steady() + int(seconds * 1000)
        await self._turn()
        while self._sleepers and self._sleepers[0][0] <= end:
            until, _, sleeper = heapq.heappop(self._sleepers)
            self.hand.advance(max(until - self.hand.clock.steady(), 0))
            if not sleeper.done():
                sleeper.set_result(None)
            await self._turn()
        self.hand.advance(end - self.hand.clock.steady())
        await self._turn()

    @asynccontextmanager
    async def running_queue(self) -> AsyncIterator["asyncio.Task[None]"]:
        task = asyncio.create_task(self.queue.run())
        await self._turn()
        yield task
        task.cancel()
        with suppress(asyncio.CancelledError, Deposed):
            await task

    async def _handle(self, key: str) -> float | None:
        self.looks.append((key, self.now))
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])
        self.most[""] = max(self.most[""], self.running.total())
        try:
            return await self.answer(key)
        finally:
            self.running[key] -= 1

    async def _sleep(self, seconds: float) -> None:
        sleeper = asyncio.get_running_loop().create_future()
        until = self.hand.clock.steady() + round(seconds * 1000)
        heapq.heappush(self._sleepers, (until, next(self._numbers), sleeper))
        await sleeper

    async def _turn(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)


class Gate:
    """Holds looks until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, _key: str) -> None:
        await self.open.wait()


async def test_a_key_that_waits_is_in_the_line_once() -> None:
    rig = Rig()
    for _ in range(5):
        rig.queue.add("a")
        rig.queue.add("b", swept=True)
    assert rig.queue.depth().due == 2
    async with rig.running_queue():
        assert rig.keys() == ["a", "b"]
        assert rig.queue.depth().due == 0


async def test_a_key_added_while_it_is_looked_at_is_looked_at_once_more_afterwards() -> None:
    rig, gate = Rig(), Gate()
    rig.answer = gate
    rig.queue.add("a")
    async with rig.running_queue():
        for _ in range(3):
            rig.queue.add("a")
        await rig.go()
        assert rig.keys() == ["a"]
        gate.open.set()
        await rig.go()
        assert rig.keys() == ["a", "a"]
        assert rig.most["a"] == 1


async def test_no_more_than_its_workers_look_at_once() -> None:
    rig, gate = Rig(), Gate()
    rig.answer = gate
    async with rig.running_queue():
        for number in range(3 * WORKERS):
            rig.queue.add(f"k{number}")
        await rig.go()
        assert (rig.queue.depth().running, rig.queue.depth().due) == (WORKERS, 2 * WORKERS)
        gate.open.set()
        await rig.go()
        assert rig.most[""] == WORKERS
        assert len(rig.looks) == 3 * WORKERS


async def test_what_is_reported_comes_before_what_was_swept_up_each_in_its_order() -> None:
    rig = Rig()
    for key in ("s1", "s2", "s3"):
        rig.queue.add(key, swept=True)
    for key in ("e1", "e2"):
        rig.queue.add(key)
    rig.queue.add("s2")  # reported as well
    rig.queue.add("e1", swept=True)
    async with rig.running_queue():
        assert rig.keys() == ["e1", "e2", "s2", "s1", "s3"]


async def test_of_two_times_for_a_key_the_earlier_counts() -> None:
    rig = Rig()
    async with rig.running_queue():
        rig.queue.add("a", 60)
        rig.queue.add("b", 60)
        rig.queue.add("a", 10)
        rig.queue.add("b", 300)
        assert rig.queue.depth().later == 2
        await rig.go(9)
        assert rig.keys() == []
        await rig.go(291)
        assert rig.keys() == ["a", "b"]
        assert rig.times("a") == [pytest.approx(10, abs=0.2)]
        assert rig.times("b") == [pytest.approx(60, abs=0.2)]


async def test_a_key_is_looked_at_again_when_its_look_asked_for_it() -> None:
    rig = Rig()

    async def again(_key: str) -> float | None:
        return 30.0 if len(rig.looks) < 3 else None

    rig.answer = again
    rig.queue.add("a")
    async with rig.running_queue():
        await rig.go(300)
        assert rig.times("a") == [0, pytest.approx(30, abs=0.2), pytest.approx(60, abs=0.4)]


async def test_a_key_that_fails_waits_twice_as_long_each_time_up_to_a_cap() -> None:
    rig = Rig()

    async def fail(_key: str) -> None:
        raise ValueError("a bug")

    rig.answer = fail
    rig.queue.add("a")
    async with rig.running_queue():
        await rig.go(1200)
        waits = [b - a for a, b in zip(rig.times("a"), rig.times("a")[1:], strict=False)]
        expected = [min(BACKOFF_FIRST * 2**n, BACKOFF_CAP) for n in range(len(waits))]
        assert waits == pytest.approx(expected, abs=0.2)
        assert waits[-1] == pytest.approx(BACKOFF_CAP, abs=0.2)
        rig.queue.add("b")  # the others are unaffected
        await rig.go()
        assert rig.keys()[-1] == "b"


@pytest.mark.parametrize(
    ("error", "traced"),
    [
        (Unfinished("waits for its home"), False),
        (Failed("webhook"), False),
        (Unreachable("down"), False),
        (StoreUnavailable("down"), False),
        (ValueError("a bug"), True),
    ],
)
async def test_O1_only_what_nobody_foresaw_is_told_with_a_traceback(
    error: Exception, traced: bool
) -> None:
    rig = Rig()

    async def fail(_key: str) -> None:
        raise error

    rig.answer = fail
    rig.queue.add("a")
    with structlog.testing.capture_logs() as logs:
        async with rig.running_queue():
            pass
    assert [(line["error"], line["exc_info"]) for line in logs] == [(str(error), traced)]


async def test_success_resets_what_failures_made_longer() -> None:
    rig = Rig()
    fails = [True, True, True, False, True, False]

    async def maybe(_key: str) -> None:
        if fails.pop(0):
            raise ValueError("not now")

    rig.answer = maybe
    rig.queue.add("a")
    async with rig.running_queue():
        await rig.go(60)
        rig.queue.add("a")
        begun = rig.now
        await rig.go(60)
        assert rig.times("a")[-1] - begun == pytest.approx(BACKOFF_FIRST, abs=0.2)
    assert rig.seconds == [pytest.approx(3.5, abs=0.4), pytest.approx(0.5, abs=0.2)]


@pytest.mark.parametrize("error", [StoreUnavailable("down"), Unreachable("down")])
async def test_T3_while_a_dependency_is_away_one_key_at_a_time_finds_out(error: Exception) -> None:
    rig = Rig()
    away = True

    async def ask(_key: str) -> None:
        await asyncio.sleep(0)
        if away:
            raise error

    rig.answer = ask
    async with rig.running_queue():
        for number in range(100):
            rig.queue.add(f"k{number}")
        await rig.go()
        first = len(rig.looks)
        assert first <= WORKERS
        rig.most.clear()
        await rig.go(120)
        # Seldom, one at a time, and no key again and again.
        assert len(rig.looks) - first <= 120 / PROBE_CAP + 5
        assert rig.most[""] == 1
        away = False
        for _ in range(5):
            await rig.go(2)
        assert len(set(rig.keys())) == 100
        assert rig.queue.depth().due == rig.queue.depth().later == 0


async def test_T3_workers_that_were_idle_when_a_dependency_went_wait_like_the_others() -> None:
    rig = Rig()

    async def ask(_key: str) -> None:
        await asyncio.sleep(0)
        raise StoreUnavailable("down")

    rig.answer = ask
    async with rig.running_queue():
        rig.queue.add("a")
        await rig.go()
        for number in range(50):
            rig.queue.add(f"k{number}")
        await rig.go(PROBE_CAP)
        assert rig.most[""] == 1


async def test_T3_what_failed_while_a_dependency_was_away_is_due_when_it_is_back() -> None:
    rig = Rig()
    away = True

    async def ask(_key: str) -> None:
        if away:
            raise StoreUnavailable("down")

    rig.answer = ask
    rig.queue.add("a")
    async with rig.running_queue():
        await rig.go(600)
        away = False
        rig.queue.add("b")
        await rig.go(5)
        assert rig.keys()[-2:] == ["b", "a"]


async def test_T3_what_fails_by_itself_is_no_dependency_that_is_away() -> None:
    rig = Rig()

    async def ask(key: str) -> None:
        if key.startswith("bad"):
            raise Failed("500: failed calling webhook")

    rig.answer = ask
    async with rig.running_queue():
        for number in range(60):
            rig.queue.add(f"bad/{number}")
        await rig.go(30)
        rig.queue.add("good")
        await rig.go()
        assert rig.times("good")


@pytest.mark.parametrize("error", [StoreUnavailable("down"), Unreachable("down")])
async def test_T3_a_dependency_that_is_back_is_found_out_soon_though_nothing_is_due(
    error: Exception,
) -> None:
    rig = Rig()
    away = True

    async def ask(_key: str) -> None:
        if away:
            raise error

    rig.answer = ask
    async with rig.running_queue():
        for key in ("a", "b", "c"):
            rig.queue.add(key)
        await rig.go(1000)
        away = False
        back = len(rig.looks)
        await rig.go(PROBE_CAP + 1)
        assert sorted(rig.keys()[back:]) == ["a", "b", "c"]


async def test_T3_what_some_keys_fail_by_holds_no_others_up() -> None:
    """As a network policy or an admission webhook of one namespace that answers nobody."""
    rig = Rig()

    async def ask(key: str) -> None:
        await asyncio.sleep(0)
        if key.startswith("bad"):
            raise Unreachable("no answer in time")

    rig.answer = ask
    async with rig.running_queue():
        for number in range(60):
            rig.queue.add(f"bad/{number}")
        await rig.go(3600)
        for number in range(20):
            await rig.go(30)
            rig.queue.add(f"good/{number}")
            await rig.go(PROBE_CAP + 1)
            assert rig.times(f"good/{number}")


async def test_T3_one_key_that_always_fails_so_does_not_hold_or_heat_the_others() -> None:
    rig = Rig()

    async def ask(key: str) -> None:
        if key == "bad":
            raise StoreUnavailable("the home of this code is cut off")

    rig.answer = ask
    rig.queue.add("bad")
    async with rig.running_queue():
        for number in range(200):
            rig.queue.add(f"k{number}")
            await rig.go(1)
        assert len(rig.looks) - len(rig.times("bad")) == 200
        assert len(rig.times("bad")) <= 10


async def test_a_stopped_queue_ends_when_running_looks_have_and_begins_no_more() -> None:
    rig, gate = Rig(), Gate()
    rig.answer = gate
    async with rig.running_queue() as task:
        rig.queue.add("a")
        await rig.go()
        rig.queue.stop()
        rig.queue.add("b")
        await rig.go(1)
        assert not task.done()
        gate.open.set()
        await rig.go(1)
        assert task.done()
        assert rig.keys() == ["a"]


async def test_a_stopped_queue_ends_soon_though_a_dependency_is_away() -> None:
    rig = Rig()

    async def ask(_key: str) -> None:
        raise StoreUnavailable("down")

    rig.answer = ask
    async with rig.running_queue() as task:
        for number in range(50):
            rig.queue.add(f"k{number}")
        await rig.go(60)
        rig.queue.stop()
        looks = len(rig.looks)
        await rig.go(PROBE_CAP)
        assert task.done()
        assert len(rig.looks) == looks


async def test_a_deposed_look_ends_the_queue() -> None:
    rig = Rig()

    async def refuse(_key: str) -> None:
        raise Deposed("another operator may lead by now")

    rig.answer = refuse
    async with rig.running_queue() as task:
        rig.queue.add("a")
        await rig.go()
        with pytest.raises(Deposed):
            await task


async def test_O1_a_queue_is_stuck_when_no_look_ends_though_some_are_due() -> None:
    rig, gate = Rig(), Gate()
    rig.answer = gate
    async with rig.running_queue():
        await rig.go(2 * STUCK_SECONDS)
        assert not rig.queue.is_stuck()  # idle
        rig.queue.add("a")
        rig.queue.add("b", 3600)
        await rig.go(STUCK_SECONDS)
        assert not rig.queue.is_stuck()
        await rig.go(1)
        assert rig.queue.is_stuck()
        gate.open.set()
        await rig.go()
        assert not rig.queue.is_stuck()


async def test_O1_looks_that_only_their_deadline_ends_are_no_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_module, "HANDLE_SECONDS", 0)
    monkeypatch.setattr(queue_module, "WORKERS", 1)
    rig = Rig()
    stuck = []

    async def hang(_key: str) -> None:
        rig.hand.advance(120_000)
        stuck.append(rig.queue.is_stuck())
        await asyncio.Event().wait()

    rig.answer = hang
    async with rig.running_queue():
        for number in range(5):
            rig.queue.add(f"k{number}")
        async with asyncio.timeout(30):
            while len(stuck) < 4:  # noqa: ASYNC110 - the deadline is the event loop's
                await asyncio.sleep(0)
    assert stuck == [False, False, True, True]


async def test_O1_a_queue_is_not_stuck_while_a_store_is_away() -> None:
    rig = Rig()

    async def ask(_key: str) -> None:
        raise StoreUnavailable("down")

    rig.answer = ask
    async with rig.running_queue():
        for number in range(100):
            rig.queue.add(f"k{number}")
        for _ in range(40):
            await rig.go(30)
            assert not rig.queue.is_stuck()
        assert rig.queue.depth().oldest > STUCK_SECONDS


async def test_places_given_up_are_not_kept_for_ever() -> None:
    """Whose time is years ahead and is looked at often leaves a place each time."""
    rig = Rig()

    async def later(_key: str) -> float | None:
        return 1e8

    rig.answer = later
    async with rig.running_queue():
        for _ in range(1000):
            rig.queue.add("a")
            await rig.go()
        assert len(rig.queue._later) < 100
