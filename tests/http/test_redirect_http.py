"""The redirect server over real sockets: answers and connections (R1, R2, RFC 9110, 9112)."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from shortlink.links.model import Cause, State
from shortlink.redirect.protocol import MAX_BODY
from shortlink.store.port import StoreUnavailable
from tests import samples
from tests.http.redirect_site import HOST, Peer, Site, a_request
from tests.samples import NOW, TARGET

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
        b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nHost: evil\r\nX: y\r\n\r\n",
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
