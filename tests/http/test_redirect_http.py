"""The redirect server over real sockets: HTTP/1.1, its bounds, its drain (R1, R2, RFC 9112)."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from shortlink.clock import HandClock
from shortlink.links.model import Cause, State
from shortlink.redirect.counters import Clicks
from shortlink.redirect.protocol import HEAD_DEADLINE, IDLE, LINGER, MAX_BODY, MAX_HEAD, MAX_WAITING
from shortlink.redirect.protocol import Connection as ServerConnection
from shortlink.redirect.server import RedirectServer
from shortlink.redirect.service import RedirectService
from shortlink.store.port import StoreUnavailable
from shortlink.store.sql import open_sql_store
from tests import samples
from tests.redirect_rig import Source
from tests.samples import NOW, TARGET

HOST = b"Host: s.example\r\n"


@dataclass(frozen=True)
class Response:
    status: int
    head: str
    body: bytes

    def __getitem__(self, name: str) -> str:
        values = re.findall(rf"(?im)^{name}: (.*)\r$", self.head)
        assert len(values) == 1, (name, self.head)
        return str(values[0])

    def __contains__(self, name: str) -> bool:
        return re.search(rf"(?im)^{name}:", self.head) is not None


def a_request(target: str = "/promo", method: str = "GET", extra: bytes = b"") -> bytes:
    return f"{method} {target} HTTP/1.1\r\n".encode() + HOST + extra + b"\r\n"


class Peer:
    """A visitor's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def response(self, *, head: bool = False) -> Response:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("ascii")
        found = re.match(r"HTTP/1\.1 (\d{3}) [A-Z][A-Za-z -]*\r\nDate: [^\r]+ GMT\r\n", text)
        assert found, text
        length = int(re.findall(r"(?m)^Content-Length: (\d+)\r$", text)[0])
        return Response(
            int(found.group(1)), text, b"" if head else await self.reader.readexactly(length)
        )

    async def ask(self, data: bytes, *, head: bool = False) -> Response:
        self.writer.write(data)
        return await self.response(head=head)

    async def ended(self) -> bool:
        """Whether nothing more comes before the end."""
        return await self.reader.read() == b""


class Site:
    """A server with one link, `promo`, and a hand-set clock."""

    def __init__(self) -> None:
        self.hand = HandClock(NOW)
        self.store = Source([samples.a_link(changed_at=NOW)])
        self.clicks = Clicks()
        self.service = RedirectService(self.store, self.hand.clock, self.clicks)
        self.server = RedirectServer(self.service, "127.0.0.1", 0)
        self.peers: list[Peer] = []

    async def start(self, **options: Any) -> None:
        self.server = RedirectServer(self.service, "127.0.0.1", 0, **options)
        await self.server.start()

    async def connect(self, port: int | None = None) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port or self.server.port))
        self.peers.append(peer)
        return peer

    async def until(self, true: Callable[[], bool]) -> None:
        """Let both sides go on until `true`; the test's own time-out bounds it."""
        while not true():
            await asyncio.sleep(0)

    def connections(self) -> set[ServerConnection]:
        return self.server._public.connections

    async def connection(self) -> ServerConnection:
        await self.until(lambda: len(self.connections()) == 1)
        return next(iter(self.connections()))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.start()
    yield site
    for peer in site.peers:
        peer.writer.close()
    await site.server.close(0)
    await site.until(lambda: not site.connections())


@pytest.fixture
async def peer(site: Site) -> Peer:
    return await site.connect()


# Answers


async def test_r1_a_link_is_302_with_its_target_and_no_more_than_it_needs(peer: Peer) -> None:
    response = await peer.ask(a_request())
    assert response.head == (
        "HTTP/1.1 302 Found\r\nDate: Fri, 15 Jan 2027 08:00:00 GMT\r\n"
        f"Location: {TARGET}\r\nCache-Control: max-age=0, s-maxage=10\r\nContent-Length: 0\r\n\r\n"
    )


async def test_a_cached_link_is_answered_alike_on_the_quick_path(site: Site, peer: Peer) -> None:
    first = await peer.ask(a_request())
    rest = [await peer.ask(a_request()) for _ in range(5)]
    assert rest == [first] * 5
    assert site.service.counters.quick_hits[302] == 5
    assert site.store.reads == ["promo"]
    assert site.clicks.drain() == [("promo", 1, NOW)] * 6


