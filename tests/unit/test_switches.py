"""What people set for an operator while it runs: pause switches, and the LinkPolicy."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import structlog

from shortlink.links.lifecycle import Delete
from shortlink.links.model import State
from shortlink.links.policy import DAY, HOUR, Policy
from shortlink.store.port import StoreUnavailable
from shortlink.store.record import policy_from_text, policy_to_text
from shortlink_operator.cluster import Cluster, Conflict, Missing, Refused, Unreachable
from shortlink_operator.lease import Deposed
from shortlink_operator.policy_loop import PolicyLoop
from shortlink_operator.sweep import Sweeper
from shortlink_operator.switches import RECLAIM, SWEEPER, Switches
from tests.fake_cluster import merged
from tests.samples import ANN, a_create
from tests.world import World

SWITCHES = "/api/v1/namespaces/shortlink/configmaps/operator-switches"
POLICY = "/apis/shortlink.platform/v1alpha1/linkpolicies/default"
OWN = frozenset({"s.example"})
REFUSED = Refused(f"GET {POLICY}: 403: no")
AWAY = Unreachable(f"GET {POLICY}: no answer in time")


@dataclass
class ApiServer:
    """Objects by path. `error` is what becomes of each request."""

    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    error: Exception | None = None

    async def get(self, path: str) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        if path not in self.kept:
            raise Missing(path)
        return deepcopy(self.kept[path])

    async def patch(
        self, path: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> dict[str, Any]:
        assert subresource == "status"
        self.writes.append(path)
        kept = self.kept[path]
        if body["metadata"]["resourceVersion"] != kept["metadata"]["resourceVersion"]:
            raise Conflict(path)
        kept["status"] = merged(kept.get("status"), body["status"])
        return kept

    def switch(self, **values: str) -> None:
        self.kept[SWITCHES] = {"data": values}

    def policy(self, **spec: Any) -> None:
        """Apply a LinkPolicy."""
        old = self.kept.get(POLICY, {"metadata": {"generation": 0}})
        generation = old["metadata"]["generation"] + 1
        self.kept[POLICY] = {
            **old,
            "apiVersion": "shortlink.platform/v1alpha1",
            "kind": "LinkPolicy",
            "metadata": {
                "name": "default",
                "generation": generation,
                "resourceVersion": str(generation),
            },
            "spec": spec,
        }

    def said(self) -> tuple[str, str, str]:
        """Status, reason and message of the policy's condition about itself as it is."""
        document = self.kept[POLICY]
        (condition,) = document["status"]["conditions"]
        assert condition["observedGeneration"] == document["metadata"]["generation"]
        return condition["status"], condition["reason"], condition["message"]


class Rig:
    """The loop of one operator. `restart` is a new process over what is kept."""

    def __init__(self) -> None:
        self.world = World(Policy())
        self.api = ApiServer()
        self.restart()

    def restart(self) -> None:
        self.management = self.world.management()
        self.switches = Switches(cast(Cluster, self.api), "shortlink")
        self.loop = PolicyLoop(cast(Cluster, self.api), self.management, "here", OWN, self.switches)

    async def run(self) -> None:
        await self.switches.read()
        await self.loop.run(lambda: None)

    @property
    def wrong(self) -> str:
        return self.loop.in_force.wrong

    @property
    def policy(self) -> Policy:
        assert self.management.policy == self.loop.in_force.policy
        return self.management.policy


@pytest.mark.parametrize(
    ("data", "sweeper", "reclaim"),
    [
        (None, False, False),
        ({}, False, False),
        ({"sweeper": "running", "reclaim": "running"}, False, False),
        ({"sweeper": "paused"}, True, False),
        ({"reclaim": "paused"}, False, True),
        ({"sweeper": "Paused", "reclaim": "off"}, True, True),
        ({"sweeper": ""}, True, False),
        ({"swepper": "paused"}, False, False),
    ],
)
async def test_L4_switches_pause_what_they_say_and_what_nobody_can_read(
    data: dict[str, str] | None, sweeper: bool, reclaim: bool
) -> None:
    api = ApiServer()
    if data is not None:
        api.switch(**data)
    switches = Switches(cast(Cluster, api), "shortlink")
    await switches.read()
    assert switches.paused == {SWEEPER: sweeper, RECLAIM: reclaim}


