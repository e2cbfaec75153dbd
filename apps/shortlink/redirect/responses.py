"""Responses as bytes, built once and sent many times (R1, R2; RFC 9110, 9111)."""

import base64
import hashlib
import html
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from http import HTTPStatus

from shortlink.links.answers import UNKNOWN, Answer
from shortlink.links.policy import EDGE_BOUND, SECOND

STATUSES = (200, 301, 302, 400, 404, 405, 408, 410, 413, 431, 451, 500, 503, 505)
"""Every status that is ever sent."""

_STYLE = (
    "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:20vh auto;padding:0 1rem}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_TITLES = {
    404: "No such link",
    410: "This link is gone",
    451: "This link is disabled",
    503: "Please try again",
}


@dataclass(frozen=True, slots=True)
class Response:
    """`head` is what follows the Date line, up to and with the empty line."""

    status: int
    head: bytes
    body: bytes = b""


def heads(wall: int) -> dict[int, bytes]:
    """The status line and Date of each status, at `wall` (milliseconds)."""
    date = formatdate(wall // 1000, usegmt=True)
    return {
        status: f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nDate: {date}\r\n".encode()
        for status in STATUSES
    }


def render(said: Answer, spare: int | None) -> Response:
    """The response that says `said`.

    `spare`: milliseconds from the end of the response's life in this process to the link's
    expiry; the edge may keep it only within them. None: the link never expires.
    """
    if not said.target:
        return page(said.status, said.reason)
    edge = (EDGE_BOUND if spare is None else min(EDGE_BOUND, max(0, spare))) // SECOND
    # A 301 says the same: without it browsers would keep it for ever, past any deletion.
    head = (
        f"Location: {said.target}\r\nCache-Control: max-age=0, s-maxage={edge}\r\n"
        "Content-Length: 0\r\n\r\n"
    )
    return Response(said.status, head.encode("ascii"))


def content(status: int, content_type: str, body: bytes, *lines: str) -> Response:
    """A response that no cache may keep; `lines` are further header lines."""
    head = "".join(
        f"{line}\r\n"
        for line in (
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            *lines,
        )
    )
    return Response(status, f"{head}\r\n".encode("ascii"), body)


@cache  # of the few texts that the domain and this package have
def page(status: int, text: str, *lines: str) -> Response:
    """A small page that people can read, whole without anything else being loaded."""
    title = _TITLES.get(status, HTTPStatus(status).phrase)
    body = (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main><h1>{html.escape(title)}</h1><p>{html.escape(text)}</p></main></body>\n"
        "</html>\n"
    )
    policy = f"Content-Security-Policy: default-src 'none'; style-src 'sha256-{_STYLE_HASH}'"
    return content(status, "text/html; charset=utf-8", body.encode(), policy, *lines)


def text(status: int, said: str) -> Response:
    """A line for a machine."""
    return content(status, "text/plain; charset=utf-8", f"{said}\n".encode())


NOT_FOUND = render(UNKNOWN, None)
UNAVAILABLE = page(
    503, "This link can't be looked up right now. Try again in a moment.", "Retry-After: 1"
)
CROWDED = page(503, "Too many visitors right now. Try again in a moment.", "Retry-After: 1")
BAD_REQUEST = page(400, "This request is not well-formed HTTP/1.1.")
NOT_ALLOWED = page(405, "Short links answer to GET and HEAD only.", "Allow: GET, HEAD")
TOO_SLOW = page(408, "The request took too long to arrive.")
BODY_TOO_LARGE = page(413, "Requests need no body here, and this one was too large.")
HEAD_TOO_LARGE = page(431, "The request's header fields are too large.")
BROKEN = page(500, "Something went wrong on our side.")
NOT_HTTP_1 = page(505, "This server speaks HTTP/1.1 and HTTP/1.0.")
