"""The operator's client of the API server: what an answer means."""

import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from shortlink_operator.cluster import (
    ClusterError,
    Failed,
    Login,
    Missing,
    Unreachable,
    object_path,
    opened,
)

PATH = object_path("shortlinks", "ann", "promo")
STATUS = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, json.dumps(STATUS), Missing),
        (404, "404 page not found\n", Unreachable),
        (404, json.dumps({"error": "no such route"}), Unreachable),
        (404, json.dumps("Status"), Unreachable),
        (404, "", Unreachable),
        (500, json.dumps(STATUS), Failed),
        (500, "panic\n", Unreachable),
        (503, json.dumps(STATUS), Unreachable),
    ],
)
async def test_T2_only_the_api_servers_own_word_on_an_object_counts_for_that_object(
    status: int, body: str, kind: type[ClusterError]
) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_route("*", PATH, answer)
    async with TestServer(app) as server, opened(Login(str(server.make_url("")), "ann")) as cluster:
        with pytest.raises(kind, match=f"GET {PATH}: {status}"):
            await cluster.get(PATH)
        with pytest.raises(kind, match=f"PATCH {PATH}: {status}"):
            await cluster.patch(PATH, {})


@pytest.mark.parametrize("token", ["one\ntwo", "one\0two"])
async def test_T2_a_token_that_can_not_be_sent_is_told_and_not_shown(token: str) -> None:
    login = Login("http://127.0.0.1:1", "ann", token=lambda: token)
    async with opened(login) as cluster:
        with pytest.raises(Unreachable, match=f"GET {PATH}: ") as told:
            await cluster.get(PATH)
    assert "two" not in str(told.value)


async def test_T2_a_token_that_is_no_text_is_told_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"secret\xff")
    async with opened(Login("http://127.0.0.1:1", "ann", token=file.read_text)) as cluster:
        with pytest.raises(Unreachable, match=f"GET {PATH}: .*can't decode") as told:
            await cluster.get(PATH)
    assert "secret" not in str(told.value)


async def test_F9_whatever_a_connection_fails_by_it_is_unreachable() -> None:
    def fail() -> str:
        raise RuntimeError("File descriptor 19 is used by transport")

    async with opened(Login("http://127.0.0.1:1", "ann", token=fail)) as cluster:
        with pytest.raises(Unreachable, match="File descriptor 19"):
            await cluster.get(PATH)