async def test_L4_a_wrong_switch_is_told_once() -> None:
    api = ApiServer()
    api.switch(sweeper="pause", swepper="paused")
    switches = Switches(cast(Cluster, api), "shortlink")
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await switches.read()
    told = [line["switch"] for line in logs if line["event"] == "a switch is set wrong"]
    assert told == [
        "sweeper is 'pause', so it is paused; set paused or running",
        "there is no 'swepper': sweeper, reclaim",
    ]


@pytest.mark.parametrize("error", [REFUSED, AWAY])
async def test_L4_switches_that_can_not_be_read_stay_as_they_were(error: Exception) -> None:
    api = ApiServer()
    api.switch(sweeper="paused")
    switches = Switches(cast(Cluster, api), "shortlink")
    await switches.read()
    api.error = error
    with pytest.raises(type(error)):
        await switches.read()
    assert switches.paused[SWEEPER]
    api.error = None
    del api.kept[SWITCHES]
    await switches.read()
    assert not switches.paused[SWEEPER]


async def test_L4_while_the_sweeper_is_paused_the_clock_moves_nothing() -> None:
    rig = Rig()
    paused = True
    sweeper = Sweeper(rig.management, settle=0, is_paused=lambda: paused)
    await rig.management.create(a_create(expires_at=rig.world.clock.at + HOUR))
    rig.world.clock.advance(2 * HOUR)
    await sweeper.run()
    assert rig.world.link("promo").state is State.ACTIVE
    paused = False
    await sweeper.run()
    assert rig.world.link("promo").state is State.TOMBSTONED


async def test_L3_while_reclaim_is_paused_no_code_is_freed_whatever_the_policy_says() -> None:
    rig = Rig()
    rig.api.policy(grace="24h", quarantine="0s")
    rig.api.switch(reclaim="paused")
    await rig.run()
    await rig.management.create(a_create())
    await rig.management.apply("promo", Delete(ANN))
    sweeper = Sweeper(rig.management, settle=0)
    rig.world.clock.advance(2 * DAY)
    await sweeper.run()
    assert rig.world.link("promo").state is not State.FREE
    rig.api.policy(grace="never")  # a wrong one does not keep the switch from being followed
    rig.api.switch(reclaim="running")
    await rig.run()
    rig.world.clock.advance(2 * DAY)
    await sweeper.run()
    assert rig.world.link("promo").state is State.FREE


async def test_without_a_policy_the_defaults_are_in_force_and_known_to_the_region() -> None:
    rig = Rig()
    assert rig.wrong.endswith("was not read yet")
    await rig.run()
    assert not rig.wrong
    assert rig.policy == Policy(own_hosts=OWN)
    assert policy_from_text(rig.world.kept.policies["here"]) == Policy()


async def test_a_policy_that_changes_is_in_force_kept_and_told_of_once() -> None:
    rig = Rig()
    rig.api.policy(grace="48h", ownHosts=["www.s.example"], linksPerNamespace=7)
    for _ in range(3):
        await rig.run()
    assert rig.policy.grace == 2 * DAY
    assert rig.policy.own_hosts == {"s.example", "www.s.example"}
    assert rig.loop.in_force.links_per_namespace == 7
    assert policy_from_text(rig.world.kept.policies["here"]).grace == 2 * DAY
    assert rig.api.said()[:2] == ("True", "InForce")
    assert rig.api.writes == [POLICY]
    rig.api.policy()
    await rig.run()
    assert rig.policy == Policy(own_hosts=OWN)
    assert not rig.loop.in_force.links_per_namespace
    assert rig.api.writes == [POLICY] * 2


async def test_a_policy_that_contradicts_itself_leaves_the_last_good_one_in_force() -> None:
    rig = Rig()
    rig.api.policy(grace="48h")
    await rig.run()
    rig.api.policy(grace="48h", quarantine="24h")
    for _ in range(2):
        await rig.run()
    assert rig.policy.grace == 2 * DAY
    assert rig.wrong == ""
    status, reason, message = rig.api.said()
    assert (status, reason) == ("False", "InvalidPolicy")
    assert "quarantine" in message
    assert policy_from_text(rig.world.kept.policies["here"]).quarantine == Policy().quarantine


