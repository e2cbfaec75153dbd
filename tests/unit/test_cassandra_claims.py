"""Claims under time-outs and races (store/cassandra/claims.py)."""

import random
from dataclasses import replace
from typing import Any

import pytest

from shortlink.clock import HandClock
from shortlink.store.cassandra.claims import BUCKETS, Claims
from shortlink.store.cassandra.conditional import Conditional
from shortlink.store.cassandra.session import Level, Statement
from shortlink.store.port import Claim, StoreUnavailable
from tests.cassandra_rig import KEYSPACE, FakeSession, Fault, always, in_turn, serial_levels
from tests.samples import NOW

HELD = Claim("team/promo", "AbC1234", 1, "token")
NEW = replace(HELD, code="new1234", token="next")
WHOSE = replace(HELD, cluster="us-east-1", uid="0b29f6b2", retain=True)


@pytest.fixture
def session() -> FakeSession:
    return FakeSession("us-east-1")


@pytest.fixture
def claims(session: FakeSession) -> Claims:
    clock = HandClock(NOW)

    async def sleep(seconds: float) -> None:
        clock.advance(int(seconds * 1_000))

    return Claims(
        lambda: session, KEYSPACE, Conditional(clock.clock, random.Random(1).randbytes, sleep)
    )


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE])
async def test_a_claim_that_timed_out_is_known_in_the_end_L5(
    claims: Claims, session: FakeSession, fault: Fault
) -> None:
    session.faults = in_turn("INSERT", fault)
    assert await claims.claim(HELD) == HELD
    assert await claims.find(HELD.key) == HELD


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE])
@pytest.mark.parametrize(
    ("held", "new"),
    [
        (HELD, NEW),
        (HELD, None),
        (HELD, WHOSE),
        (WHOSE, None),
        (WHOSE, replace(WHOSE, uid="of another")),
        (WHOSE, replace(WHOSE, cluster="eu-west-1")),
        (WHOSE, replace(WHOSE, retain=False)),
    ],
)
async def test_a_replacement_that_timed_out_is_known_in_the_end_L5(
    claims: Claims, session: FakeSession, fault: Fault, held: Claim, new: Claim | None
) -> None:
    await claims.claim(held)
    session.faults = in_turn(" IF code", fault)
    assert await claims.reclaim(held, new) is True
    assert await claims.find(held.key) == new


@pytest.mark.parametrize(
    "others", [{"uid": "third"}, {"cluster": "ap"}, {"retain": False}], ids=str
)
async def test_a_replacement_that_timed_out_and_lost_is_known_by_every_field_L5(
    claims: Claims, session: FakeSession, others: dict[str, Any]
) -> None:
    new = replace(WHOSE, uid="of another")
    await claims.claim(WHOSE)

    def another_is_faster(statement: Statement) -> Fault | None:
        if " IF code" not in statement.cql or len(session.sent(" IF code")) > 1:
            return None
        [row] = session.tables["claims"].values()
        row.update({"uid": new.uid} | others)
        return Fault.LOST

    session.faults = another_is_faster
    assert await claims.reclaim(WHOSE, new) is False
    assert await claims.find(WHOSE.key) == replace(new, **others)


async def test_a_claim_of_version_1_is_nobodys_until_it_is_taken_over_S6(
    claims: Claims, session: FakeSession
) -> None:
    await claims.claim(HELD)
    [row] = session.tables["claims"].values()
    assert set(row) == {"bucket", "key", "code", "generation", "creation"}  # nulls are tombstones
    assert await claims.find(HELD.key) == HELD
    assert await claims.page("", 10) == [HELD]
    assert await claims.reclaim(replace(HELD, retain=True), NEW) is False
    assert await claims.reclaim(HELD, WHOSE) is True
    assert await claims.page("", 10) == [WHOSE]


async def test_a_claim_refused_by_one_that_is_gone_by_then_is_made_L5(
    claims: Claims, session: FakeSession
) -> None:
    await claims.claim(HELD)
    released: list[object] = []

    def release(statement: Statement) -> None:
        if "SELECT" in statement.cql and not released:
            released.append(session.tables["claims"].popitem())

    session.faults = release
    assert await claims.claim(NEW) == NEW
    session.faults = lambda _: None
    assert await claims.find(NEW.key) == NEW


async def test_a_claim_waits_where_a_majority_cannot_be_reached(
    claims: Claims, session: FakeSession
) -> None:
    session.faults = always("claims")
    with pytest.raises(StoreUnavailable):
        await claims.claim(HELD)
    with pytest.raises(StoreUnavailable):
        await claims.find(HELD.key)


async def test_pages_join_the_buckets_in_the_order_of_keys(claims: Claims) -> None:
    held = [Claim(f"team/{n:03}", f"code{n}", 1, str(n)) for n in range(2 * BUCKETS)]
    for claim in held:
        await claims.claim(claim)
    assert await claims.page("", 50) == held[:50]
    assert await claims.page("team/049", 500) == held[50:]


async def test_claims_have_one_serial_level(claims: Claims, session: FakeSession) -> None:
    await claims.claim(HELD)
    await claims.claim(NEW)
    await claims.reclaim(HELD, NEW)
    await claims.reclaim(NEW, None)
    assert serial_levels(session) == {"claims": {Level.SERIAL}}
