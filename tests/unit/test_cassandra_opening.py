"""Preparing a keyspace: safe to repeat, and never against a newer release (S6)."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid5

import pytest

from shortlink.clock import SYSTEM_CLOCK, HandClock
from shortlink.store.cassandra import schema
from shortlink.store.cassandra.address import Address
from shortlink.store.cassandra.preparing import Preparing
from shortlink.store.cassandra.session import Row, Statement, Unreachable
from shortlink.store.opening import open_store
from shortlink.store.port import StoreUnavailable, StoreUnsuitable
from tests.samples import NOW
from tests.unit.cassandra_ring import DATACENTERS, Ring

PLACE = Address({name: (f"host-{name}",) for name in DATACENTERS}, "links")


async def no_pause(_seconds: float) -> None:
    pass


class Site:
    def __init__(self) -> None:
        self.clock = HandClock(NOW)
        self.ring = Ring(self.clock.clock)
        self.place = PLACE

    async def prepare(self, home: str = "us", admit: str | None = None) -> str:
        preparing = Preparing(self.ring.sessions, home, self.place, self.clock.clock, no_pause)
        return await preparing.run(admit)

    def slots(self) -> dict[object, object]:
        return {key: row["region"] for key, row in self.ring.live("us", "slots").items()}


@pytest.fixture
def site() -> Site:
    return Site()


async def test_all_tables_are_made_in_every_data_centre_S6(site: Site) -> None:
    assert await site.prepare() == "links is ready (9 tables made, 1 migrated)"
    assert len(site.ring.tables) == len(set(site.ring.tables)) == 9
    assert set(site.ring.replication) == {*DATACENTERS, "class"}


async def test_preparing_again_makes_nothing_and_moves_no_slot_S6(site: Site) -> None:
    await site.prepare()
    slots = site.slots()
    assert await site.prepare("eu") == "links is ready (0 tables made, 0 migrated)"
    assert site.slots() == slots


async def test_what_a_crash_left_out_is_made_S6(site: Site) -> None:
    await site.prepare()
    site.ring.tables.remove("hints")
    assert await site.prepare() == "links is ready (1 tables made, 0 migrated)"
    assert "hints" in site.ring.tables


def altered(site: Site) -> list[str]:
    return [cql for cql, _ in site.ring.statements if cql.startswith("ALTER TABLE")]


def version(site: Site) -> object:
    return site.ring.live("us", "installation")["schema_version",]["value"]


@pytest.fixture
async def of_version_1(site: Site) -> Site:
    await site.prepare()
    site.ring.put("installation", ("schema_version",), {"": True, "value": b"1"})
    site.ring.statements.clear()
    return site


async def test_a_keyspace_of_version_1_is_brought_to_this_releases_S6(of_version_1: Site) -> None:
    assert await of_version_1.prepare() == "links is ready (0 tables made, 1 migrated)"
    assert altered(of_version_1) == [
        "ALTER TABLE links.claims ADD IF NOT EXISTS (cluster text, uid text, retain boolean)"
    ]
    assert version(of_version_1) == str(schema.VERSION).encode()
    assert await of_version_1.prepare("eu") == "links is ready (0 tables made, 0 migrated)"
    assert len(altered(of_version_1)) == 1


async def test_a_version_is_on_record_only_after_its_tables_are_S6(
    of_version_1: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = of_version_1.ring.sessions["ap"]
    execute = session.execute

    async def no_ddl(statement: Statement, values: Sequence[object] = ()) -> Sequence[Row]:
        if statement.cql.startswith("ALTER"):
            raise Unreachable("cut off")
        return await execute(statement, values)

    with monkeypatch.context() as patch:
        patch.setattr(session, "execute", no_ddl)
        with pytest.raises(StoreUnavailable):
            await of_version_1.prepare()
    assert version(of_version_1) == b"1"
    assert await of_version_1.prepare() == "links is ready (0 tables made, 1 migrated)"


async def test_three_regions_may_migrate_at_once_S6(of_version_1: Site) -> None:
    await asyncio.gather(*(of_version_1.prepare(home) for home in DATACENTERS))
    assert version(of_version_1) == str(schema.VERSION).encode()


async def test_a_newer_release_that_migrates_faster_is_noticed_S6(
    of_version_1: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = of_version_1.ring.sessions["us"]
    applied = session.applied

    async def too_late(statement: Statement, values: Sequence[object] = ()) -> bool:
        if statement.cql.startswith("UPDATE links.installation"):
            newer = str(schema.VERSION + 1).encode()
            of_version_1.ring.put("installation", ("schema_version",), {"": True, "value": newer})
        return await applied(statement, values)

    monkeypatch.setattr(session, "applied", too_late)
    with pytest.raises(StoreUnsuitable, match="newer release"):
        await of_version_1.prepare()


async def test_three_regions_may_prepare_at_once_S6(site: Site) -> None:
    await asyncio.gather(*(site.prepare(home) for home in DATACENTERS))
    owners = list(site.slots().values())
    assert sorted(map(str, owners)) == [name for name in DATACENTERS for _ in range(8)]
    made = [cql for cql, _ in site.ring.statements if cql.startswith("CREATE TABLE")]
    assert made


async def test_a_ready_keyspace_passes_while_one_is_away_S6(site: Site) -> None:
    await site.prepare()
    site.ring.away = {"ap"}
    assert await site.prepare() == "links is ready (0 tables made, 0 migrated)"


async def test_a_first_time_needs_every_data_centre_S6(site: Site) -> None:
    site.ring.away = {"ap"}
    with pytest.raises(StoreUnavailable):
        await site.prepare()


@pytest.mark.parametrize("newer", [str(schema.VERSION + 1).encode(), b"2.0", b"0", b"", b"\xff"])
async def test_a_keyspace_of_a_newer_release_is_left_alone_S6(site: Site, newer: bytes) -> None:
    await site.prepare()
    site.ring.put("installation", ("schema_version",), {"": True, "value": newer})
    site.ring.tables.remove("hints")
    with pytest.raises(StoreUnsuitable, match="newer release"):
        await site.prepare()
    assert "hints" not in site.ring.tables


@pytest.mark.parametrize("release", ["3.11.19", "4.0.20"])
async def test_an_older_cassandra_is_refused_before_anything_is_made_S6(
    site: Site, release: str
) -> None:
    site.ring.release = release
    with pytest.raises(StoreUnsuitable, match=f"Cassandra {release}.*upgrade"):
        await site.prepare()
    assert site.ring.tables == []


@pytest.mark.parametrize("release", ["4.1.0", "5.0.8", "10.0", None])
async def test_a_newer_cassandra_will_do_S6(site: Site, release: str | None) -> None:
    site.ring.release = release
    await site.prepare()


async def test_every_node_is_counted_and_put_on_record_S1(site: Site) -> None:
    for name, hosts in site.ring.hosts.items():
        hosts += [uuid5(hosts[0], "second"), uuid5(hosts[0], "third")]
        site.place = replace(
            site.place, datacenters={**site.place.datacenters, name: ("h1", "h2", "h3")}
        )
    await site.prepare()
    assert "'us': 3" in next(cql for cql, _ in site.ring.statements if "CREATE KEYSPACE" in cql)
    on_record = site.ring.live("eu", "datacenters")
    for name, hosts in site.ring.hosts.items():
        assert set(json.loads(str(on_record[name,]["hosts"]))) == set(map(str, hosts))


async def test_no_table_is_made_before_all_the_named_nodes_have_joined_S1(site: Site) -> None:
    site.place = replace(site.place, datacenters={**PLACE.datacenters, "us": ("h1", "h2")})
    with pytest.raises(StoreUnavailable, match="1 of 2 nodes of us"):
        await site.prepare()
    assert site.ring.tables == []


@pytest.mark.parametrize("replicas", [{"us": "1", "eu": "1", "ap": "2"}, {"us": "1", "eu": "1"}])
async def test_unequal_replicas_are_refused_S1(site: Site, replicas: dict[str, object]) -> None:
    await site.prepare()
    site.ring.replication = {"class": "Network", **replicas}
    with pytest.raises(StoreUnsuitable, match="same number"):
        await site.prepare()


async def test_a_repeated_preparing_does_not_bring_back_a_lost_marker_L5(site: Site) -> None:
    await site.prepare()
    site.ring.wipe("ap")
    await site.prepare()
    assert site.ring.live("ap", "markers") == {}


async def test_only_a_data_centre_of_the_address_can_be_admitted(site: Site) -> None:
    with pytest.raises(StoreUnsuitable, match="mars"):
        await site.prepare(admit="mars")


@pytest.mark.parametrize("native", [False, True])
async def test_with_cassandra_stopped_the_store_opens_and_says_unavailable_S1(native: bool) -> None:
    nobody = "cassandra://us=127.255.255.254/links"
    store = await open_store(nobody, "us", SYSTEM_CLOCK, native=native)
    try:
        for call in (store.get("AbC1234"), store.slots(), store.due(NOW, 1), store.pending(1)):
            with pytest.raises(StoreUnavailable):
                await call
    finally:
        await store.close()
