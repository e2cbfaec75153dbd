"""The redirect server's bounds, time-outs, drain and process."""

import asyncio
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from shortlink.redirect.protocol import HEAD_DEADLINE, IDLE, LINGER, MAX_HEAD, MAX_WAITING
from shortlink.redirect.server import RedirectServer
from shortlink.store.sql import open_sql_store
from tests import samples
from tests.http.redirect_site import Peer, Site, a_request
from tests.samples import TARGET

# Bounds


def padded(size: int) -> bytes:
    """A request whose head has `size` bytes."""
    short = a_request(extra=b"X: \r\n")
    return short.replace(b"X: ", b"X: " + b"y" * (size - len(short)))


@pytest.mark.parametrize("before", [0, 2], ids=["first", "later"])
@pytest.mark.parametrize(("size", "status"), [(MAX_HEAD, 302), (MAX_HEAD + 1, 431)])
async def test_a_head_over_its_bound_is_431_and_the_end(
    peer: Peer, size: int, status: int, before: int
) -> None:
    for _ in range(before):
        await peer.ask(a_request())
    assert (await peer.ask(padded(size))).status == status
    if status == 302:
        assert (await peer.ask(a_request())).status == 302
    else:
        assert await peer.ended()


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /" + b"a" * 50_000,
        b"GET / HTTP/1.1\r\nX: " + b"y" * 50_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 9_000,
    ],
    ids=["target", "value", "fields"],
)
async def test_a_head_without_end_is_431(peer: Peer, flood: bytes) -> None:
    assert (await peer.ask(flood)).status == 431
    assert await peer.ended()


async def test_a_large_head_behind_others_in_one_segment_is_not_taken_for_larger(
    peer: Peer,
) -> None:
    peer.writer.write(a_request() * 30 + padded(MAX_HEAD) + a_request() * 30)
    assert {(await peer.response()).status for _ in range(61)} == {302}


async def test_requests_that_wait_are_bounded_and_none_is_lost(site: Site, peer: Peer) -> None:
    site.store.hold("slow1")
    count = 20_000
    peer.writer.write(a_request("/slow1") + a_request("/promo") * count)
    connection = await site.connection()
    await site.until(lambda: len(connection._turns) >= MAX_WAITING)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(connection._turns) < MAX_WAITING + 4096 // len(a_request()) + 1
    assert len(connection._held) <= 2**18
    site.store.release("slow1")
    assert (await peer.response()).status == 404
    assert {(await peer.response()).status for _ in range(count)} == {302}


async def test_answers_that_nobody_takes_are_bounded_and_none_is_lost(
    site: Site, peer: Peer
) -> None:
    count = 20_000
    peer.writer.write(a_request("/") * count)
    connection = await site.connection()
    await site.until(lambda: connection._stalled)
    for _ in range(100):
        await asyncio.sleep(0)
    assert connection._transport.get_write_buffer_size() < 2**19
    assert {(await peer.response()).status for _ in range(count)} == {404}


async def test_half_a_request_has_ten_seconds(site: Site, peer: Peer) -> None:
    peer.writer.write(a_request()[:-2])
    connection = await site.connection()
    await site.until(lambda: connection._begun is not None)
    site.hand.advance(HEAD_DEADLINE)
    peer.writer.write(b"X: y\r\n")  # a drip prolongs nothing
    site.server.sweep()
    site.hand.advance(1)
    site.server.sweep()
    assert (await peer.response()).status == 408
    assert await peer.ended()


async def test_a_silent_connection_is_closed_after_its_time(site: Site, peer: Peer) -> None:
    await peer.ask(a_request())
    site.hand.advance(IDLE)
    site.server.sweep()
    assert (await peer.ask(a_request())).status == 302
    site.hand.advance(IDLE + 1)
    site.server.sweep()
    assert await peer.ended()


async def test_a_connection_that_waits_for_the_store_is_not_silent(site: Site, peer: Peer) -> None:
    site.store.hold("promo")
    peer.writer.write(a_request())
    await site.until(lambda: site.store.reads == ["promo"])
    site.hand.advance(IDLE + 1)
    site.server.sweep()
    site.store.release("promo")
    assert (await peer.response()).status == 302


async def test_a_peer_that_does_not_close_after_the_end_is_cut_off(site: Site, peer: Peer) -> None:
    await peer.ask(a_request(extra=b"Connection: close\r\n"))
    assert await peer.ended()
    site.hand.advance(LINGER + 1)
    site.server.sweep()
    await site.until(lambda: not site.connections())


