"""The API's resources (W1, W2, W6): HTTP in, a command to `management`, HTTP out."""

import asyncio
from typing import Annotated, Any, Final

import structlog
from fastapi import Depends, FastAPI, Request, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.middleware import Middleware
from starlette.responses import JSONResponse

from shortlink.api.body import authenticated_route
from shortlink.api.guard import Guard, Metrics
from shortlink.api.keys import Keys
from shortlink.api.models import Changes, LinkView, NewLink, Restoration, Verdict, view
from shortlink.api.problems import HANDLERS, MEDIA_TYPE, Problem, ProblemBody
from shortlink.links.lifecycle import (
    UNKNOWN,
    Actor,
    Command,
    Delete,
    Disable,
    Enable,
    Restore,
)
from shortlink.links.model import Link
from shortlink.links.names import is_code
from shortlink.links.refusal import Refused
from shortlink.management import Management
from shortlink.store.port import StoreError

READY_SECONDS: Final = 1.0
"""How long the store may take to answer a readiness probe."""

log = structlog.get_logger()


def _caller(request: Request) -> Actor:
    actor: Actor = request.state.actor
    return actor


Caller = Annotated[Actor, Depends(_caller)]


def make_app(
    management: Management, keys: Keys, base_url: str, registry: CollectorRegistry | None = None
) -> FastAPI:
    """The API over `management`, for the holders of `keys`.

    `base_url` is where short links live, as `https://s.example` without a path. `registry` has
    the process's other series. Once `state.draining` is set, it says that it is not ready, and
    every connection ends with its next answer.
    """
    metrics = Metrics(management)
    registry = registry or CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    app = FastAPI(
        title="shortlink",
        version="v1",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # both kinds of pages load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=HANDLERS,
        middleware=[Middleware(Guard, metrics=metrics)],
    )
    app.state.draining = False
    _Links(management, base_url.rstrip("/")).mount(app, keys)

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> Response:
        if app.state.draining:
            raise _not_ready("this process is about to end")
        try:
            async with asyncio.timeout(READY_SECONDS):
                await management.store.ping()
        except TimeoutError:
            raise _not_ready(f"the store did not answer within {READY_SECONDS:.0f} s") from None
        except StoreError as error:
            raise _not_ready(str(error)) from error
        return JSONResponse({"status": "ready"})

    async def scrape(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    app.add_route("/healthz", healthz)
    app.add_route("/readyz", readyz)
    app.add_route("/metrics", scrape)
    return app


class _Links:
    """The operations on links. What is allowed is the domain's business alone."""

    def __init__(self, management: Management, base_url: str) -> None:
        self._management = management
        self._base_url = base_url

    def mount(self, app: FastAPI, keys: Keys) -> None:
        """Add the routes to `app`."""
        one = "/api/v1/links/{code}"
        for method, path, endpoint, status in (
            ("POST", "/api/v1/links", self.create_link, 201),
            ("GET", one, self.get_link, 200),
            ("PATCH", one, self.change_link, 200),
            ("DELETE", one, self.delete_link, 204),
            ("POST", f"{one}/restore", self.restore_link, 200),
            ("PUT", f"{one}/disabled", self.disable_link, 200),
            ("DELETE", f"{one}/disabled", self.enable_link, 200),
        ):
            app.router.add_api_route(
                path,
                endpoint,
                methods=[method],
                status_code=status,
                operation_id=endpoint.__name__,
                responses={"default": _PROBLEM},
                dependencies=[Depends(HTTPBearer(auto_error=False))],  # for the document only
                route_class_override=authenticated_route(keys),
            )

    async def create_link(self, body: NewLink, by: Caller, response: Response) -> LinkView:
        """Make a link: at `custom_alias` if one is given, else at a generated code.

        A create that failed with 503 may have been carried out; sent again without an alias
        it would make a second link.
        """
        wanted = body.command(by, self._management.new_token())
        if wanted.custom:
            link = await self._management.create(wanted)
        else:
            link = await self._management.create_generated(wanted)
        response.headers["Location"] = f"/api/v1/links/{link.code}"
        return self._changed("link created", link, by)

    async def get_link(self, code: str, by: Caller) -> LinkView:
        """One link, for its owner or an administrator."""
        return self._view(await self._management.read(_looked_up(code), by))

    async def change_link(self, code: str, body: Changes, by: Caller) -> LinkView:
        """Change a live link; an `expires_at` of null makes it last for ever."""
        return await self._apply("link changed", code, body.command(by), by)

    async def delete_link(self, code: str, by: Caller) -> Response:
        """Delete a link softly: it can be restored during the grace. Repeating it does nothing."""
        await self._apply("link deleted", code, Delete(by), by)
        return Response(status_code=204)

    async def restore_link(
        self, code: str, by: Caller, body: Restoration | None = None
    ) -> LinkView:
        """Take a dead link back during its grace; one that expired needs a new expiry."""
        expiry = (body or Restoration()).expiry()
        return await self._apply("link restored", code, Restore(by=by, expires_at=expiry), by)

    async def disable_link(self, code: str, body: Verdict, by: Caller) -> LinkView:
        """Stop a link for abuse; for administrators."""
        return await self._apply("link disabled", code, Disable(by, body.why), by)

    async def enable_link(self, code: str, by: Caller) -> LinkView:
        """Lift what stopped a link; for administrators."""
        return await self._apply("link enabled", code, Enable(by), by)

    async def _apply(self, done: str, code: str, command: Command, by: Actor) -> LinkView:
        return self._changed(done, await self._management.apply(_looked_up(code), command), by)

    def _changed(self, done: str, link: Link, by: Actor) -> LinkView:
        log.info(
            done, code=link.code, generation=link.generation, version=link.version, by=by.owner
        )
        return self._view(link)

    def _view(self, link: Link) -> LinkView:
        management = self._management
        return view(link, management.policy, management.clock.wall(), self._base_url)


_PROBLEM: Final[dict[str, Any]] = {
    "description": "What went wrong, as RFC 9457 problem details",
    "content": {MEDIA_TYPE: {"schema": ProblemBody.model_json_schema()}},
}


def _looked_up(code: str) -> str:
    if not is_code(code):
        raise Refused(UNKNOWN)
    return code


def _not_ready(why: str) -> Problem:
    return Problem(503, "NotReady", why, headers={"Retry-After": "2"})
