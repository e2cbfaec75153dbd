"""What the services' processes share, and the worker's word about itself."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest
import structlog
from prometheus_client import CollectorRegistry

from shortlink.clock import HandClock
from shortlink.links.codes import SLOTS, SlotMap
from shortlink.links.model import Event
from shortlink.loops import DEADLINE
from shortlink.serving.codes import StoredCodes
from shortlink.serving.ops import OpsServer
from shortlink.serving.parts import Parts
from shortlink.store.port import NotFoundHere, StoreUnavailable
from shortlink_operator.worker import Worker
from tests.fakes import FailsAt, Kept, MemoryStore
from tests.http.api_rig import LINKS, is_problem
from tests.http.api_rig import Rig as ApiRig
from tests.samples import NOW, a_create
from tests.world import World


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


class Rig:
    """A worker on a store in memory. `gate` holds its sink; `down` fails its store."""

    def __init__(self) -> None:
        self.world = World()
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self._published = asyncio.Event()
        self.hand = HandClock(NOW)
        self.down = False
        store = MemoryStore(self.world.kept, self._store)
        self.worker = Worker(Parts(store, None, CollectorRegistry()), self.hand.clock, self._sink)

    async def published(self) -> None:
        """Return when nothing is pending."""
        async with asyncio.timeout(30):
            await self._published.wait()

    async def _store(self, method: str, done: bool) -> None:
        if method == "published" and done:
            self._published.set()
        if self.down:
            raise StoreUnavailable("links.db is locked")

    async def _sink(self, events: Sequence[Event]) -> None:
        self.entered.set()
        await self.gate.wait()


async def test_O1_a_worker_whose_loop_hangs_is_not_alive_until_it_moves_again() -> None:
    rig = Rig()
    await rig.world.management().create(a_create())
    await rig.worker.ops.start("127.0.0.1", 0)
    async with rig.worker.loops.running():
        await rig.entered.wait()
        assert await ask(rig.worker.ops, get("/healthz")) == (200, "alive\n")
        rig.hand.advance(int(DEADLINE * 1000) + 1)
        rig.worker.loops.progressed("sweep")
        assert await ask(rig.worker.ops, get("/healthz")) == (503, "hung: relay\n")
        rig.gate.set()
        await rig.published()
        assert await ask(rig.worker.ops, get("/healthz")) == (200, "alive\n")
    _, series = await ask(rig.worker.ops, get("/metrics"))
    assert "shortlink_events_published_total 1.0" in series
    rig.worker.ops.close()


async def test_O1_a_worker_without_its_store_is_alive_but_not_ready() -> None:
    rig = Rig()
    await rig.worker.ops.start("127.0.0.1", 0)
    assert (await ask(rig.worker.ops, get("/readyz")))[0] == 200
    rig.down = True
    assert (await ask(rig.worker.ops, get("/readyz")))[0] == 503
    assert (await ask(rig.worker.ops, get("/healthz")))[0] == 200
    rig.worker.ops.close()


async def test_O4_what_a_worker_publishes_is_in_its_log() -> None:
    rig = Rig()
    rig.gate.set()
    await rig.world.management().create(a_create())
    with structlog.testing.capture_logs() as logs:
        async with rig.worker.loops.running():
            await rig.published()
    (told,) = [entry for entry in logs if entry["event"] == "link event"]
    assert (told["kind"], told["code"]) == ("created", "promo")
    assert told["at"].endswith("Z")


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
async def test_a_workers_listener_answers_what_it_has(request_: bytes, status: int) -> None:
    rig = Rig()
    await rig.worker.ops.start("127.0.0.1", 0)
    assert (await ask(rig.worker.ops, request_))[0] == status
    rig.worker.ops.close()


@pytest.mark.parametrize("sent", [b"GET " + b"a" * 100_000, b""])
async def test_a_workers_listener_outlives_who_sends_no_request(sent: bytes) -> None:
    rig = Rig()
    await rig.worker.ops.start("127.0.0.1", 0)
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.worker.ops.port)
    writer.write(sent)
    writer.write_eof()
    async with asyncio.timeout(30):
        with suppress(ConnectionResetError):  # it had not read all of it
            assert await reader.read() == b""
    writer.close()
    assert (await ask(rig.worker.ops, get("/healthz")))[0] == 200
    assert told == []
    rig.worker.ops.close()


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
