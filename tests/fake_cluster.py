"""An API server in memory, as far as the operator needs one, and no more lenient than the real.

Patches are merged (RFC 7396) and refused when their resourceVersion is old; finalizers sent
through /status are passed over, as is a status sent to the object; what has finalizers only
begins to end.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from copy import deepcopy
from itertools import count
from typing import Any

from shortlink_operator.cluster import ClusterError, Conflict, Missing
from shortlink_operator.kinds import API_VERSION, KIND

Body = dict[str, Any]
Told = Callable[[str, Body], None]


class FakeCluster:
    """`told` hears of each change, at once unless `lagging`; then `catch_up` tells what it missed.

    `writes` has each write that was asked for: (key, "", "status" or "events").
    `before` is called with each request and its key, and may raise.
    """

    def __init__(self, told: Told = lambda kind, body: None) -> None:
        self.told = told
        self.lagging = False
        self.objects: dict[str, Body] = {}
        self.events: dict[str, Body] = {}
        self.writes: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda what, key: None
        self._numbers = count(1)
        self._missed: list[tuple[str, Body]] = []

    # As people have it

    def apply(self, key: str, spec: Mapping[str, Any], **metadata: Any) -> Body:
        """Make an object, or give it this spec."""
        namespace, _, name = key.partition("/")
        known = self.objects.get(key)
        if known is not None:
            return self._merge(key, {"spec": dict(spec), "metadata": metadata}, replace=True)
        number = str(next(self._numbers))
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "namespace": namespace,
                "name": name,
                "uid": f"uid-{number}",
                "generation": 1,
                "resourceVersion": number,
                "managedFields": [{"manager": "kubectl"}],
                **metadata,
            },
            "spec": dict(spec),
        }
        self.objects[key] = body
        self._tell("ADDED", body)
        return deepcopy(body)

    def change(self, key: str, patch: Mapping[str, Any], *, status: bool = False) -> Body:
        """Somebody else's patch."""
        return self._merge(key, patch, subresource="status" if status else "")

    def annotate(self, key: str, name: str, value: str | None) -> None:
        self.change(key, {"metadata": {"annotations": {name: value}}})

    def delete(self, key: str) -> None:
        """Ask for the end of an object."""
        body = self.objects[key]
        if not body["metadata"].get("finalizers"):
            self._end(key)
        elif "deletionTimestamp" not in body["metadata"]:
            body["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
            body["metadata"]["generation"] += 1
            self._version(body)
            self._tell("MODIFIED", body)

    def wrench(self, key: str) -> None:
        """Delete an object with its finalizers taken away, as nobody should."""
        self.delete(key)
        if key in self.objects:
            self.change(key, {"metadata": {"finalizers": None}})

    def lose(self, key: str) -> None:
        """An end of which the watch never tells."""
        del self.objects[key]

    def put_back(self, version: int) -> None:
        """Count versions from this one again, as a restored etcd does."""
        self._numbers = count(version)

    def catch_up(self) -> None:
        """Tell what was missed."""
        missed, self._missed = self._missed, []
        for kind, body in missed:
            self.told(kind, body)

    # As the operator has it

    async def get(self, path: str) -> Body:
        key = _key(path)
        self.before("get", key)
        return deepcopy(self._there(key))

    async def pages(self, path: str, limit: int = 500) -> AsyncIterator[list[Body]]:
        self.before("list", path)
        within = path.split("/namespaces/")[1].partition("/")[0] if "/namespaces/" in path else ""
        keys = [key for key in sorted(self.objects) if not within or key.startswith(f"{within}/")]
        found = [deepcopy(self.objects[key]) for key in keys]
        for body in found:
            del body["apiVersion"], body["kind"]
        for at in range(0, len(found), limit) or [0]:
            yield found[at : at + limit]

    async def patch(self, path: str, body: Mapping[str, Any], *, subresource: str = "") -> Body:
        key = _key(path)
        self.writes.append((key, subresource))
        self.before(f"patch {subresource}".strip(), key)
        there = self._there(key)["metadata"]
        asked = body.get("metadata", {}).get("resourceVersion", there["resourceVersion"])
        if asked != there["resourceVersion"]:
            raise Conflict(f"{key}: {asked} is old")
        return self._merge(key, body, subresource=subresource)

    async def create(self, path: str, body: Mapping[str, Any]) -> Body:
        assert path.startswith("/apis/events.k8s.io/v1/namespaces/"), path
        name = body["metadata"]["name"]
        self.writes.append((name, "events"))
        self.before("create events", name)
        if name in self.events:
            raise Conflict(name)
        self.events[name] = dict(body)
        return dict(body)

    def _there(self, key: str) -> Body:
        if key not in self.objects:
            raise Missing(key)
        return self.objects[key]

    def _merge(
        self, key: str, patch: Mapping[str, Any], subresource: str = "", *, replace: bool = False
    ) -> Body:
        body = self.objects[key]
        new = deepcopy(body)
        if subresource == "status":
            new["status"] = merged(new.get("status"), patch.get("status", {}))
        else:
            given = {k: v for k, v in patch.get("metadata", {}).items() if k != "resourceVersion"}
            new["metadata"] = merged(new["metadata"], given)
            if "spec" in patch:
                new["spec"] = patch["spec"] if replace else merged(new["spec"], patch["spec"])
        if new["spec"] != body["spec"]:
            new["metadata"]["generation"] += 1
        if new == body:
            return deepcopy(body)
        if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers"):
            self._end(key)
            return new
        self._version(new)
        self.objects[key] = new
        self._tell("MODIFIED", new)
        return deepcopy(new)

    def _end(self, key: str) -> None:
        body = self.objects.pop(key)
        self._version(body)
        self._tell("DELETED", body)

    def _version(self, body: Body) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._numbers))

    def _tell(self, kind: str, body: Body) -> None:
        if self.lagging:
            self._missed.append((kind, deepcopy(body)))
        else:
            self.told(kind, deepcopy(body))


def merged(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, Mapping):
        return patch
    new = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = merged(new.get(name), value)
    return new


def _key(path: str) -> str:
    namespace, _, name = path.split("/namespaces/")[1].partition("/shortlinks/")
    return f"{namespace}/{name}"


def fails(error: ClusterError, *whats: str) -> Callable[[str, str], None]:
    """For `before`: each request of these kinds fails."""

    def before(what: str, key: str) -> None:
        if what in whats:
            raise error

    return before
