"""Connections that are made in the background, and what is asked of them in vain."""

import asyncio
import random
import threading
from typing import Any

import pytest

from shortlink.store.cassandra import session as session_module
from shortlink.store.cassandra.driver import DriverSession
from shortlink.store.cassandra.session import Connecting, Level, Statement, Unreachable, jittered


class Door:
    """A data centre that can be connected to once it is `open`. `made` counts the attempts."""

    def __init__(self) -> None:
        self.open = False
        self.made = 0
        self.knocked = asyncio.Event()

    async def connect(self) -> str:
        self.made += 1
        self.knocked.set()
        if not self.open:
            raise OSError("connection refused")
        return "connection"

    def connecting(self) -> Connecting[str]:
        return Connecting("eu-west-1", self.connect, random.Random(1).randbytes)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "jittered", lambda _pause, _entropy: 0.001)


async def test_a_connection_is_there_after_the_first_attempt() -> None:
    door = Door()
    door.open = True
    connecting = door.connecting()
    await connecting.first()
    assert connecting.now() == "connection"
    assert await connecting.close() == "connection"
    assert await connecting.close() is None
    with pytest.raises(Unreachable, match="was closed"):
        connecting.now()


async def test_a_data_centre_that_refuses_keeps_nobody_waiting() -> None:
    connecting = Door().connecting()
    async with asyncio.timeout(session_module.FIRST / 2):
        await connecting.first()
    with pytest.raises(
        Unreachable, match="eu-west-1 can't be reached: OSError: connection refused"
    ):
        connecting.now()
    assert await connecting.close() is None


@pytest.mark.usefixtures("impatient")
async def test_it_is_tried_again_until_it_is_there_F2() -> None:
    door = Door()
    connecting = door.connecting()
    await connecting.first()
    while door.made < 3:
        door.knocked.clear()
        await door.knocked.wait()
    door.open = True
    assert await connecting._task == "connection"
    assert connecting.now() == "connection"
    await connecting.close()


class Silent:
    """A driver's connection that answers nothing, and has no time-outs."""

    def __init__(self, *, prepares: bool) -> None:
        self.prepares = prepares
        self.end = threading.Event()
        self.cluster = self

    def prepare(self, _cql: str) -> "Silent":
        if not self.prepares:
            self.end.wait(30)
        return self

    def bind(self, _values: object) -> "Silent":
        return self

    def execute_async(self, _query: object, timeout: float) -> "Silent":
        return self

    def add_callbacks(self, *_: object) -> None:
        pass

    def shutdown(self) -> None:
        self.end.set()


@pytest.mark.parametrize("prepares", [False, True])
async def test_a_driver_that_forgets_a_statement_is_given_up_M1(prepares: bool) -> None:
    silent = Silent(prepares=prepares)

    async def connect() -> Any:
        return silent

    session = DriverSession("us", Connecting("us", connect, random.Random(1).randbytes))
    await session.connecting.first()
    statement = Statement("SELECT", Level.LOCAL_QUORUM, timeout=0.01)
    async with asyncio.timeout(10):
        with pytest.raises(Unreachable, match="us did not answer: TimeoutError; retry later"):
            await session.execute(statement, ("promo",))
        await session.close()


async def test_a_connection_made_while_it_is_closed_is_given_back() -> None:
    door, go = Door(), asyncio.Event()
    door.open = True

    async def connect() -> str:
        await go.wait()
        return await door.connect()

    connecting = Connecting("eu-west-1", connect, random.Random(1).randbytes)
    closing = asyncio.create_task(connecting.close())
    await asyncio.sleep(0)
    go.set()
    assert await closing == "connection"


def test_pauses_are_jittered() -> None:
    pauses = [jittered(10.0, random.Random(seed).randbytes) for seed in range(100)]
    assert all(5.0 <= pause < 10.0 for pause in pauses)
    assert len(set(pauses)) > 90
