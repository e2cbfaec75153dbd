"""Reading a request: who asks, then a body of bounded size in strict JSON (RFC 8259)."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from shortlink.api.keys import Keys
from shortlink.api.problems import Problem
from shortlink.links.lifecycle import Actor

MAX_BODY: Final = 64 * 1024
"""Bytes of a request body."""

BODY_SECONDS: Final = 5.0
"""How long a client may take to send its body."""


def strict_json(raw: bytes) -> object:
    """The value of UTF-8 JSON without repeated names, NaN, or lone surrogates.

    Raises Problem (400).
    """
    try:
        text = raw.decode()
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False).encode()  # fails on lone surrogates
    except UnicodeDecodeError as error:
        raise _invalid(f"it is not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise _invalid("a string has half of a surrogate pair; send whole characters") from None
    except RecursionError:
        raise _invalid("it is nested too deeply") from None
    except ValueError as error:
        raise _invalid(str(error)) from None
    return value


class StrictRequest(Request):
    """A request whose body is read within MAX_BODY and BODY_SECONDS, as strict JSON only."""

    async def body(self) -> bytes:
        """The whole body. Raises Problem (408, 413, 415)."""
        if not hasattr(self, "_body"):
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    self._body = await self._read()
            except TimeoutError:
                raise _closing(
                    408,
                    "BodyTimeout",
                    f"the body took longer than {BODY_SECONDS:.0f} s; send again",
                ) from None
            if self._body:
                self._check_type()
        return self._body

    async def json(self) -> object:
        """The body's value. Raises Problem (400, and as `body()`)."""
        return strict_json(await self.body())

    async def _read(self) -> bytes:
        if int(self.headers.get("content-length", "0")) > MAX_BODY:
            raise _too_large()
        read = bytearray()
        async for chunk in self.stream():
            read += chunk
            if len(read) > MAX_BODY:
                raise _too_large()
        return bytes(read)

    def _check_type(self) -> None:
        sent = self.headers.get("content-type", "")
        coding = self.headers.get("content-encoding", "identity").lower()
        if sent.partition(";")[0].strip().lower() != "application/json" or coding != "identity":
            raise Problem(
                415,
                "UnsupportedMediaType",
                "send the body as Content-Type: application/json, without Content-Encoding",
                headers={"Accept": "application/json"},
            )


def authenticated_route(keys: Keys) -> type[APIRoute]:
    """Routes that know who asks, as `request.state.actor`, before they read anything."""

    class AuthenticatedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def handle(request: Request) -> Response:
                request.state.actor = _actor(request, keys)
                return await handler(StrictRequest(request.scope, request.receive))

            return handle

    return AuthenticatedRoute


def _actor(request: Request, keys: Keys) -> Actor:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise Problem(
            401,
            "Unauthorized",
            "no key was sent; send the header Authorization: Bearer <your API key>",
            headers={"WWW-Authenticate": 'Bearer realm="shortlink"'},
        )
    actor = keys.actor(key.strip())
    if actor is None:
        raise Problem(
            401,
            "Unauthorized",
            "this key is not known here; check it, or ask an administrator for a new one",
            headers={"WWW-Authenticate": 'Bearer realm="shortlink", error="invalid_token"'},
        )
    return actor


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {twice[:40]!r} comes twice in one object; send it once")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _invalid(what: str) -> Problem:
    return Problem(400, "InvalidJson", f"the body is not acceptable JSON: {what}")


def _too_large() -> Problem:
    return _closing(413, "BodyTooLarge", f"the body is over {MAX_BODY} bytes; send less")


def _closing(status: int, reason: str, detail: str) -> Problem:
    # What is left of the body is not read, so the connection can't be used again.
    return Problem(status, reason, detail, headers={"Connection": "close"})