async def test_the_date_is_that_of_the_answer_not_of_the_entry(site: Site, peer: Peer) -> None:
    await peer.ask(a_request())
    site.hand.advance(2_000)
    assert (await peer.ask(a_request()))["Date"] == "Fri, 15 Jan 2027 08:00:02 GMT"


async def test_k1_the_quick_path_serves_nothing_past_its_age_or_expiry(
    site: Site, peer: Peer
) -> None:
    site.store.links["soon"] = samples.a_link(code="soon", expires_at=NOW + 3_000)
    for target in ("/promo", "/soon", "/soon"):
        assert (await peer.ask(a_request(target))).status == 302
    site.hand.advance(3_000)
    assert (await peer.ask(a_request("/soon"))).status == 410
    assert (await peer.ask(a_request("/promo"))).status == 302
    site.hand.advance(2_000)
    assert (await peer.ask(a_request("/promo"))).status == 302
    assert site.store.reads == ["promo", "soon", "soon", "promo"]


async def test_k4_a_change_reaches_the_next_request_of_an_open_connection(
    site: Site, peer: Peer
) -> None:
    link = site.store.links["promo"]
    for _ in range(3):
        await peer.ask(a_request())
    site.service.changed(
        replace(link, version=2, state=State.TOMBSTONED, tombstoned_at=NOW, cause=Cause.DELETED)
    )
    response = await peer.ask(a_request())
    assert response.status == 410
    assert b"deleted by its owner" in response.body


@pytest.mark.parametrize("target", ["/promo", "/none1", "/", "/healthz", "/readyz"])
async def test_head_has_the_headers_of_get_and_no_body(peer: Peer, target: str) -> None:
    get = await peer.ask(a_request(target))
    head = await peer.ask(a_request(target, "HEAD"), head=True)
    assert head.head == get.head
    assert (await peer.ask(a_request(target))) == get  # nothing was left between


async def test_r3_a_head_is_no_click(site: Site, peer: Peer) -> None:
    await peer.ask(a_request(), head=True)
    site.clicks.drain()
    await peer.ask(a_request(method="HEAD"), head=True)
    assert site.clicks.drain() == []


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"]
)
@pytest.mark.parametrize("target", ["/promo", "/none1", "/healthz"])
async def test_other_methods_are_405_and_say_what_is_allowed(
    site: Site, peer: Peer, method: str, target: str
) -> None:
    response = await peer.ask(a_request(target, method, b"Content-Length: 4\r\n") + b"body")
    assert response.status == 405
    assert response["Allow"] == "GET, HEAD"
    assert "Location" not in response
    assert site.store.reads == []
    assert (await peer.ask(a_request())).status == 302


async def test_options_of_the_whole_server_is_405_too(peer: Peer) -> None:
    assert (await peer.ask(a_request("*", "OPTIONS"))).status == 405


@pytest.mark.parametrize("target", ["//promo", "/promo/", "/promo//", "//evil.example/promo"])
async def test_slashes_never_make_a_redirect(peer: Peer, target: str) -> None:
    response = await peer.ask(a_request(target))
    assert response.status == 404
    assert "Location" not in response


@pytest.mark.parametrize(
    "target",
    [
        *"/promo?url=https://evil.example/ /promo?redir_url=//evil.example /%70romo".split(),
        *"/promo? http://s.example/promo http://other.example/promo?next=//evil.example".split(),
    ],
)
async def test_p2_every_spelling_leads_to_the_stored_target(peer: Peer, target: str) -> None:
    for _ in range(2):
        assert (await peer.ask(a_request(target)))["Location"] == TARGET


async def test_the_operators_pages_are_not_the_visitors(site: Site, peer: Peer) -> None:
    assert (await peer.ask(a_request("/metrics"))).status == 404
    assert (await peer.ask(a_request("/why/promo"))).status == 404
    ops = await site.connect(site.server.ops_port)
    metrics = await ops.ask(a_request("/metrics"))
    assert metrics.status == 200
    assert b'shortlink_redirect_requests_total{status="404"} 2.0\n' in metrics.body
    assert (await ops.ask(a_request("/why/promo"))).status == 200
    assert (await ops.ask(a_request("/promo"))).status == 404
    assert (await ops.ask(a_request("/metrics", "POST"))).status == 405


