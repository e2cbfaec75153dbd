"""The embedded platform's loops: nothing but their cancellation ends them (T2)."""

import asyncio
from collections.abc import Callable

import pytest
import structlog

from shortlink.demo.embedded import forever

PAUSES = {"follow": 0.2, "sweep": 1.0, "relay": 0.5}
CAP = 10.0


class Enough(BaseException):
    """Ends a loop that nothing else ends."""


class Loop:
    """Runs `forever` without waiting; `fails` says, for each time, what the work raises.

    After `times` of work it ends; `slept` are its pauses, `failing` what it told after each.
    """

    def __init__(self, fails: Callable[[int], Exception | None], times: int) -> None:
        self.failing: dict[str, str] = {"other": "stays"}
        self.told: list[str | None] = []
        self.slept: list[float] = []
        self._fails = fails
        self._times = times

    async def run(self, name: str = "follow", chance: float = 0.0) -> None:
        async def work() -> None:
            if error := self._fails(len(self.slept)):
                raise error

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.told.append(self.failing.get(name))
            if len(self.slept) == self._times:
                raise Enough

        with structlog.testing.capture_logs() as self.logs, pytest.raises(Enough):
            await forever(name, work, self.failing, sleep, lambda: chance)


def always(_: int) -> Exception:
    return OSError("down")


@pytest.mark.parametrize("name", PAUSES)
async def test_2000_failures_in_a_row_keep_it_going_and_its_backoff_is_capped(name: str) -> None:
    loop = Loop(always, 2000)
    await loop.run(name)
    assert len(loop.slept) == len(loop.logs) == 2000
    assert loop.slept == sorted(loop.slept)
    assert loop.slept[0] == 2 * PAUSES[name]
    assert loop.slept[1] == 4 * PAUSES[name]
    assert set(loop.slept[10:]) == {CAP}
    assert loop.failing == {"other": "stays", name: "down"}


@pytest.mark.parametrize("chance", [0.25, 0.5, 0.999])
async def test_the_backoff_has_jitter_of_up_to_half_of_it(chance: float) -> None:
    full, part = Loop(always, 20), Loop(always, 20)
    await full.run()
    await part.run(chance=chance)
    assert part.slept == pytest.approx([each * (1 - chance / 2) for each in full.slept])
    assert min(part.slept) > PAUSES["follow"]


async def test_while_it_goes_well_it_pauses_evenly_and_says_nothing() -> None:
    loop = Loop(lambda _: None, 50)
    await loop.run(chance=0.9)
    assert set(loop.slept) == {PAUSES["follow"]}
    assert loop.failing == {"other": "stays"}
    assert loop.logs == []


async def test_recovery_clears_what_it_told_and_the_next_failure_begins_anew() -> None:
    loop = Loop(lambda n: OSError(f"down {n}") if n not in (3, 4) else None, 7)
    await loop.run()
    assert loop.told == ["down 0", "down 1", "down 2", None, None, "down 5", "down 6"]
    assert loop.slept == [0.4, 0.8, 1.6, 0.2, 0.2, 0.4, 0.8]
    assert [line["failures"] for line in loop.logs] == [1, 2, 3, 1, 2]


@pytest.mark.parametrize("error", [TimeoutError(), KeyError("x"), RecursionError(), MemoryError()])
async def test_whatever_is_raised_is_told_in_words(error: Exception) -> None:
    loop = Loop(lambda _: error, 3)
    await loop.run()
    assert all(loop.told)
    assert {line["loop"] for line in loop.logs} == {"follow"}


@pytest.mark.parametrize("at_work", [True, False])
async def test_cancellation_ends_it_at_work_and_in_a_pause(at_work: bool) -> None:
    reached = asyncio.Event()

    async def stay(*_: float) -> None:
        reached.set()
        await asyncio.Event().wait()

    async def pass_by(*_: float) -> None:
        await asyncio.sleep(0)

    work, sleep = (stay, pass_by) if at_work else (pass_by, stay)
    failing: dict[str, str] = {}
    task = asyncio.create_task(forever("sweep", work, failing, sleep))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert failing == {}
