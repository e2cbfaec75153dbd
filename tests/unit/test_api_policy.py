"""The API goes by the policy in force in its region (api/process.py)."""

from dataclasses import replace

import pytest

from shortlink.api.process import follow_policy
from shortlink.links.policy import DAY, Policy
from shortlink.management import Management
from shortlink.store.port import StoreUnavailable, StoreUnsuitable
from shortlink.store.record import policy_to_text
from tests.fakes import FailsAt
from tests.samples import NOW, a_create
from tests.world import World

OURS = frozenset({"sho.rt"})
BRIEF = Policy(default_ttl=2 * DAY, own_hosts=frozenset({"other.example"}))


@pytest.fixture
def world() -> World:
    return World(Policy(default_ttl=7 * DAY))


@pytest.fixture
def management(world: World) -> Management:
    return world.management()


@pytest.mark.parametrize("region", ["us-east-1", None])
async def test_W4_a_link_is_made_by_the_policy_of_its_region(
    world: World, management: Management, region: str | None
) -> None:
    store = management.store
    await store.keep_policy("eu-west-1", policy_to_text(replace(BRIEF, default_ttl=DAY)))
    await store.keep_policy(region or "", policy_to_text(BRIEF))
    await follow_policy(management, region, OURS)
    assert management.policy == replace(BRIEF, own_hosts=OURS | BRIEF.own_hosts)
    assert (await management.create(a_create())).expires_at == NOW + 2 * DAY
    await store.keep_policy(region or "", policy_to_text(replace(BRIEF, default_ttl=3 * DAY)))
    await follow_policy(management, region, OURS)
    assert management.policy.default_ttl == 3 * DAY


async def test_where_no_policy_is_kept_the_default_one_is_in_force(management: Management) -> None:
    await management.store.keep_policy("eu-west-1", policy_to_text(BRIEF))
    await follow_policy(management, "us-east-1", OURS)
    assert management.policy == Policy(own_hosts=OURS)


async def test_the_last_policy_stays_while_the_store_does_not_answer(world: World) -> None:
    management = world.management(FailsAt(1, False, StoreUnavailable("away")))
    before = management.policy
    with pytest.raises(StoreUnavailable):
        await follow_policy(management, "us-east-1", OURS)
    assert management.policy == before


async def test_the_last_policy_stays_beside_one_of_another_release(management: Management) -> None:
    before = management.policy
    await management.store.keep_policy("us-east-1", '{"own_hosts": [], "grace_of_v9": 1}')
    with pytest.raises(StoreUnsuitable, match=r"us-east-1 is of another release.*run that"):
        await follow_policy(management, "us-east-1", OURS)
    assert management.policy == before
