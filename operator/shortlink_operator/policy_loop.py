"""The LinkPolicy of a cluster put in force: read again and again, and told of in its status."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from shortlink.links.policy import Policy
from shortlink.links.refusal import Refusal
from shortlink.management import Management
from shortlink.store.record import policy_to_text
from shortlink_operator.cluster import Cluster, Conflict, Missing, object_path
from shortlink_operator.policies import NAME, Rules, parse_policy
from shortlink_operator.status import policy_status_of, status_patch
from shortlink_operator.switches import RECLAIM, Switches

LINKPOLICIES: Final = "linkpolicies"

_NOT_READ: Final = "the LinkPolicy was not read yet"

log = structlog.get_logger()


@dataclass(slots=True)
class InForce:
    """The rules that count now. `wrong`: why there are none, empty where there are."""

    policy: Policy
    links_per_namespace: int | None = None
    wrong: str = _NOT_READ


class PolicyLoop:
    """Keeps `in_force` and the policy of `management` as the cluster's LinkPolicy says.

    Codes are freed only while the switch lets them. `own_hosts` are refused as targets whatever
    the policy says."""

    def __init__(
        self,
        cluster: Cluster,
        management: Management,
        region: str,
        own_hosts: frozenset[str],
        switches: Switches,
    ) -> None:
        self.in_force = InForce(management.policy)
        self._cluster = cluster
        self._management = management
        self._region = region
        self._own_hosts = own_hosts
        self._switches = switches
        self._path = object_path(LINKPOLICIES, None, NAME)
        self._good: Rules | None = None

    def forget(self) -> None:
        """Begin anew: what was in force may have changed while another operator led."""
        self._good, self.in_force.wrong = None, _NOT_READ

    async def run(self, may_act: Callable[[], None]) -> None:
        """Bring everything up to date; `may_act` raises when nothing may be written any more.

        Raises ClusterError and StoreError: what was in force stays.
        """
        if self._good is not None:  # by the switches as they are now
            self._put_in_force(self._good)
        try:
            found = await self._cluster.get(self._path)
        except Missing:
            found = None
        rules = Rules() if found is None else parse_policy(found)
        if isinstance(rules, Rules):
            self._put_in_force(rules)
        elif self._good is None:
            self.in_force.wrong = rules.message
        kept = dict(await self._management.store.policies())
        if self._good is not None:
            await self._keep(self._good, kept, may_act)
        if found is not None:
            await self._tell(found, rules, kept, may_act)

    def _put_in_force(self, rules: Rules) -> None:
        policy = replace(
            rules.policy,
            own_hosts=rules.policy.own_hosts | self._own_hosts,
            reclaim=rules.policy.reclaim and not self._switches.paused[RECLAIM],
        )
        if rules != self._good:
            log.info("policy in force", policy=policy_to_text(policy))
        self._good = rules
        self._management.policy = self.in_force.policy = policy
        self.in_force.links_per_namespace = rules.links_per_namespace
        self.in_force.wrong = ""

    async def _keep(self, good: Rules, kept: dict[str, str], may_act: Callable[[], None]) -> None:
        """For this region's other processes, which have own hosts of their own."""
        text = policy_to_text(good.policy)
        if text != kept.get(self._region):  # another operator may have led, and kept its own
            may_act()
            await self._management.store.keep_policy(self._region, text)
            kept[self._region] = text

    async def _tell(
        self,
        found: dict[str, Any],
        rules: Rules | Refusal,
        kept: Mapping[str, str],
        may_act: Callable[[], None],
    ) -> None:
        refusal = rules if isinstance(rules, Refusal) else None
        differing = [region for region in sorted(kept) if kept[region] != kept.get(self._region)]
        metadata, old = found["metadata"], found.get("status")
        now = self._management.clock.wall()
        new = policy_status_of(refusal, differing, metadata["generation"], old, now)
        if (patch := status_patch(old, new)) is not None:
            may_act()
            versioned = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, **patch}
            with suppress(Conflict):  # it was changed meanwhile: the next round tells of that
                await self._cluster.patch(self._path, versioned, subresource="status")
