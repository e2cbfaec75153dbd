"""The bytes of answers (R1, R2, P2)."""

import base64
import hashlib
import re
from email.utils import parsedate_to_datetime

import pytest

from shortlink.links.answers import DELETED, DISABLED, EXPIRED, UNKNOWN, Answer
from shortlink.redirect import responses
from shortlink.redirect.responses import Response, page, render
from tests.redirect_rig import header
from tests.samples import NOW, TARGET

PAGES = [
    *(render(said, None) for said in (UNKNOWN, EXPIRED, DELETED, DISABLED)),
    responses.UNAVAILABLE,
    responses.CROWDED,
    responses.BAD_REQUEST,
    responses.NOT_ALLOWED,
    responses.TOO_SLOW,
    responses.BODY_TOO_LARGE,
    responses.HEAD_TOO_LARGE,
    responses.BROKEN,
    responses.NOT_HTTP_1,
]


@pytest.mark.parametrize("status", [301, 302])
@pytest.mark.parametrize(
    ("spare", "edge"),
    [(None, 10), (60_000, 10), (10_000, 10), (9_999, 9), (999, 0), (0, 0), (-5_000, 0)],
)
def test_r1_k2_the_edge_may_keep_a_redirect_ten_seconds_and_never_past_its_expiry(
    status: int, spare: int | None, edge: int
) -> None:
    response = render(Answer(status, TARGET), spare)
    assert response.status == status
    assert header(response, "Location") == TARGET
    assert header(response, "Cache-Control") == f"max-age=0, s-maxage={edge}"
    assert header(response, "Content-Length") == "0"
    assert response.body == b""


@pytest.mark.parametrize("response", PAGES, ids=lambda response: str(response.status))
def test_r2_pages_are_whole_by_themselves_and_never_cached(response: Response) -> None:
    body = response.body.decode()
    assert header(response, "Cache-Control") == "no-store"
    assert header(response, "Content-Type") == "text/html; charset=utf-8"
    assert header(response, "Content-Length") == str(len(response.body))
    assert header(response, "X-Content-Type-Options") == "nosniff"
    assert '<html lang="en">' in body
    assert re.search(r"<title>[^<]+</title>", body)
    assert not re.search(r"(?i)https?:|src=|href=|<script|<link|url\(|@import", body)
    assert response.head.endswith(b"\r\n\r\n")
    assert response.head.count(b"\r\n\r\n") == 1


@pytest.mark.parametrize("response", PAGES, ids=lambda response: str(response.status))
def test_a_pages_policy_allows_its_own_style_and_nothing_else(response: Response) -> None:
    styles = re.findall(r"<style>(.*?)</style>", response.body.decode(), re.DOTALL)
    assert len(styles) == 1
    digest = base64.b64encode(hashlib.sha256(styles[0].encode()).digest()).decode()
    policy = header(response, "Content-Security-Policy")
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'"


@pytest.mark.parametrize("said", [UNKNOWN, EXPIRED, DELETED, DISABLED])
def test_r2_pages_say_the_reason(said: Answer) -> None:
    response = render(said, None)
    assert response.status == said.status
    assert said.reason in response.body.decode()


def test_what_a_page_says_is_escaped() -> None:
    body = page(404, "<script>alert(1)</script>&\"'").body.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#x27;" in body


@pytest.mark.parametrize("response", [responses.UNAVAILABLE, responses.CROWDED])
def test_a_503_says_when_to_come_again(response: Response) -> None:
    assert response.status == 503
    assert header(response, "Retry-After") == "1"


def test_a_405_says_what_is_allowed() -> None:
    assert header(responses.NOT_ALLOWED, "Allow") == "GET, HEAD"


def test_status_lines_carry_the_date_of_their_second() -> None:
    heads = responses.heads(NOW + 999)
    assert set(heads) == set(responses.STATUSES)
    assert heads[302] == b"HTTP/1.1 302 Found\r\nDate: Fri, 15 Jan 2027 08:00:00 GMT\r\n"
    date = heads[404].split(b"Date: ")[1].decode().strip()
    assert parsedate_to_datetime(date).timestamp() == NOW // 1000


def test_a_memory_entrys_page_is_shared_not_copied() -> None:
    assert render(EXPIRED, None) is render(EXPIRED, 5)
