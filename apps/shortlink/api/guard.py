"""Around every request: its deadline, its count, and what becomes of a bug."""

import asyncio
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shortlink.api.problems import Problem
from shortlink.management import Management

REQUEST_SECONDS: Final = 10.0
"""How long a request may take in all; longer than reading its body and what the store allows."""

_CLOSE: Final = (b"connection", b"close")

log = structlog.get_logger()


class Metrics(Collector):
    """Plain integers, read on scrape. Operations are names of routes, so labels are bounded."""

    def __init__(self, management: Management) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self._management = management

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The API's metric families (O1)."""
        requests = CounterMetricFamily(
            "shortlink_api_requests", "Requests answered", labels=["operation", "status"]
        )
        for (operation, status), count in list(self.requests.items()):
            requests.add_metric([operation, str(status)], count)
        yield requests
        yield CounterMetricFamily(
            "shortlink_links_created", "Links made", value=self._management.created
        )
        yield CounterMetricFamily(
            "shortlink_code_collisions",
            "Drawn codes found taken (G6)",
            value=self._management.collisions,
        )


class Guard:
    """ASGI middleware. An exception that nobody expected is logged here and answered as 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if scope["app"].state.draining:
                    message["headers"] = [*message.get("headers", ()), _CLOSE]
            await send(message)

        deadline = asyncio.timeout(REQUEST_SECONDS)
        try:
            async with deadline:
                await self._app(scope, receive, noting)
        except Exception:
            if deadline.expired():
                problem = Problem(
                    503,
                    "DeadlineExceeded",
                    f"this took longer than {REQUEST_SECONDS:.0f} s and may or may not have been"
                    " done; read the link before you try again",
                    headers={"Retry-After": "2"},
                )
            else:
                # As text: renderers of tracebacks may show local variables, and so keys.
                log.error(
                    "bug in the API", operation=_operation(scope), traceback=traceback.format_exc()
                )
                problem = Problem(
                    500, "Internal", "a fault of ours, and logged; try again or tell the operators"
                )
            if status == 0:
                await problem.response()(scope, receive, noting)
        finally:
            self._metrics.requests[_operation(scope), status] += 1


def _operation(scope: Scope) -> str:
    return getattr(scope.get("route"), "name", "none")
