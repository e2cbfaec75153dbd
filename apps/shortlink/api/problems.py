"""Every error of the API as problem details (RFC 9457), with the status of each reason."""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from shortlink.links.refusal import Reason, Refused
from shortlink.management import CodesExhausted
from shortlink.store.port import StoreError, StoreFull, StoreUnavailable

MEDIA_TYPE: Final = "application/problem+json"
URN: Final = "urn:shortlink:problem:"

STATUS: Final[Mapping[Reason, int]] = {
    Reason.INVALID_TARGET: 400,
    Reason.INVALID_ALIAS: 400,
    Reason.INVALID_TIME: 400,
    Reason.EXPIRY_IN_PAST: 400,
    Reason.PERMANENT_EXPIRES: 400,
    Reason.INVALID_LABELS: 400,
    Reason.INVALID_POLICY: 400,
    Reason.NOT_OWNER: 403,
    Reason.UNKNOWN: 404,
    Reason.RESERVED: 409,
    Reason.TAKEN: 409,
    Reason.SAME_OWNER: 409,
    Reason.CODE_CHANGED: 409,
    Reason.MANAGED: 409,
    Reason.TOMBSTONED: 409,
    Reason.GRACE_OVER: 409,
    Reason.NOT_TOMBSTONED: 409,
    Reason.NOT_DUE: 409,
}
"""The status of each refusal of the domain; total over Reason."""

_RETRY_SOON: Final = 2
_RETRY_LATER: Final = 60  # for what a person has to mend: a full store, a broken generator

_FIELDS: Final[Mapping[str, str]] = {"target": "long_url", "alias": "custom_alias"}
_ERRORS_SHOWN: Final = 5

_Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


class Problem(HTTPException):
    """An answer other than success; `reason` becomes its type and, in words, its title."""

    def __init__(
        self,
        status: int,
        reason: str,
        detail: str,
        *,
        field: str = "",
        suggestion: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.reason = reason
        self.field = field
        self.suggestion = suggestion

    def response(self) -> Response:
        """The problem as the answer to a request."""
        body: dict[str, Any] = {
            "type": URN + self.reason,
            "title": re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.reason).capitalize(),
            "status": self.status_code,
            "detail": self.detail,
        }
        if self.field:
            body["field"] = self.field
        if self.suggestion:
            body["suggestion"] = self.suggestion
        return JSONResponse(body, self.status_code, self.headers, MEDIA_TYPE)


class ProblemBody(BaseModel):
    """What the OpenAPI document says of every error."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    suggestion: str | None = None


async def on_refused(request: Request, error: Refused) -> Response:
    """The domain said no."""
    refusal = error.refusal
    return Problem(
        STATUS[refusal.reason],
        refusal.reason,
        refusal.message,
        field=_FIELDS.get(refusal.field, refusal.field),
        suggestion=refusal.suggestion,
    ).response()


async def on_store_error(request: Request, error: StoreError) -> Response:
    """The store, or the code generator, can't do it now."""
    lasting = isinstance(error, CodesExhausted) or not isinstance(error, StoreUnavailable)
    named = isinstance(error, CodesExhausted | StoreFull)
    return Problem(
        503,
        type(error).__name__ if named else StoreUnavailable.__name__,
        f"{error}. Redirects go on. A change that was asked for may have been made:"
        " read the link before you try again.",
        headers={"Retry-After": str(_RETRY_LATER if lasting else _RETRY_SOON)},
    ).response()


async def on_http_exception(request: Request, error: HTTPException) -> Response:
    """Our own problems, and the framework's: no such route, or not with this method."""
    if isinstance(error, Problem):
        return error.response()
    path = request.url.path
    if error.status_code == 404:
        return Problem(
            404,
            "NoSuchResource",
            f"nothing is at {path[:80]!r}; /api/v1/openapi.json lists what there is",
        ).response()
    if error.status_code == 405:
        allowed = ", ".join(sorted(_methods(request)))
        return Problem(
            405,
            "MethodNotAllowed",
            f"{request.method} is not possible here; possible: {allowed}",
            headers={"Allow": allowed},
        ).response()
    return Problem(error.status_code, "BadRequest", error.detail, headers=error.headers).response()


async def on_invalid(request: Request, error: RequestValidationError) -> Response:
    """The body is JSON, but not what this resource takes."""
    told = [_told(entry) for entry in error.errors()]
    shown = "; ".join(message for _, message in told[:_ERRORS_SHOWN])
    return Problem(400, "InvalidBody", shown, field=told[0][0]).response()


def _told(entry: Mapping[str, Any]) -> tuple[str, str]:
    loc: Sequence[str | int] = entry["loc"]
    field = ".".join(str(part) for part in loc[1:])[:80]
    match entry["type"]:
        case "extra_forbidden":
            return field, f"{field!r} is not a field here; /api/v1/openapi.json lists the fields"
        case "missing" if field:
            return field, f"{field} is missing"
        case "missing":
            return field, "the request has no body; send a JSON object"
        case _ if field:
            return field, f"{field}: {entry['msg']}"
        case _:
            return field, "the body must be a JSON object"


def _methods(request: Request) -> set[str]:
    # The framework knows only the methods of the first route of a path; RFC 9110 15.5.6
    # wants those of the resource.
    return {
        method
        for route in request.app.routes
        if route.path_regex.match(request.url.path)
        for method in route.methods
    }


HANDLERS: Final[dict[int | type[Exception], _Handler]] = {
    Refused: on_refused,
    StoreError: on_store_error,
    HTTPException: on_http_exception,
    RequestValidationError: on_invalid,
}
"""What FastAPI is told to do with each exception."""
