"""Switches by which people pause parts of the operator: a ConfigMap in its own namespace."""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from shortlink_operator.cluster import Cluster, Missing

NAME: Final = "operator-switches"
SWEEPER: Final = "sweeper"
"""Paused: the clock moves no link; what they answer does not depend on it."""
RECLAIM: Final = "reclaim"
"""Paused: no code is freed."""

_PAUSED: Final = {"paused": True, "running": False}
_SHOWN: Final = 40

log = structlog.get_logger()


class Switches:
    """The switches of the operator in `namespace`, as they were when they could last be read.

    Without their ConfigMap nothing is paused; nor is anything before it was read once.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.paused = {SWEEPER: False, RECLAIM: False}
        self._cluster = cluster
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{NAME}"
        self._wrong: list[str] = []

    async def read(self) -> None:
        """See how they stand now. Raises ClusterError; what was known stays."""
        try:
            data = (await self._cluster.get(self._path)).get("data") or {}
        except Missing:
            data = {}
        paused, wrong = _read(data)
        for told in wrong:
            if told not in self._wrong:
                log.error("a switch is set wrong", switch=told)
        self._wrong = wrong
        if paused != self.paused:
            log.warning("switches changed", **paused)
        self.paused = paused


def _read(data: Mapping[str, Any]) -> tuple[dict[str, bool], list[str]]:
    """What is paused, and what is wrong. A value that nobody can read pauses: who wrote it
    wanted something else than what is."""
    paused, wrong = {}, []
    for name in (SWEEPER, RECLAIM):
        value = data.get(name, "running")
        paused[name] = _PAUSED.get(value, True)
        if value not in _PAUSED:
            wrong.append(f"{name} is {value[:_SHOWN]!r}, so it is paused; set paused or running")
    known = ", ".join(paused)
    wrong += [f"there is no {name[:_SHOWN]!r}: {known}" for name in sorted(set(data) - set(paused))]
    return paused, wrong
