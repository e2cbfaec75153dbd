"""The loops of a process: nothing but their cancellation ends them, and they tell how they go."""

import asyncio
from collections.abc import Callable

import pytest
import structlog
from prometheus_client import CollectorRegistry

from shortlink.clock import HandClock
from shortlink.loops import DEADLINE, Loop, Loops

PAUSES = {"follow": 0.2, "sweep": 1.0, "relay": 0.5}
CAP = 10.0


class Enough(BaseException):
    """Ends a loop that nothing else ends."""


class Rig:
    """Runs one loop without waiting; `fails` says, for each time, what its work raises.

    After `times` of work it ends; `slept` are its pauses, `told` what was failing at each.
    Each round takes a second of the clock.
    """

    def __init__(self, fails: Callable[[int], Exception | None], times: int) -> None:
        self.told: list[str | None] = []
        self.slept: list[float] = []
        self._fails = fails
        self._times = times

    async def run(self, pause: float = 0.2, chance: float = 0.0) -> None:
        hand = HandClock(0)

        async def work() -> None:
            hand.advance(1_000)
            if error := self._fails(len(self.slept)):
                raise error

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.told.append(loops.failing.get("it"))
            if len(self.slept) == self._times:
                raise Enough

        loops = Loops([Loop("it", work, pause)], hand.clock, sleep, lambda: chance)
        loops.failing["other"] = "stays"
        registry = CollectorRegistry()
        registry.register(loops)
        with structlog.testing.capture_logs() as self.logs, pytest.raises(BaseExceptionGroup):
            await loops.run()
        assert loops.failing.pop("other") == "stays"
        self.failing = loops.failing
        self.series = {
            name: registry.get_sample_value(f"shortlink_loop_{name}", {"loop": "it"})
            for name in ("rounds_total", "failures_total", "success_age_seconds")
        }


def always(_: int) -> Exception:
    return OSError("down")


@pytest.mark.parametrize("pause", PAUSES.values())
async def test_2000_failures_in_a_row_keep_it_going_and_its_backoff_is_capped(
    pause: float,
) -> None:
    rig = Rig(always, 2000)
    await rig.run(pause)
    assert len(rig.slept) == len(rig.logs) == 2000
    assert rig.slept == sorted(rig.slept)
    assert rig.slept[0] == 2 * pause
    assert rig.slept[1] == 4 * pause
    assert set(rig.slept[10:]) == {CAP}
    assert rig.failing == {"it": "down"}
    assert rig.series == {
        "rounds_total": 2000,
        "failures_total": 2000,
        "success_age_seconds": 2000,
    }


async def test_a_loop_that_seldom_runs_tries_again_soon_after_a_failure() -> None:
    rig = Rig(lambda n: OSError("down") if n < 6 else None, 7)
    await rig.run(60)
    assert rig.slept == [2, 4, 8, 10, 10, 10, 60]


@pytest.mark.parametrize("chance", [0.25, 0.5, 0.999])
async def test_the_backoff_has_jitter_of_up_to_half_of_it(chance: float) -> None:
    full, part = Rig(always, 20), Rig(always, 20)
    await full.run()
    await part.run(chance=chance)
    assert part.slept == pytest.approx([each * (1 - chance / 2) for each in full.slept])
    assert min(part.slept) > 0.2


async def test_while_it_goes_well_it_pauses_evenly_and_says_nothing() -> None:
    rig = Rig(lambda _: None, 50)
    await rig.run(chance=0.9)
    assert set(rig.slept) == {0.2}
    assert rig.failing == {}
    assert rig.logs == []
    assert rig.series == {"rounds_total": 50, "failures_total": 0, "success_age_seconds": 0}


async def test_recovery_clears_what_it_told_and_the_next_failure_begins_anew() -> None:
    rig = Rig(lambda n: OSError(f"down {n}") if n not in (3, 4) else None, 7)
    await rig.run()
    assert rig.told == ["down 0", "down 1", "down 2", None, None, "down 5", "down 6"]
    assert rig.slept == [0.4, 0.8, 1.6, 0.2, 0.2, 0.4, 0.8]
    assert [line["failures"] for line in rig.logs] == [1, 2, 3, 1, 2]
    assert rig.series == {"rounds_total": 7, "failures_total": 5, "success_age_seconds": 2}


@pytest.mark.parametrize("error", [TimeoutError(), KeyError("x"), RecursionError(), MemoryError()])
async def test_whatever_is_raised_is_told_in_words(error: Exception) -> None:
    rig = Rig(lambda _: error, 3)
    await rig.run()
    assert all(rig.told)
    assert {line["loop"] for line in rig.logs} == {"it"}


@pytest.mark.parametrize("at_work", [True, False])
async def test_cancellation_ends_it_at_work_and_in_a_pause(at_work: bool) -> None:
    reached = asyncio.Event()

    async def stay(*_: float) -> None:
        reached.set()
        await asyncio.Event().wait()

    async def pass_by(*_: float) -> None:
        await asyncio.sleep(0)

    work, sleep = (stay, pass_by) if at_work else (pass_by, stay)
    loops = Loops([Loop("sweep", work, 1)], HandClock(0).clock, sleep)
    async with loops.running():
        await reached.wait()
    assert loops.failing == {}
    assert len(asyncio.all_tasks()) == 1


async def test_a_loop_hangs_once_it_has_made_no_progress_for_its_deadline() -> None:
    hand, gate, ended = HandClock(0), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    async def pause(_: float) -> None:
        ended.set()
        await asyncio.Event().wait()

    loops = Loops([Loop("sweep", wait, 1), Loop("relay", wait, 1)], hand.clock, pause)
    async with loops.running():
        hand.advance(int((DEADLINE + 1) * 1000))  # and its pause
        assert loops.hung() == []
        loops.progressed("relay")
        hand.advance(1)
        assert loops.hung() == ["sweep"]
        gate.set()
        await ended.wait()
        assert loops.hung() == []