async def test_k5_a_failing_store_is_503_and_the_connection_stays(site: Site, peer: Peer) -> None:
    site.store.error = StoreUnavailable("down")
    response = await peer.ask(a_request())
    assert (response.status, response["Retry-After"]) == (503, "1")
    assert response["Cache-Control"] == "no-store"
    site.store.error = None
    assert (await peer.ask(a_request())).status == 302


# Connections


async def test_http_1_0_is_closed_after_the_answer(peer: Peer) -> None:
    response = await peer.ask(b"GET /promo HTTP/1.0\r\n\r\n")
    assert response.status == 302
    assert response["Connection"] == "close"
    assert await peer.ended()


async def test_http_1_0_is_kept_when_it_asks_and_told_so(peer: Peer) -> None:
    for _ in range(3):
        response = await peer.ask(b"GET /promo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert response["Connection"] == "keep-alive"


@pytest.mark.parametrize("value", [b"close", b"Close", b"keep-alive, close"])
async def test_connection_close_is_honoured_and_nothing_after_it_is_answered(
    peer: Peer, value: bytes
) -> None:
    await peer.ask(a_request())
    closing = a_request(extra=b"Connection: " + value + b"\r\n")
    response = await peer.ask(closing + a_request("/none1"))
    assert response["Connection"] == "close"
    assert await peer.ended()


async def test_pipelined_answers_keep_their_order_though_one_is_slow(
    site: Site, peer: Peer
) -> None:
    await peer.ask(a_request())
    site.store.hold("slow1")
    targets = ["/promo", "/none1"] * 12 + ["/slow1"] + ["/promo", "/"] * 12 + ["/none2"]
    peer.writer.write(b"".join(a_request(target) for target in targets))
    expected = [302 if target == "/promo" else 404 for target in targets]
    assert [(await peer.response()).status for _ in range(24)] == expected[:24]
    peer.writer.write(a_request("/promo"))
    await site.until(lambda: "none2" in site.store.reads)
    assert not peer.reader._buffer  # type: ignore[attr-defined]
    site.store.release("slow1")
    assert [(await peer.response()).status for _ in range(27)] == [*expected[24:], 302]


async def test_a_slow_look_up_holds_up_no_other_connection(site: Site, peer: Peer) -> None:
    site.store.hold("slow1")
    peer.writer.write(a_request("/slow1"))
    assert (await (await site.connect()).ask(a_request())).status == 302
    site.store.release("slow1")
    assert (await peer.response()).status == 404


async def test_a_peer_that_has_said_all_still_gets_its_answers(site: Site, peer: Peer) -> None:
    site.store.hold("promo")
    peer.writer.write(a_request() + a_request("/none1"))
    peer.writer.write_eof()
    await site.until(lambda: site.store.reads == ["promo", "none1"])
    site.store.release("promo")
    assert (await peer.response()).status == 302
    assert (await peer.response()).status == 404
    assert await peer.ended()


async def test_a_peer_that_left_while_it_waited_breaks_nothing(site: Site, peer: Peer) -> None:
    site.store.hold("promo")
    peer.writer.write(a_request() * 3)
    await site.until(lambda: site.store.reads == ["promo"])
    connection = await site.connection()
    peer.writer.transport.abort()
    await site.until(lambda: connection._eof)
    with capture_logs() as logs:
        site.store.release("promo")
        await site.until(lambda: not site.connections())
        assert (await (await site.connect()).ask(a_request())).status == 302
    assert logs == []


# Bodies


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 0\r\n\r\n",
        b"Content-Length: 5\r\n\r\nhello",
        b"Content-Length: 57\r\n\r\n"
        + b"GET /none1 HTTP/1.1\r\nHost: evil.example\r\n\r\n".ljust(57),
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nHost: evil.example\r\nX: y\r\n\r\n",
    ],
)
async def test_a_body_is_skipped_whatever_is_in_it(peer: Peer, body: bytes) -> None:
    for _ in range(2):
        response = await peer.ask(b"GET /promo HTTP/1.1\r\n" + HOST + body)
        assert response.status == 302
    assert (await peer.ask(a_request("/none1"))).status == 404


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_its_bound_is_413_and_the_end(peer: Peer, chunked: bool) -> None:
    if chunked:
        chunk = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
        body = b"Transfer-Encoding: chunked\r\n\r\n" + chunk * (MAX_BODY // 0x1000 + 1)
    else:
        body = f"Content-Length: {MAX_BODY + 1}\r\n\r\n".encode() + b"x" * (MAX_BODY + 1)
    response = await peer.ask(b"GET /promo HTTP/1.1\r\n" + HOST + body)
    assert response.status == 413
    assert await peer.ended()


async def test_a_body_within_its_bound_is_taken(peer: Peer) -> None:
    head = a_request(extra=f"Content-Length: {MAX_BODY}\r\n".encode())
    assert (await peer.ask(head + b"x" * MAX_BODY)).status == 302
    assert (await peer.ask(a_request())).status == 302


async def test_an_expectation_without_a_body_changes_nothing(peer: Peer) -> None:
    for _ in range(2):
        assert (await peer.ask(a_request(extra=b"Expect: 100-continue\r\n"))).status == 302


@pytest.mark.parametrize(("method", "status"), [("GET", 302), ("POST", 405)])
async def test_who_waits_for_a_word_before_the_body_gets_the_final_one(
    peer: Peer, method: str, status: int
) -> None:
    head = a_request("/promo", method, b"Expect: 100-continue\r\nContent-Length: 5\r\n")
    response = await peer.ask(head)
    assert response.status == status
    assert response["Connection"] == "close"
    peer.writer.write(b"hello")
    assert await peer.ended()


# What is not HTTP/1.1 as it should be

BAD = {
    "no host": b"GET /promo HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /promo HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "two hosts in two cases": b"GET /promo HTTP/1.1\r\n" + HOST + b"hOST: s.example\r\n\r\n",
    "two hosts in 1.0": b"GET /promo HTTP/1.0\r\n" + HOST + HOST + b"\r\n",
    "host with a space": b"GET /promo HTTP/1.1\r\nHost: s example\r\n\r\n",
    "host with a path": b"GET /promo HTTP/1.1\r\nHost: s.example/x\r\n\r\n",
    "host with userinfo": b"GET /promo HTTP/1.1\r\nHost: a@s.example\r\n\r\n",
    "absolute-form without host": b"GET http://s.example/promo HTTP/1.1\r\n\r\n",
    "CL and TE": a_request(extra=b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n")
    + b"0\r\n\r\n",
    "TE and CL": a_request(extra=b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n")
    + b"0\r\n\r\n",
    "two CL": a_request(extra=b"Content-Length: 1\r\nContent-Length: 1\r\n") + b"x",
    "CL list": a_request(extra=b"Content-Length: 1, 1\r\n") + b"x",
    "CL plus": a_request(extra=b"Content-Length: +1\r\n") + b"x",
    "CL negative": a_request(extra=b"Content-Length: -1\r\n") + b"x",
    "CL hex": a_request(extra=b"Content-Length: 0x1\r\n") + b"x",
    "CL overflow": a_request(extra=b"Content-Length: 99999999999999999999\r\n") + b"x",
    "TE unknown": a_request(extra=b"Transfer-Encoding: foo\r\n"),
    "TE almost chunked": a_request(extra=b"Transfer-Encoding: xchunked\r\n") + b"0\r\n\r\n",
    "TE not last": a_request(extra=b"Transfer-Encoding: chunked, identity\r\n") + b"0\r\n\r\n",
    "TE twice": a_request(extra=b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n")
    + b"0\r\n\r\n",
    "chunk size with a bare LF": a_request(extra=b"Transfer-Encoding: chunked\r\n") + b"0\n\r\n",
    "chunk size overflow": a_request(extra=b"Transfer-Encoding: chunked\r\n") + b"f" * 20 + b"\r\n",
    "obs-fold": a_request(extra=b"X: a\r\n b\r\n"),
    "folded host": b"GET /promo HTTP/1.1\r\nHost:\r\n s.example\r\n\r\n",
    "space before the first field": b"GET /promo HTTP/1.1\r\n " + HOST + b"\r\n",
    "space before a colon": b"GET /promo HTTP/1.1\r\nHost : s.example\r\n\r\n",
    "bare LF after a field": b"GET /promo HTTP/1.1\r\nHost: s.example\nX: y\r\n\r\n",
    "bare LF after the request line": b"GET /promo HTTP/1.1\n" + HOST + b"\r\n",
    "bare LFs": b"GET /promo HTTP/1.1\nHost: s.example\n\n",
    "bare CR": b"GET /promo HTTP/1.1\r\nHost: s.example\rX: y\r\n\r\n",
    "NUL in a value": a_request(extra=b"X: \x00\r\n"),
    "NUL in the target": b"GET /pro\x00mo HTTP/1.1\r\n" + HOST + b"\r\n",
    "raw UTF-8 in the target": "GET /é HTTP/1.1\r\n".encode() + HOST + b"\r\n",
    "space in the target": b"GET /promo x HTTP/1.1\r\n" + HOST + b"\r\n",
    "no name": a_request(extra=b": y\r\n"),
    "no colon": a_request(extra=b"X\r\n"),
    "no slash": b"GET promo HTTP/1.1\r\n" + HOST + b"\r\n",
    "lower-case method": b"get /promo HTTP/1.1\r\n" + HOST + b"\r\n",
    "unknown method": b"BREW /promo HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/1.2": b"GET /promo HTTP/1.2\r\n" + HOST + b"\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40,
}


@pytest.mark.parametrize("before", [0, 2], ids=["first", "later"])
@pytest.mark.parametrize("name", BAD)
async def test_what_is_malformed_is_400_and_the_end_of_the_connection(
    site: Site, peer: Peer, name: str, before: int
) -> None:
    for _ in range(before):
        assert (await peer.ask(a_request())).status == 302
    response = await peer.ask(BAD[name] + a_request("/smuggled"))
    assert response.status == 400
    assert response["Connection"] == "close"
    assert await peer.ended()
    assert "smuggled" not in site.store.reads


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/0.9"])
async def test_other_versions_are_505(peer: Peer, version: bytes) -> None:
    response = await peer.ask(b"GET /promo " + version + b"\r\n" + HOST + b"\r\n")
    assert response.status == 505
    assert await peer.ended()


@pytest.mark.parametrize("host", ["", "s.example:8080", "[::1]:80", "xn--e1afmkfd.example", "S_1"])
async def test_every_valid_host_will_do(peer: Peer, host: str) -> None:
    for _ in range(2):
        response = await peer.ask(f"GET /promo HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert response.status == 302


async def test_empty_lines_before_a_request_are_skipped(peer: Peer) -> None:
    for _ in range(2):
        assert (await peer.ask(b"\r\n\r\n" + a_request())).status == 302


@pytest.mark.parametrize(
    "extra",
    [
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n",
    ],
)
async def test_an_offered_upgrade_is_not_taken(peer: Peer, extra: bytes) -> None:
    for _ in range(2):
        peer.writer.write(a_request(extra=extra) + a_request("/none1"))
        response = await peer.response()
        assert response.status == 302
        assert "Upgrade" not in response
        assert (await peer.response()).status == 404


async def test_connect_is_405_and_no_tunnel(peer: Peer) -> None:
    data = b"CONNECT evil.example:443 HTTP/1.1\r\n" + HOST + b"\r\n" + a_request()
    assert (await peer.ask(data)).status == 405
    assert await peer.ended()


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


# Segments

STREAMS = {
    "get": a_request(),
    "head and get": a_request("/promo", "HEAD") + a_request("/none1", "HEAD"),
    "chunked": a_request(extra=b"Transfer-Encoding: chunked\r\n") + b"5\r\nhello\r\n0\r\n\r\n",
    "upgrade": a_request(extra=b"Connection: Upgrade\r\nUpgrade: h2c\r\n") + a_request(),
    "bad": a_request() + b"GET /promo HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_request_split_anywhere_is_answered_the_same(site: Site, name: str) -> None:
    async def sent(*pieces: bytes) -> bytes:
        peer = await site.connect()
        for piece in pieces:
            peer.writer.write(piece)
            await asyncio.sleep(0)  # each its own segment, as a rule
            await asyncio.sleep(0)
        peer.writer.write_eof()
        answered = await peer.reader.read()
        peer.writer.close()
        return answered

    stream = STREAMS[name]
    await sent(stream)
    whole = await sent(stream)
    assert whole.startswith(b"HTTP/1.1 302 Found\r\n")
    for position in range(1, len(stream)):
        assert await sent(stream[:position], stream[position:]) == whole
    assert await sent(*(bytes([byte]) for byte in stream)) == whole


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
    for ports in ({"port": site.server.port}, {"port": 0, "ops_port": site.server.ops_port}):
        other = RedirectServer(site.service, "127.0.0.1", **ports)
        with pytest.raises(OSError, match="address already in use"):
            await other.start()
        if other.port != site.server.port:
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


@pytest.mark.skipif(sys.platform == "win32", reason="a process of its own needs uvloop")
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
