"""What operators ask of a redirect process, on a listener that visitors can't reach."""

import json
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from shortlink.cache.memory import NEVER
from shortlink.links.instants import format_instant
from shortlink.links.names import is_code
from shortlink.redirect.metrics import RedirectMetrics
from shortlink.redirect.responses import Response, content, text
from shortlink.redirect.service import RedirectService, Then, path_of

_WHY = "/why/"
_NOTHING = text(404, "nothing here; try /metrics or /why/{code}")


class Ops:
    """`/metrics`, and `/why/{code}`: what this process would answer for a code, and why."""

    def __init__(
        self,
        service: RedirectService,
        connections: Callable[[], int],
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._service = service
        self._registry = registry or CollectorRegistry(auto_describe=False)
        self._registry.register(RedirectMetrics(service, connections))

    def route(self, target: bytes, _head: bool, _then: Then) -> Response:
        """The response to GET or HEAD of `target`."""
        path = path_of(target).decode("latin-1")
        if path == "/metrics":
            return content(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))
        code = path.removeprefix(_WHY)
        if path.startswith(_WHY) and is_code(code):
            why = json.dumps(self._why(code), indent=2) + "\n"
            return content(200, "application/json", why.encode())
        return _NOTHING

    def _why(self, code: str) -> dict[str, object]:
        service, cached = self._service, None
        entry = service.cache.peek(code)
        if entry is not None:
            steady = service.clock.steady()
            cached = {
                "generation": entry.stamp[0],
                "version": entry.stamp[1],
                "status": entry.response.status,
                "served": service.cache.get(code) is not None,
                "age_ms": steady - entry.began,
                "bound_ms": entry.fresh_until - entry.began,
                "link_expires_at": (
                    None if entry.expires_at == NEVER else format_instant(entry.expires_at)
                ),
            }
        return {"code": code, "cached": cached, "read_under_way": service.reading(code)}
