"""The mass-deletion brake and the quota on an API server: what a namespace has, and what goes."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from shortlink.links.model import Cause, Link
from shortlink.management import Management
from shortlink_operator.apply import Applier
from shortlink_operator.cluster import Cluster, objects
from shortlink_operator.deletion import held
from shortlink_operator.index import Index, Space

SHORTLINKS: Final = "shortlinks"

_PAGE: Final = 500


class Brake:
    """Counts by `index`. `note` is told of objects that no watch has reported yet."""

    def __init__(
        self,
        index: Index,
        applier: Applier,
        cluster: Cluster,
        management: Management,
        note: Callable[[dict[str, Any]], object],
    ) -> None:
        self._index = index
        self._applier = applier
        self._cluster = cluster
        self._management = management
        self._note = note
        self._completing = asyncio.Lock()

    async def holds(self, key: str, others: int = 0) -> str:
        """Why the deletion of an object has to wait, or nothing.

        `others`: links of its namespace that go with it and have no object. Raises StoreError and
        ClusterError.
        """
        await self._complete(key)
        space, policy = self._index.space(key), self._management.policy
        entry = self._index.get(key)
        # What is not known to have a link may have one.
        itself = entry is not None and not entry.holds and not entry.retain
        more = space.orphans + itself + others
        namespace = key.partition("/")[0]
        return held(namespace, space.going + more, space.live + more, self._recent(space), policy)

    async def holds_gone(self, key: str) -> str:
        """The same for one that is gone already. Raises StoreError and ClusterError.

        Those count over the whole cluster, and as many as were gone at once until none is: else
        a cluster that is rebuilt bit by bit would lose the links of what isn't there yet.
        """
        index, policy, spaces = self._index, self._management.policy, self._index.spaces.values()
        missed = max(index.missed, len(index.orphans))
        live = sum(space.live for space in spaces) + missed
        recent = sum(map(self._recent, spaces))
        if index.emptied and policy.brake_share < 1:
            return "all objects of the cluster were gone at once"
        if held("", missed, live, recent, policy):
            return f"of {live} links of the cluster {missed} had lost their objects at once"
        return await self.holds(key)

    async def take_room(self, key: str, limit: int | None) -> bool:
        """Whether an object may have a link where `limit` are allowed; its place is taken at once.

        Raises StoreError and ClusterError.
        """
        if limit is None:
            return True
        await self._complete(key)
        space, entry = self._index.space(key), self._index.get(key)
        if entry is None or entry.holds:
            return True
        if space.live >= limit:
            return False
        self._index.change(key, holds=True)
        return True

    def count(self, key: str, link: Link | None) -> None:
        """Have a link that went with its object count among the recent ones."""
        if link is not None and link.cause is Cause.DELETED and link.tombstoned_at is not None:
            self._index.space(key).recent[link.code] = link.tombstoned_at

    def _recent(self, space: Space) -> int:
        after = self._management.clock.wall() - self._management.policy.brake_window
        space.recent = {code: at for code, at in space.recent.items() if at > after}
        return len(space.recent)

    async def _complete(self, key: str) -> None:
        """Know all of a namespace: its objects, and which of their links went lately."""
        space, namespace = self._index.space(key), key.partition("/")[0]
        async with self._completing:
            if space.complete:
                return
            async for bodies in self._cluster.pages(objects(SHORTLINKS, namespace)):
                for body in bodies:
                    self._note(body)
            after = within = f"{namespace}/"
            while after.startswith(within):
                page = await self._management.store.claims(after, _PAGE)
                for claim in page:
                    ours = claim.key.startswith(within) and claim.cluster == self._index.cluster
                    if ours and self._index.get(claim.key) is None:
                        self.count(claim.key, (await self._applier.look(claim)).own)
                after = page[-1].key if page else ""
            space.complete = True
