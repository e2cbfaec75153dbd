"""What the services' processes share."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

import pytest

from shortlink.links.codes import SLOTS, SlotMap
from shortlink.serving.codes import StoredCodes
from shortlink.serving.ops import OpsServer, line
from shortlink.serving.stopping import Stop
from shortlink.store.port import NotFoundHere, StoreUnavailable
from tests.fakes import FailsAt, Kept, MemoryStore
from tests.http.api_rig import LINKS, is_problem
from tests.http.api_rig import Rig as ApiRig


async def ask(server: OpsServer, request: bytes) -> tuple[int, str]:
    """Status and body of the answer to `request`, after which the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    async with asyncio.timeout(30):
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


async def alive() -> tuple[HTTPStatus, str, bytes]:
    return line(HTTPStatus.OK, "alive")


@asynccontextmanager
async def listener() -> AsyncIterator[OpsServer]:
    server = OpsServer({"/healthz": alive})
    await server.start("127.0.0.1", 0)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/healthz?x=1"), 200),
        (get("/"), 404),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 404),
        (b"\xff\r\n\r\n", 404),
    ],
)
async def test_an_ops_listener_answers_what_it_has(request_: bytes, status: int) -> None:
    async with listener() as ops:
        assert (await ask(ops, request_))[0] == status


@pytest.mark.parametrize("sent", [b"GET " + b"a" * 100_000, b""])
async def test_an_ops_listener_outlives_who_sends_no_request(sent: bytes) -> None:
    async with listener() as ops:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        reader, writer = await asyncio.open_connection("127.0.0.1", ops.port)
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(30):
            with suppress(ConnectionResetError):  # it had not read all of it
                assert await reader.read() == b""
        writer.close()
        assert (await ask(ops, get("/healthz")))[0] == 200
        assert told == []


async def test_a_process_hears_signals_again_that_somebody_took() -> None:
    """Kopf takes them for itself whenever it is begun."""
    loop = asyncio.get_running_loop()
    stop = Stop()
    loop.add_signal_handler(signal.SIGTERM, lambda: None)
    stop.listen()
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        await stop.asked()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)


def entropy(count: int) -> bytes:
    entropy.calls += 1  # type: ignore[attr-defined]
    return bytes((entropy.calls * 7 + n) % 256 for n in range(count))  # type: ignore[attr-defined]


entropy.calls = 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [1, 2])
async def test_G2_codes_wait_for_a_store_that_does_not_answer_at_the_start(number: int) -> None:
    kept = Kept()
    codes = StoredCodes(
        MemoryStore(kept, FailsAt(number, False, StoreUnavailable("down"))), entropy
    )
    with pytest.raises(StoreUnavailable):
        await codes.learn()
    with pytest.raises(StoreUnavailable, match="not known yet; custom aliases go on"):
        codes.draw()
    await codes.learn()
    assert kept.slot_key is not None
    assert SlotMap(kept.slot_key).slot(codes.draw()) in range(SLOTS)


async def test_G2_codes_are_drawn_only_in_the_regions_slots_and_new_ones_are_heard_of() -> None:
    class Regional(MemoryStore):
        own: Sequence[int] = ()

        async def slots(self) -> Sequence[int]:
            return self.own

    kept = Kept()
    store = Regional(kept)
    codes = StoredCodes(store, entropy)
    with pytest.raises(StoreUnavailable, match="owns no code slots yet: run `shortlink prepare"):
        await codes.learn()
    assert kept.slot_key is not None
    slots = SlotMap(kept.slot_key)
    for own in ([5], [5, 6]):
        store.own = own
        await codes.learn()
        assert {slots.slot(codes.draw()) for _ in range(40)} == set(own)


class Elsewhere(StoreUnavailable):
    """A store's own kind of not answering."""


@pytest.mark.parametrize("error", [StoreUnavailable("down"), Elsewhere("down"), NotFoundHere("x")])
async def test_W1_what_the_store_can_not_tell_now_is_503_and_soon_again(error: Exception) -> None:
    rig = ApiRig()
    rig.store.error = error
    async with rig.client:
        answer = await rig.call("GET", f"{LINKS}/promo")
    is_problem(answer, 503, "StoreUnavailable")
    assert answer.headers["Retry-After"] == "2"