async def test_with_a_wrong_policy_from_the_start_there_is_none_until_it_is_mended() -> None:
    rig = Rig()
    rig.api.policy(grace="1h")
    await rig.run()
    assert "grace" in rig.wrong
    assert rig.world.kept.policies == {}
    rig.api.policy(grace="24h")
    await rig.run()
    assert rig.wrong == ""
    assert rig.policy.grace == DAY


async def test_a_policy_that_another_region_does_not_have_is_told() -> None:
    rig = Rig()
    rig.world.kept.policies["there"] = policy_to_text(Policy(grace=3 * DAY))
    rig.api.policy()
    await rig.run()
    status, _, message = rig.api.said()
    assert status == "False"
    assert "there" in message
    rig.world.kept.policies["there"] = policy_to_text(Policy())
    rig.api.switch(reclaim="paused")  # which is no policy
    await rig.run()
    assert rig.api.said()[0] == "True"


async def test_a_policy_that_another_leader_kept_meanwhile_is_replaced() -> None:
    rig = Rig()
    rig.api.policy(grace="48h")
    await rig.run()
    rig.world.kept.policies["here"] = policy_to_text(Policy(grace=3 * DAY))
    await rig.run()
    assert policy_from_text(rig.world.kept.policies["here"]).grace == 2 * DAY
    assert rig.api.said()[0] == "True"


@pytest.mark.parametrize("error", [REFUSED, AWAY])
async def test_L4_who_leads_again_goes_by_no_policy_until_it_is_read_again(
    error: Exception,
) -> None:
    rig = Rig()
    rig.api.policy(grace="48h")
    await rig.run()
    rig.loop.forget()
    rig.api.policy(grace="72h")
    rig.api.error = error
    with pytest.raises(type(error)):
        await rig.loop.run(lambda: None)
    assert rig.wrong.endswith("was not read yet")
    rig.api.error = None
    await rig.run()
    assert (rig.wrong, rig.policy.grace) == ("", 3 * DAY)


@pytest.mark.parametrize("error", [REFUSED, AWAY])
async def test_a_policy_that_can_not_be_read_stays_in_force(error: Exception) -> None:
    rig = Rig()
    rig.api.policy(grace="48h")
    await rig.run()
    rig.api.error = error
    with pytest.raises(type(error)):
        await rig.loop.run(lambda: None)
    assert rig.policy.grace == 2 * DAY
    assert rig.wrong == ""


async def test_a_policy_is_in_force_though_the_store_can_not_keep_it_now() -> None:
    rig = Rig()
    rig.api.policy(grace="48h")

    async def gate(method: str, _done: bool) -> None:
        if down:
            raise StoreUnavailable("down")

    down = True
    rig.management = rig.world.management(gate)
    rig.loop = PolicyLoop(cast(Cluster, rig.api), rig.management, "here", OWN, rig.switches)
    with pytest.raises(StoreUnavailable):
        await rig.run()
    assert rig.policy.grace == 2 * DAY
    down = False
    await rig.run()
    assert policy_from_text(rig.world.kept.policies["here"]).grace == 2 * DAY


async def test_who_leads_no_more_writes_nothing_of_a_policy() -> None:
    rig = Rig()
    rig.api.policy(grace="48h")

    def deposed() -> None:
        raise Deposed("another operator may lead by now")

    with pytest.raises(Deposed):
        await rig.loop.run(deposed)
    assert rig.world.kept.policies == {}
    assert rig.api.writes == []


async def test_a_policy_changed_while_it_is_told_of_is_told_of_the_next_time() -> None:
    rig = Rig()
    rig.api.policy(grace="48h")
    patch = rig.api.patch

    async def late(*args: Any, **kwargs: Any) -> Any:
        rig.api.policy(grace="72h")
        rig.api.patch = patch  # type: ignore[method-assign]
        return await patch(*args, **kwargs)

    rig.api.patch = late  # type: ignore[method-assign]
    await rig.run()
    assert "status" not in rig.api.kept[POLICY]
    await rig.run()
    assert rig.policy.grace == 3 * DAY
    assert rig.api.said()[0] == "True"
