"""HTTP/1.1 (RFC 9110, 9112) for requests without meaning in their bodies, on httptools.

Most requests are alike: a whole GET of a cached link in one segment. Those are answered from
their bytes, after a parser without header callbacks has found them well-formed. Whatever is
different in any way goes through the strict parser.
"""

import asyncio
import re
from collections import deque
from functools import partial
from typing import cast

import structlog
from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from shortlink.redirect import responses
from shortlink.redirect.listener import Listener
from shortlink.redirect.responses import Response

MAX_HEAD = 16 * 1024
MAX_BODY = 64 * 1024
"""Bytes."""

MAX_WAITING = 64
"""Requests of one connection that wait for their turn before no more are read."""

HEAD_DEADLINE = 10_000
IDLE = 75_000
IDLE_CLOSING = 1_000
LINGER = 2_000
"""Milliseconds: for a whole request to arrive; until a silent connection is closed, and while
the server closes; and from our last byte until a peer that doesn't close is cut off."""

_PIECE = 4 * 1024
"""Bytes parsed before looking at the bounds again."""

_EXCESS = 256
"""Connections over the limit that are told so; past them they are only cut off."""

_VERSION = b" HTTP/1.1\r\n"
_CLOSE = b"Connection: close\r\n"
_KEEP_ALIVE = b"Connection: keep-alive\r\n"

# RFC 9112 3.2: a Host with an invalid value is refused. uri-host [":" port], RFC 3986 3.2.2.
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]*)(?::\d*)?", re.ASCII)

_log = structlog.get_logger(__name__)


class _Whole:
    """Tells whether bytes are exactly one GET after which the connection stays open."""

    __slots__ = ("_begun", "_kept", "_parser")

    def __init__(self) -> None:
        self._begun = 0
        self._kept = 0
        self._parser = HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self._begun += 1

    def on_message_complete(self) -> None:
        self._kept += self._parser.should_keep_alive()

    def is_whole(self, data: bytes) -> bool:
        """When this was False once, its parser is of no more use."""
        self._begun = self._kept = 0
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            return False
        return self._begun == 1 == self._kept and self._parser.get_method() == b"GET"


class _Turn:
    """A request's place in the order of answers; `response` is None while it is looked up."""

    __slots__ = ("head", "last", "old", "response")

    def __init__(self, *, head: bool, last: bool, old: bool) -> None:
        self.head = head
        self.last = last
        self.old = old
        self.response: Response | None = None


