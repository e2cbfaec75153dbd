"""The mass-deletion brake and the quota on an API server: what a namespace has, and what goes."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from shortlink.links.model import Cause, Link
from shortlink.management import Management
from shortlink.store.port import Claim, StoreError
from shortlink_operator.apply import Applier
from shortlink_operator.cluster import Cluster, object_path, objects
from shortlink_operator.deletion import held
from shortlink_operator.index import Index, Space

SHORTLINKS: Final = "shortlinks"

CLAIMS: Final = 5_000
"""Claims in a page: the store sorts each anew, so that few and long ones cost less."""

_READS: Final = 32

log = structlog.get_logger()


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
        self._reads = asyncio.Semaphore(_READS)

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
        return held(
            namespace, space.going + more, space.live + more, self._recent(space), policy
        ) or self._holds_all(space, more)

    def _holds_all(self, own: Space, more: int) -> str:
        """The same by what goes in all namespaces, but those that have to wait for themselves."""
        policy, going, live, recent = self._management.policy, more, more, 0
        for name, space in self._index.spaces.items():
            went = self._recent(space)
            if space is own or not held(name, space.going, space.live, went, policy):
                going, live, recent = going + space.going, live + space.live, recent + went
        if not held("", going, live, recent, policy):
            return ""
        return (
            f"{going + recent} of {live + recent} links of the cluster would go within"
            f" {policy.brake_window // 1000} s"
        )

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
        """Know all of a namespace: its objects, and which of their links went lately.

        Who is cut short leaves what was read to the next, so that it comes to an end.
        """
        space, namespace = self._index.space(key), key.partition("/")[0]
        async with space.completing:
            if space.complete:
                return
            async for bodies in self._cluster.pages(objects(SHORTLINKS, namespace)):
                for body in bodies:
                    self._note(body)
            within = f"{namespace}/"
            space.claimed = space.claimed or within
            while space.claimed.startswith(within):
                page = await self._management.store.claims(space.claimed, CLAIMS)
                ours = (claim for claim in page if claim.key.startswith(within))
                await asyncio.gather(*map(self._count_gone, ours))
                space.claimed = page[-1].key if page else ""
            space.complete = True

    async def _count_gone(self, claim: Claim) -> None:
        if claim.cluster != self._index.cluster or self._index.get(claim.key) is not None:
            return
        async with self._reads:
            try:
                self.count(claim.key, (await self._applier.look(claim)).own)
            except StoreError:
                raise
            except Exception:  # one link's oddity may not hold all others up
                log.exception("claim can't be counted", key=claim.key)


def path_of(key: str) -> str:
    """Where the API server has an object."""
    namespace, _, name = key.partition("/")
    return object_path(SHORTLINKS, namespace, name)
