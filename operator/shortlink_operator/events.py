"""The few Kubernetes Events of our own: what a person has to know of, once each."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from shortlink_operator.cluster import Cluster, ClusterError, Conflict
from shortlink_operator.kinds import API_VERSION, GROUP, KIND

DELETION_HELD: Final = "DeletionHeld"
TAKEN_OVER: Final = "TakenOver"

_MAX_NOTE: Final = 1024
"""Bytes (events.k8s.io/v1)."""
_NAME: Final = 200
"""Characters of the object's name in the Event's, which may have 253 in all."""

log = structlog.get_logger()


async def tell(
    cluster: Cluster, body: Mapping[str, Any], reason: str, note: str, instance: str, now: int
) -> None:
    """Add an Event about the object in `body`, once for it and `reason`; at worst only log it.

    `instance` is who says so, `now` milliseconds. An Event is a courtesy: the condition says the
    same, and a namespace that is being deleted takes no new ones.
    """
    metadata = body["metadata"]
    namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
    once = hashlib.sha256(f"{uid} {reason}".encode()).hexdigest()[:16]
    at = datetime.fromtimestamp(now / 1000, UTC)
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{name[:_NAME].rstrip('.-')}.{once}"},
        "eventTime": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "type": "Warning" if reason == DELETION_HELD else "Normal",
        "reason": reason,
        "action": reason,
        "note": note.encode()[:_MAX_NOTE].decode(errors="ignore"),
        "reportingController": f"{GROUP}/operator",
        "reportingInstance": instance[:128],
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": namespace,
            "name": name,
            "uid": uid,
        },
    }
    log.warning("object told", key=f"{namespace}/{name}", reason=reason, note=note)
    try:
        await cluster.create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", event)
    except Conflict:
        pass  # it was told before
    except ClusterError as error:
        log.info("event not told", key=f"{namespace}/{name}", reason=reason, error=str(error))