class Connection(asyncio.Protocol):
    """One connection of `listener`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._now = listener.now
        self._entries = listener.entries
        self._clicks = listener.clicks
        self._quick_hits = listener.counters.quick_hits
        self._whole = _Whole()
        self._host = b"\n"  # the last valid Host line; until then, what begins no line
        self._between = True  # the next byte begins a request and nothing waits
        self._turns: deque[_Turn] = deque()
        self._held = b""  # received, not yet parsed
        self._stalled = False  # the peer doesn't take what we write
        self._reading = True
        self._ending = False  # no further request is read
        self._eof = False  # the peer sends nothing more
        self._touched = 0
        self._arrived = 0  # bytes of the head that is arriving
        self._new_request()
        self._parser = HttpRequestParser(self)

    def _new_request(self) -> None:
        self._begun: int | None = None  # when its first byte came; None: no request is arriving
        self._in_head = True
        self._body = 0  # bytes of it so far
        self._target = b""
        self._hosts: list[bytes] = []
        self._expects = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write = self._transport.write
        self._touched = self._now.read().steady
        excess = self._listener.opened(self)
        if excess > _EXCESS:
            self._transport.abort()
        elif excess > 0:
            self._refuse(responses.CROWDED)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.closed(self)
        self._ending = True
        self._turns.clear()
        self._held = b""

    def data_received(self, data: bytes) -> None:
        if self._between:
            end = data.find(_VERSION)
            entry = self._entries.get(data[4:end])
            if (
                entry is not None
                and (now := self._now.read()).steady < entry.fresh_until
                and now.wall < entry.expires_at
                and (response := entry.response).status < 400  # others are for the audit log
                and data.startswith(self._host, end + 11)  # 11 is len(_VERSION)
                and len(data) <= MAX_HEAD
                and data.lower().rfind(b"\nhost:") == end + 10  # there is no other
            ):
                if self._whole.is_whole(data):
                    self._quick_hits[response.status] += 1
                    if self._clicks is not None:
                        self._clicks.add(data[4:end], entry.stamp[0], now.wall)
                    self._touched = now.steady
                    self._write(now.heads[response.status] + response.head)
                    return
                self.answer_strictly()
        if not self._ending:
            self._held += data
            self._parse()

    def eof_received(self) -> bool:
        self._eof = True
        self._ending = True
        if self._turns:
            self._turns[-1].last = True
        return bool(self._turns)

    def pause_writing(self) -> None:
        self._stalled = True
        self._regulate()

    def resume_writing(self) -> None:
        self._stalled = False
        self._touched = self._now.read().steady
        self._parse()

    # What the server calls.

    def sweep(self, now: int) -> None:
        """End what has taken too long by `now` (steady). A store read has its own deadline."""
        silent = now - self._touched
        if self._stalled or self._transport.is_closing():
            if silent > IDLE:
                self._transport.abort()
        elif self._turns:
            return
        elif self._ending:
            if silent > LINGER:
                self._transport.abort()
        elif self._begun is not None:
            if now - self._begun > HEAD_DEADLINE:
                self._refuse(responses.TOO_SLOW)
        elif silent > (IDLE_CLOSING if self._listener.closing else IDLE):
            self._finish()

    def answer_strictly(self) -> None:
        """Send every further request through the strict parser."""
        self._entries = {}

    def abort(self) -> None:
        """Cut the connection off."""
        self._transport.abort()

    # What the strict parser calls.

    def on_message_begin(self) -> None:
        self._new_request()
        self._begun = self._now.read().steady

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer
        lowered = name.lower()
        if lowered == b"host":
            self._hosts.append(value)
        elif lowered == b"expect":
            self._expects = True

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        if self._body > MAX_BODY:
            self._refuse(responses.BODY_TOO_LARGE)

    def on_message_complete(self) -> None:
        # What follows an upgrade that was not wanted can't be told from a body: read no more.
        self._take_request(self._parser.should_keep_alive() and not self._parser.should_upgrade())
        # The next head may begin in this piece, of which it is not known where.
        self._arrived = -_PIECE

    # From bytes to requests.

    def _parse(self) -> None:
        data, self._held = self._held, b""
        at = 0
        while at < len(data) and not self._full():
            if self._begun is None:
                self._arrived = 0
            piece = data[at : at + min(_PIECE, MAX_HEAD - self._arrived)]
            at += self._feed(piece)
            if self._begun is not None and self._in_head:
                self._arrived += len(piece)
                if self._arrived >= MAX_HEAD:
                    self._refuse(responses.HEAD_TOO_LARGE)
        if not self._ending:
            self._held = data[at:]
            if self._expects and self._begun is not None and not (self._in_head or self._body):
                # The peer waits for a word before it sends the body (RFC 9110, 10.1.1). The
                # final answer is one, and nobody needs the body.
                self._take_request(keep=False)
        self._regulate()

    def _feed(self, piece: bytes) -> int:
        try:
            self._parser.feed_data(piece)
        except HttpParserUpgrade:  # taken as a plain request, and the last one
            pass
        except HttpParserCallbackError:
            _log.exception("request could not be handled")
            self._refuse(responses.BROKEN)
        except HttpParserError:
            self._refuse(responses.BAD_REQUEST)
        return len(piece)

    def _full(self) -> bool:
        return self._ending or self._stalled or len(self._turns) >= MAX_WAITING

    def _regulate(self) -> None:
        wanted = self._ending or not (self._held or self._stalled)
        if wanted is not self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        self._between = wanted and not self._ending and self._begun is None and not self._turns

    def _take_request(self, keep: bool) -> None:
        if self._ending:
            return
        self._begun = None
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse(responses.NOT_HTTP_1)
            return
        if not self._is_host_valid(version):
            self._refuse(responses.BAD_REQUEST)
            return
        keep = keep and method != b"CONNECT"  # a tunnel would follow
        turn = _Turn(head=method == b"HEAD", last=not keep, old=version == "1.0")
        self._ending = not keep
        self._turns.append(turn)
        if method in (b"GET", b"HEAD"):
            then = partial(self._answered, turn)
            turn.response = self._listener.route(self._target, turn.head, then)
        else:
            turn.response = responses.NOT_ALLOWED
        self._flush()

    def _is_host_valid(self, version: str) -> bool:
        if len(self._hosts) != 1:
            return version == "1.0" and not self._hosts
        line = b"Host: " + self._hosts[0] + b"\r\n"
        if line != self._host and not _HOST.fullmatch(self._hosts[0]):
            return False
        self._host = line
        return True

    # From answers to bytes.

    def _answered(self, turn: _Turn, response: Response) -> None:
        turn.response = response
        self._flush()
        self._parse()

    def _refuse(self, response: Response) -> None:
        if not self._ending:
            turn = _Turn(head=False, last=True, old=False)
            turn.response = response
            self._ending = True
            self._turns.append(turn)
            self._flush()

    def _flush(self) -> None:
        if self._transport.is_closing():
            self._turns.clear()
        while self._turns and (response := self._turns[0].response) is not None:
            self._send(self._turns.popleft(), response)

    def _send(self, turn: _Turn, response: Response) -> None:
        now, listener = self._now.read(), self._listener
        last = turn.last or (listener.draining and not self._turns)
        line = _CLOSE if last else _KEEP_ALIVE if turn.old else b""
        body = b"" if turn.head else response.body
        listener.counters.answers[response.status] += 1
        self._touched = now.steady
        self._write(b"".join((now.heads[response.status], line, response.head, body)))
        if last:
            self._finish()

    def _finish(self) -> None:
        self._ending = True
        if self._eof:
            self._transport.close()
        else:
            # Closing at once would reset the connection under what the peer is still sending,
            # and with it our last answer (RFC 9112, 9.6).
            self._transport.write_eof()
        self._regulate()
