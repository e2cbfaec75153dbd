"""However the bytes of requests arrive, the answers are the same (RFC 9112)."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from shortlink.clock import HandClock
from shortlink.redirect.listener import Listener, Now
from shortlink.redirect.protocol import Connection
from shortlink.redirect.service import RedirectService
from tests import samples
from tests.redirect_rig import Source
from tests.samples import NOW

PLAIN = b"GET /promo HTTP/1.1\r\nHost: s.example\r\nAccept: */*\r\n\r\n"


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.ended = False
        self.full: Callable[[], None] = lambda: None  # is called after each write

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "written after the end"
        self.sent += bytes(data)
        self.full()

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connected() -> tuple[Connection, Wire, RedirectService]:
    """A connection to a server that has the link in its cache already."""
    clock = HandClock(NOW).clock
    service = RedirectService(Source(), clock)
    service.cache.changed(samples.a_link(changed_at=NOW))
    listener = Listener(
        route=service.route,
        now=Now(clock, asyncio.get_running_loop().time),
        most=10,
        counters=service.counters,
        entries=service.cache.entries,
    )
    connection, wire = Connection(listener), Wire()
    connection.connection_made(wire)
    return connection, wire, service


async def answers(segments: Iterable[bytes], *, quick: bool) -> tuple[bytes, bool, int]:
    """What is sent for `segments`, whether the connection was ended, and how many answers were
    quick.
    """
    connection, wire, service = connected()
    if not quick:
        connection.answer_strictly()
    for segment in segments:
        connection.data_received(segment)
        await asyncio.gather(*service._tasks)
    return wire.sent, wire.ended, sum(service.counters.quick_hits.values())


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """`data` in pieces of these sizes, over and over."""
    pieces, at = [], 0
    for size in cycle(sizes):
        if at >= len(data):
            break
        pieces.append(data[at : at + size])
        at += size
    return pieces


async def test_plain_requests_are_answered_quickly_but_for_a_connections_first() -> None:
    sent, ended, quick = await answers([PLAIN] * 5, quick=True)
    assert sent.count(b"HTTP/1.1 302 Found\r\n") == 5
    assert quick == 4
    assert not ended


async def test_a_peer_that_takes_no_answers_gets_no_more_of_them_made() -> None:
    connection, wire, _ = connected()
    wire.full = connection.pause_writing
    count, piece = 1_000, 4_096 // len(PLAIN) + 1
    connection.data_received(PLAIN * count)
    answered = [wire.sent.count(b"302 Found")]
    while answered[-1] < count:
        connection.resume_writing()
        answered.append(wire.sent.count(b"302 Found"))
    assert answered[-1] == count
    assert max(after - before for before, after in pairwise([0, *answered])) <= piece


HOSTS = (
    b"Host: s.example",
    b"host: s.example",
    b"HOST: s.example",
    b"hOsT:s.example",
    b"Host: other.example",
    b"Host: bad host",
    b"Host:",
    b"X-Host: s.example",
)
FIELDS = (
    b"Accept: */*",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: upgrade\r\nUpgrade: websocket",
    b"Expect: 100-continue",
    b"X: " + b"y" * 300,
    b"X: HTTP/1.1",
    b" folded",
    b"no colon",
)
LINES = (
    *[b"GET /promo HTTP/1.1"] * 6,
    b"GET /none1 HTTP/1.1",
    b"GET /promo?q HTTP/1.1",
    b"GET /promo HTTP/1.0",
    b"GET /promo HTTP/2.0",
    b"GET  /promo HTTP/1.1",
    b"HEAD /promo HTTP/1.1",
    b"POST /promo HTTP/1.1",
    b"PUT /promo HTTP/1.1",
    b"CONNECT /promo HTTP/1.1",
    b"GET_ /promo HTTP/1.1",
    b"GE\x00 /promo HTTP/1.1",
)
BODIES = (*[b""] * 8, b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"\r\n", b"\r\n\r\n", PLAIN)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    hosts = draw(st.sampled_from([HOSTS[:1]] * 6 + [(one,) for one in HOSTS] + [(), HOSTS[:2]]))
    fields = draw(st.lists(st.sampled_from(FIELDS), max_size=2))
    second = draw(st.sampled_from([(), (), (), *((one,) for one in HOSTS)]))
    lines = [draw(st.sampled_from(LINES)), *hosts, *fields, *second]
    return b"\r\n".join(lines) + b"\r\n\r\n" + draw(st.sampled_from(BODIES))


REQUEST = st.one_of(st.just(PLAIN), requests())


@settings(max_examples=300, deadline=None)
@given(
    segments=st.lists(REQUEST, min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 3 * len(PLAIN)), min_size=1, max_size=5),
)
@example([PLAIN, PLAIN.replace(b"\r\n\r\n", b"\r\nContent-Length: 57\r\n\r\n"), PLAIN], [1])
@example([PLAIN, PLAIN.replace(b"Accept", b"hOST"), PLAIN], [1])
@example([PLAIN, PLAIN.replace(b"GET", b"PUT"), PLAIN], [1])
@example([PLAIN, PLAIN.replace(b"Accept: */*", b"Connection: close"), PLAIN], [1])
@example(
    [
        PLAIN,
        PLAIN.replace(b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n" % len(PLAIN)),
        PLAIN.replace(b"GET", b"PUT"),  # the body
        PLAIN + b"GET /none1 HTTP/1.1\r\n\r\n",
    ],
    [1],
)
@example([PLAIN] * 4, [len(PLAIN), len(PLAIN) + 9, len(PLAIN) - 9])
def test_answers_depend_on_neither_the_quick_path_nor_the_segments(
    segments: Sequence[bytes], sizes: Sequence[int]
) -> None:
    stream = b"".join(segments)
    with capture_logs() as logs:
        quick = asyncio.run(answers(segments, quick=True))[:2]
        strict = asyncio.run(answers(segments, quick=False))[:2]
        joined = asyncio.run(answers([stream], quick=True))[:2]
        recut = asyncio.run(answers(cut(stream, sizes), quick=True))[:2]
    assert quick == strict
    if b"100-continue" not in stream:  # that may be answered before its body comes
        assert quick == joined == recut
    assert logs == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=200), REQUEST), max_size=6))
def test_no_bytes_break_it(segments: list[bytes]) -> None:
    with capture_logs() as logs:
        sent, _, _ = asyncio.run(answers(segments, quick=True))
    assert logs == []
    assert sent == b"" or sent.startswith(b"HTTP/1.1 ")