async def test_a_peer_that_takes_nothing_is_cut_off(site: Site, peer: Peer) -> None:
    peer.writer.write(a_request("/") * 20_000)
    connection = await site.connection()
    await site.until(lambda: connection._stalled)
    site.hand.advance(IDLE + 1)
    site.server.sweep()
    await site.until(lambda: not site.connections())


async def test_connections_over_the_bound_are_told_503_and_closed(site: Site) -> None:
    await site.server.close(0)
    await site.start(max_connections=2)
    inside = [await site.connect() for _ in range(2)]
    await site.until(lambda: len(site.connections()) == 2)
    outside = await site.connect()
    response = await outside.response()
    assert (response.status, response["Connection"]) == (503, "close")
    assert await outside.ended()
    assert [(await peer.ask(a_request())).status for peer in inside] == [302, 302]
    for peer in (outside, inside.pop()):
        peer.writer.close()
    await site.until(lambda: len(site.connections()) == 1)
    assert (await (await site.connect()).ask(a_request())).status == 302


# The server's life


async def test_draining_answers_what_is_in_flight_and_closes(site: Site, peer: Peer) -> None:
    site.store.hold("promo")
    peer.writer.write(a_request() * 2)
    busy, idle = await site.connect(), await site.connect()
    await busy.ask(a_request("/none1"))
    await idle.ask(a_request("/none1"))
    closing = asyncio.create_task(site.server.close(30))
    await site.until(lambda: site.service.draining)
    with pytest.raises(ConnectionRefusedError):
        await site.connect()
    response = await busy.ask(a_request("/readyz"))
    assert (response.status, response["Connection"]) == (503, "close")
    assert await busy.ended()
    busy.writer.close()
    site.hand.advance(1_001)
    site.server.sweep()
    assert await idle.ended()
    idle.writer.close()
    assert not closing.done()
    site.store.release("promo")
    first, second = await peer.response(), await peer.response()
    assert (first.status, "Connection" in first) == (302, False)
    assert (second.status, second["Connection"]) == (302, "close")
    assert await peer.ended()
    peer.writer.close()
    await closing


async def test_draining_ends_at_its_deadline_whatever_still_waits(site: Site, peer: Peer) -> None:
    site.store.hold("promo")
    peer.writer.write(a_request())
    await site.until(lambda: site.store.reads == ["promo"])
    await site.server.close(0.01)
    with suppress(ConnectionResetError):
        assert await peer.ended()
    assert not site.service.reading("promo")


async def test_a_port_in_use_is_the_callers_to_deal_with(site: Site) -> None:
    other = RedirectServer(site.service, "127.0.0.1", site.server.port)
    with pytest.raises(OSError, match="address already in use"):
        await other.start()
    other = RedirectServer(site.service, "127.0.0.1", 0, ops_port=site.server.ops_port)
    with pytest.raises(OSError, match="address already in use"):
        await other.start()
    with pytest.raises(ConnectionRefusedError):
        await site.connect(other.port)


@pytest.mark.skipif(sys.platform != "linux", reason="SO_REUSEPORT shares a port on Linux")
async def test_processes_can_share_a_port(site: Site) -> None:
    first = RedirectServer(site.service, "127.0.0.1", 0, reuse_port=True)
    await first.start()
    second = RedirectServer(site.service, "127.0.0.1", first.port, reuse_port=True)
    await second.start()
    await first.close(0)
    assert (await (await site.connect(second.port)).ask(a_request())).status == 302
    await second.close(0)


async def test_a_process_of_its_own_serves_the_store_and_ends_well_on_sigterm(
    site: Site, tmp_path: Path
) -> None:
    path = tmp_path / "links.db"
    store = open_sql_store(path)
    await store.create(samples.a_link(expires_at=None), (), ())
    await store.close()
    code = (
        "from pathlib import Path; from shortlink.redirect.server import run_redirect;"
        f"run_redirect(Path({str(path)!r}), '127.0.0.1', 0)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", code, stdout=-1, stderr=-1
    )
    assert process.stdout is not None
    assert process.stderr is not None
    line = re.sub(r"\x1b\[\d+m", "", (await process.stdout.readline()).decode())
    found = re.search(r"\bport=(\d+)", line)
    assert found, (line, await process.stderr.read())
    peer = await site.connect(int(found.group(1)))
    assert (await peer.ask(a_request()))["Location"] == TARGET
    assert (await peer.ask(a_request("/readyz"))).status == 200
    process.send_signal(signal.SIGTERM)
    assert await peer.ended()
    peer.writer.close()
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
