"""What is not HTTP/1.1 as it should be, and what is but looks odd (RFC 9112)."""

import asyncio

import pytest

from tests.http.redirect_site import HOST, Peer, Site, a_request

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
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 60\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n",
    ],
)
async def test_an_offered_upgrade_is_not_taken_and_nothing_behind_it_is_read(
    site: Site, peer: Peer, extra: bytes
) -> None:
    await peer.ask(a_request())
    response = await peer.ask(a_request(extra=extra) + a_request("/smuggled"))
    assert (response.status, response["Connection"]) == (302, "close")
    assert "Upgrade" not in response
    assert await peer.ended()
    assert site.store.reads == ["promo"]


async def test_connect_is_405_and_no_tunnel(peer: Peer) -> None:
    data = b"CONNECT evil.example:443 HTTP/1.1\r\n" + HOST + b"\r\n" + a_request()
    assert (await peer.ask(data)).status == 405
    assert await peer.ended()


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
