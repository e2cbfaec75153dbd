"""The API on a real socket: limits that only a connection shows, shutdown, and the log."""

import asyncio
import io
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import httpx
import pytest
import structlog

from shortlink.api.server import ApiServer
from tests.http.api_rig import ADMIN, LINKS, OWNER, URL, Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    async with rig.client:
        yield rig


@pytest.fixture
async def server(rig: Rig) -> AsyncIterator[ApiServer]:
    server = ApiServer(rig.app, "127.0.0.1", 0)
    await server.start()
    yield server
    await server.close()


async def _send(server: ApiServer, raw: bytes) -> bytes:
    """All that comes back for `raw`, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(raw)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize("host", ["\udcff", "a" * 300])
async def test_what_can_be_no_host_is_refused(rig: Rig, host: str) -> None:
    with pytest.raises(UnicodeError):
        await ApiServer(rig.app, host, 0).start()


async def test_answers_are_sent_at_once(server: ApiServer) -> None:
    """W7: without TCP_NODELAY each would take 40 ms longer."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        await client.get("/healthz")
        (connection,) = server._server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_a_chunked_body_is_cut_off_while_it_is_read(server: ApiServer) -> None:
    """413 comes although the body never ends and named no length."""
    head = (
        f"POST {LINKS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {OWNER}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10001\r\n" + b" " * 0x10001 + b"\r\n"
    answer = await _send(server, head.encode() + chunk)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"urn:shortlink:problem:BodyTooLarge" in answer


async def test_a_length_over_the_limit_is_refused_before_the_body_comes(
    server: ApiServer,
) -> None:
    head = (
        f"POST {LINKS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {OWNER}\r\n"
        "Content-Type: application/json\r\nContent-Length: 5000000000\r\n\r\n"
    )
    assert (await _send(server, head.encode())).startswith(b"HTTP/1.1 413 ")


async def test_endless_headers_are_refused(server: ApiServer) -> None:
    endless = b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 200_000
    try:
        answer = await _send(server, endless)
    except ConnectionError:
        return  # the reset overtook the answer
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_close_lets_a_request_in_flight_end(rig: Rig, server: ApiServer) -> None:
    rig.store.gate.clear()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        asked = asyncio.create_task(
            client.post(LINKS, json={"long_url": URL}, headers={"Authorization": f"Bearer {OWNER}"})
        )
        await rig.store.entered.wait()
        closed = asyncio.create_task(server.close())
        async with asyncio.timeout(10):
            while await _accepts(server.port):
                pass
        rig.store.gate.set()
        assert (await asked).status_code == 201
        await closed


async def test_close_does_not_wait_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlink.api.server.GRACE_SECONDS", 0)
    server = ApiServer(rig.app, "127.0.0.1", 0)
    await server.start()
    rig.store.gate.clear()
    asked = asyncio.create_task(_send(server, b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"))
    await rig.store.entered.wait()
    async with asyncio.timeout(10):
        await server.close()
        assert b" 200 " not in await asked


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_a_port_in_use_is_an_error_at_start(rig: Rig, server: ApiServer) -> None:
    second = ApiServer(rig.app, "127.0.0.1", server.port)
    with pytest.raises(OSError, match="in use"):
        await second.start()
    await second.close()


@pytest.fixture
def everything_logged() -> Iterator[io.StringIO]:
    """All logs at their most talkative, local variables in tracebacks included."""
    out = io.StringIO()
    structlog.configure(
        processors=[structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(out),
    )
    handler = logging.StreamHandler(out)
    handler.addFilter(lambda record: not record.name.startswith("http"))  # the client's own
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield out
    root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


async def test_no_key_is_ever_logged(
    rig: Rig, server: ApiServer, everything_logged: io.StringIO
) -> None:
    """P1: not of a good call, a refused one, one with the key in the wrong place, nor a bug."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        good = {"Authorization": f"Bearer {OWNER}"}
        made = await client.post(LINKS, json={"long_url": URL}, headers=good)
        assert made.status_code == 201
        await client.get(f"{LINKS}/abc", headers={"Authorization": f"Basic {ADMIN}"})
        await client.get(f"{LINKS}/abc", headers={"Authorization": "Bearer sl_notakey"})
        await client.post(LINKS, json={ADMIN: 1}, headers=good, params={"key": ADMIN})
        rig.store.error = RuntimeError("planted")
        broken = await client.get(f"{LINKS}/abc", headers=good)
        assert broken.status_code == 500
    logged = everything_logged.getvalue()
    assert "link created" in logged
    assert "Traceback" in logged
    assert "planted" in logged
    for secret in (OWNER, ADMIN, "sl_notakey"):
        assert secret not in logged


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_half_a_head_does_not_hold_a_connection(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    """A thousand of them would keep all others out."""
    monkeypatch.setattr("shortlink.api.server.HEAD_SECONDS", 0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(before)
    if before:
        assert b" 200 OK" in await reader.readuntil(b'{"status":"alive"}')
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: ")
    async with asyncio.timeout(10):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
