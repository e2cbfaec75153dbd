"""The API when things go wrong: bad input, a store that fails, a bug, and what is counted."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from shortlink.api import body, guard
from shortlink.api.problems import STATUS
from shortlink.links.refusal import Reason
from shortlink.store.port import StoreFull, StoreUnavailable, StoreUnsuitable
from tests.http.api_rig import ADMIN, LINKS, URL, Rig, is_problem

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    async with rig.client:
        yield rig


def test_every_reason_of_the_domain_has_a_status() -> None:
    assert set(STATUS) == set(Reason)
    assert set(STATUS.values()) <= {400, 403, 404, 409}


def _with(**fields: object) -> bytes:
    return json.dumps({"long_url": URL, **fields}).encode()


BAD_BODIES = [
    # what is no JSON at all
    (b"", "InvalidBody", "", "has no body"),
    (b"{", "InvalidJson", "", "line 1 column 2"),
    (b"\xff\xfe{\x00}\x00", "InvalidJson", "", "not UTF-8 at byte 0"),
    ('{"long_url":"é"}'.encode("latin-1"), "InvalidJson", "", "not UTF-8 at byte 13"),
    (b"\xef\xbb\xbf{}", "InvalidJson", "", "BOM"),
    (b'{"a":1,"a":2}', "InvalidJson", "", "'a' comes twice"),
    (b'{"metadata":{"k":"1","k":"1"}}', "InvalidJson", "", "'k' comes twice"),
    (b'{"long_url":NaN}', "InvalidJson", "", "NaN"),
    (b'{"long_url":-Infinity}', "InvalidJson", "", "-Infinity"),
    (b'{"long_url":' + b"9" * 5000 + b"}", "InvalidJson", "", "integer"),
    (b'{"long_url":"\\ud800"}', "InvalidJson", "", "surrogate"),
    (b'{"\\udfff":1}', "InvalidJson", "", "surrogate"),
    (b"[" * 60_000, "InvalidJson", "", "nested"),
    (b'{"long_url":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "InvalidJson", "", "nested"),
    (b'{"long_url":"a\nb"}', "InvalidJson", "", "control character"),
    (b"{} {}", "InvalidJson", "", "Extra data"),
    # JSON of another shape
    (b"null", "InvalidBody", "", "JSON object"),
    (b"[1]", "InvalidBody", "", "JSON object"),
    (b'"x"', "InvalidBody", "", "JSON object"),
    (b"{}", "InvalidBody", "long_url", "long_url is missing"),
    (_with(url="x"), "InvalidBody", "url", "'url' is not a field"),
    (_with(**{"": 1}), "InvalidBody", "", "not a field"),
    (_with(**{"x" * 5000: 1}), "InvalidBody", "x" * 80, "not a field"),
    (_with(long_url=None), "InvalidBody", "long_url", "string"),
    (_with(long_url=["x"]), "InvalidBody", "long_url", "string"),
    (_with(custom_alias=1234567), "InvalidBody", "custom_alias", "string"),
    (_with(redirect_type=307), "InvalidBody", "redirect_type", "301 or 302"),
    (_with(redirect_type="301"), "InvalidBody", "redirect_type", "301 or 302"),
    (_with(redirect_type=True), "InvalidBody", "redirect_type", "301 or 302"),
    (_with(take_back="yes"), "InvalidBody", "take_back", "boolean"),
    (_with(tags="a"), "InvalidBody", "tags", "list"),
    (_with(tags=["a", 1]), "InvalidBody", "tags.1", "string"),
    (_with(tags=None), "InvalidBody", "tags", "list"),
    (_with(metadata={"a": 1}), "InvalidBody", "metadata.a", "string"),
    (_with(metadata=[]), "InvalidBody", "metadata", "dict"),
    (_with(expires_at=1_900_000_000), "InvalidBody", "expires_at", "string"),
    # what the domain refuses
    (_with(custom_alias=""), "InvalidAlias", "custom_alias", "3 to 20"),
    (_with(custom_alias=" "), "InvalidAlias", "custom_alias", "3 to 20"),
    (_with(custom_alias="a/b?c"), "InvalidAlias", "custom_alias", "3 to 20"),
    (_with(custom_alias="gооgle"), "InvalidAlias", "custom_alias", "3 to 20"),
    (_with(long_url=""), "InvalidTarget", "long_url", "URL"),
    (_with(long_url="JaVaScRiPt:alert(1)"), "InvalidTarget", "long_url", "http"),
    (_with(long_url="java\nscript:alert(1)"), "InvalidTarget", "long_url", "U+000A"),
    (_with(long_url="https://s.example/x"), "InvalidTarget", "long_url", "loop"),
    (_with(long_url="https://a.example@b.example/"), "InvalidTarget", "long_url", "user name"),
    (_with(long_url=URL + "x" * 2048), "InvalidTarget", "long_url", "2048"),
    (_with(tags=["\x00"]), "InvalidLabels", "tags", "printable"),
    (_with(expires_at=""), "InvalidTime", "expires_at", "RFC 3339"),
    (_with(expires_at="2027-02-30T00:00:00Z"), "InvalidTime", "expires_at", "no real time"),
    (_with(expires_at="2027-02-01T00:00:00"), "InvalidTime", "expires_at", "offset"),
    (_with(expires_at="9999-12-31T23:59:59-11:00"), "InvalidTime", "expires_at", "no real time"),
    (_with(expires_at="2026-12-31T23:59:59Z"), "ExpiryInPast", "expires_at", "has passed"),
]


@pytest.mark.parametrize(("raw", "reason", "field", "says"), BAD_BODIES)
async def test_a_bad_body_is_a_problem_that_says_what_and_where(
    rig: Rig, raw: bytes, reason: str, field: str, says: str
) -> None:
    """W1: 400, never 500, and no link is made."""
    answer = await rig.call("POST", content=raw, headers=JSON)
    problem = is_problem(answer, 400, reason)
    assert problem.get("field", "") == field
    assert says in problem["detail"]
    assert len(answer.content) < 1000
    assert rig.store.rows == {}


async def test_a_reserved_alias_is_a_conflict_with_a_suggestion(rig: Rig) -> None:
    """G7."""
    for alias in ("api", "LOGIN", "Metrics"):
        answer = await rig.call("POST", json={"long_url": URL, "custom_alias": alias})
        assert is_problem(answer, 409, "Reserved")["suggestion"] == f"{alias}1"


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("", "InvalidLabels"),
        (" \n", "InvalidLabels"),
        ("x" * 257, "InvalidLabels"),
        (None, "InvalidBody"),
    ],
)
async def test_a_verdict_needs_a_printable_reason(rig: Rig, why: object, reason: str) -> None:
    code = (await rig.make())["code"]
    answer = await rig.call("PUT", f"{LINKS}/{code}/disabled", ADMIN, json={"why": why})
    assert is_problem(answer, 400, reason)["field"] == "why"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/xml"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/jsonx"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_other_media_types_are_415(rig: Rig, headers: dict[str, str]) -> None:
    answer = await rig.call("POST", content=_with(), headers=headers)
    is_problem(answer, 415, "UnsupportedMediaType")
    assert answer.headers["accept"] == "application/json"


async def test_json_may_name_its_charset(rig: Rig) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert (await rig.call("POST", content=_with(), headers=headers)).status_code == 201


async def test_a_body_may_have_64_kib_and_not_a_byte_more(rig: Rig) -> None:
    full = _with() + b" " * (64 * 1024 - len(_with()))
    assert (await rig.call("POST", content=full, headers=JSON)).status_code == 201
    answer = await rig.call("POST", content=full + b" ", headers=JSON)
    is_problem(answer, 413, "BodyTooLarge")


async def test_a_body_that_never_ends_is_given_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drip() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    monkeypatch.setattr(body, "BODY_SECONDS", 0.01)
    answer = await rig.call("POST", content=drip(), headers=JSON)
    is_problem(answer, 408, "BodyTimeout")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/", 404, "NoSuchResource"),
        ("GET", "/docs", 404, "NoSuchResource"),
        ("GET", f"{LINKS}/a%2Fb", 404, "NoSuchResource"),
        ("GET", f"{LINKS}/abc/", 404, "NoSuchResource"),
        ("GET", f"{LINKS}/%00%00%00", 404, "Unknown"),
        ("GET", f"{LINKS}/%ed%a0%80", 404, "Unknown"),
        ("GET", f"{LINKS}/" + "a" * 5000, 404, "Unknown"),
        ("GET", f"{LINKS}/..", 404, "NoSuchResource"),
        ("DELETE", f"{LINKS}/ab", 404, "Unknown"),
        ("GET", LINKS, 405, "MethodNotAllowed"),
        ("PUT", f"{LINKS}/abc", 405, "MethodNotAllowed"),
        ("BREW", f"{LINKS}/abc", 405, "MethodNotAllowed"),
        ("POST", "/healthz", 405, "MethodNotAllowed"),
    ],
)
async def test_paths_and_methods_that_are_not_there(
    rig: Rig, method: str, path: str, status: int, reason: str
) -> None:
    is_problem(await rig.call(method, path), status, reason)


async def test_405_lists_all_methods_of_the_resource(rig: Rig) -> None:
    """RFC 9110 15.5.6."""
    answer = await rig.call("PUT", f"{LINKS}/abc")
    assert answer.headers["allow"] == "DELETE, GET, PATCH"


@pytest.mark.parametrize(
    ("error", "reason", "retry_after"),
    [
        (StoreUnavailable("the store is locked"), "StoreUnavailable", "2"),
        (StoreFull("the disk is full"), "StoreFull", "60"),
        (StoreUnsuitable("the store is of a newer version"), "StoreUnavailable", "60"),
    ],
)
async def test_a_failing_store_is_503_with_retry_after(
    rig: Rig, error: Exception, reason: str, retry_after: str
) -> None:
    """W1."""
    rig.store.error = error
    for answer in (
        await rig.call("POST", json={"long_url": URL}),
        await rig.call("GET", f"{LINKS}/abc"),
        await rig.call("DELETE", f"{LINKS}/abc"),
    ):
        assert str(error) in is_problem(answer, 503, reason)["detail"]
        assert answer.headers["retry-after"] == retry_after


async def test_a_broken_generator_is_503_and_counted(rig: Rig) -> None:
    """G6."""
    code = (await rig.make())["code"]
    rig.management.draw = lambda: str(code)
    answer = await rig.call("POST", json={"long_url": URL})
    is_problem(answer, 503, "CodesExhausted")
    assert answer.headers["retry-after"] == "60"
    scraped = (await rig.call("GET", "/metrics", None)).text
    assert "shortlink_code_collisions_total 8.0" in scraped
    assert "shortlink_links_created_total 1.0" in scraped


async def test_a_store_that_hangs_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "REQUEST_SECONDS", 0.01)
    rig.store.gate.clear()
    answer = await rig.call("GET", f"{LINKS}/abc")
    is_problem(answer, 503, "DeadlineExceeded")


async def test_a_bug_is_500_without_internals(rig: Rig) -> None:
    rig.store.error = RuntimeError("row 17 of /var/lib/secret")
    answer = await rig.call("GET", f"{LINKS}/abc")
    is_problem(answer, 500, "Internal")
    assert "secret" not in answer.text


async def test_liveness_does_not_depend_on_the_store_and_readiness_does(rig: Rig) -> None:
    rig.store.error = StoreUnavailable("no route to the store")
    assert (await rig.call("GET", "/healthz", None)).status_code == 200
    answer = await rig.call("GET", "/readyz", None)
    assert is_problem(answer, 503, "NotReady")["detail"] == "no route to the store"
    rig.store.error = None
    assert (await rig.call("HEAD", "/readyz", None)).status_code == 200


async def test_readiness_gives_a_silent_store_a_second(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shortlink.api.app.READY_SECONDS", 0.01)
    rig.store.gate.clear()
    is_problem(await rig.call("GET", "/readyz", None), 503, "NotReady")


async def test_metrics_are_counted_by_operation_and_stay_bounded(rig: Rig) -> None:
    """O1: paths that nobody has make no series."""
    await rig.make()
    for n in range(50):
        await rig.call("GET", f"{LINKS}/none{n}")
        await rig.call("GET", f"/none/{n}")
    scraped = (await rig.call("GET", "/metrics", None)).text
    series = [line for line in scraped.splitlines() if line.startswith("shortlink_api_req")]
    assert sorted(series) == [
        'shortlink_api_requests_total{operation="create_link",status="201"} 1.0',
        'shortlink_api_requests_total{operation="get_link",status="404"} 50.0',
        'shortlink_api_requests_total{operation="none",status="404"} 50.0',
    ]


async def test_the_openapi_document_tells_of_every_operation(rig: Rig) -> None:
    document = (await rig.call("GET", "/api/v1/openapi.json", None)).json()
    operations = {
        operation["operationId"]: operation
        for path in document["paths"].values()
        for operation in path.values()
    }
    assert set(operations) == {
        "create_link", "get_link", "change_link", "delete_link", "restore_link", "disable_link",
        "enable_link",
    }  # fmt: skip
    for operation in operations.values():
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert "422" not in operation["responses"]
        assert operation["security"] == [{"HTTPBearer": []}]


async def test_labels_come_back_as_they_were_sent(rig: Rig) -> None:
    link = await rig.make(tags=["naïve ☃"], metadata={"k": '<script>"'})
    assert (link["tags"], link["metadata"]) == (["naïve ☃"], {"k": '<script>"'})
