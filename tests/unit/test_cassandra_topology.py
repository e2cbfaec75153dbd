"""Who owns a slot, and that a data centre that lacks data is not asked (DESIGN 4, L5)."""

import asyncio
from collections.abc import Sequence

import pytest

from shortlink.clock import HandClock
from shortlink.links.codes import SLOTS, SlotMap, encode
from shortlink.links.policy import HOUR, MINUTE, SECOND
from shortlink.store.cassandra import topology as topology_module
from shortlink.store.cassandra.address import Address
from shortlink.store.cassandra.preparing import SLOTS_EACH, Preparing
from shortlink.store.cassandra.session import Row, Statement, Unreachable
from shortlink.store.cassandra.topology import AWAY, Topology
from shortlink.store.port import StoreUnavailable
from tests.samples import NOW
from tests.unit.cassandra_ring import DATACENTERS, Ring

KEY = b"k" * 16
PLACE = Address({name: (f"host-{name}",) for name in DATACENTERS}, "links")


class Site:
    """A prepared keyspace in three regions."""

    def __init__(self) -> None:
        self.clock = HandClock(NOW)
        self.ring = Ring(self.clock.clock)
        self.views = {name: self.view(name) for name in DATACENTERS}

    def view(self, home: str) -> Topology:
        return Topology(self.ring.sessions, home, "links", self.clock.clock)

    async def prepare(self, admit: str | None = None) -> str:
        preparing = Preparing(self.ring.sessions, "us", PLACE, self.clock.clock)
        return await preparing.run(admit)

    async def look(self, *homes: str) -> None:
        self.clock.advance(10 * SECOND)
        for home in homes or DATACENTERS:
            await self.views[home].look()

    async def pass_(self, milliseconds: int) -> None:
        """Time goes on in every region that is not away."""
        end = self.clock.at + milliseconds
        while self.clock.at < end:
            self.clock.advance(5 * MINUTE)
            await self.look(*(name for name in DATACENTERS if name not in self.ring.away))

    def readers(self, home: str = "us") -> Sequence[str]:
        return self.views[home].readers()


@pytest.fixture
async def site() -> Site:
    site = Site()
    await site.prepare()
    site.ring.put("installation", ("slot_key",), {"": True, "value": KEY})
    await site.look()
    return site


async def test_each_region_owns_eight_slots_and_the_rest_wait_G4(site: Site) -> None:
    owned = [set(await view.slots()) for view in site.views.values()]
    assert [len(slots) for slots in owned] == [SLOTS_EACH] * 3
    assert len(set.union(*owned)) == 3 * SLOTS_EACH


async def test_a_codes_owner_is_its_slots_whoever_asks_G4(site: Site) -> None:
    slots = SlotMap(KEY)
    owned = {slot: name for name, view in site.views.items() for slot in await view.slots()}
    for code in map(encode, range(200)):
        owners = {await view.owner(code) for view in site.views.values()}
        assert owners == {owned.get(slots.slot(code))}


async def test_without_a_slot_key_no_owner_is_named_G4() -> None:
    site = Site()
    await site.prepare()
    with pytest.raises(StoreUnavailable, match="slot key"):
        await site.views["us"].owner(encode(1))


async def test_where_one_region_owns_all_the_key_does_not_matter_G4() -> None:
    site = Site()
    preparing = Preparing(site.ring.sessions, "us", PLACE, site.clock.clock)
    await preparing.run(None, dict.fromkeys(range(SLOTS), "us"))
    assert await site.views["us"].owner(encode(1)) == "us"


async def test_slots_of_a_region_that_came_later_are_found_G4(site: Site) -> None:
    view, slots = site.views["us"], SlotMap(KEY)
    code = next(c for c in map(encode, range(500)) if slots.slot(c) == SLOTS - 1)
    assert await view.owner(code) is None
    site.ring.put("slots", (SLOTS - 1,), {"": True, "region": "sa"})
    site.clock.advance(10 * SECOND)
    assert await view.owner(code) == "sa"


async def test_fit_data_centres_are_asked_home_first_S1(site: Site) -> None:
    assert site.readers("us") == ["us", "ap", "eu"]
    assert site.readers("ap") == ["ap", "eu", "us"]
    await site.views["us"].may_write_births()


async def test_nothing_is_asked_before_it_was_looked_at_L5(site: Site) -> None:
    assert site.view("us").readers() == []
    with pytest.raises(StoreUnavailable, match="us"):
        await site.view("us").may_write_births()


async def test_what_has_not_answered_lately_is_looked_at_first_L5(site: Site) -> None:
    site.ring.away = {"ap"}
    await site.look("us")
    assert site.readers() == ["us", "eu"]
    site.ring.away = set()
    await site.look("us")
    assert site.readers() == ["us", "ap", "eu"]


async def test_a_data_centre_that_was_gone_is_looked_at_before_it_is_asked_again_L5(
    site: Site,
) -> None:
    site.ring.away = {"us"}
    await site.views["us"].look()
    await site.views["eu"].look()
    site.ring.wipe("us")
    site.ring.away = set()
    assert "us" not in [*site.readers("us"), *site.readers("eu")]
    await site.views["us"].look()
    assert "us" not in site.readers("us")


async def test_a_data_centre_that_is_silent_is_asked_for_a_while_yet(site: Site) -> None:
    silent = site.ring.sessions["us"]

    async def execute(statement: Statement, values: Sequence[object] = ()) -> Sequence[Row]:
        site.clock.advance(2 * SECOND)
        raise Unreachable("it did not answer in time")

    silent.execute = execute  # type: ignore[method-assign]
    await site.views["eu"].look()
    assert "us" in site.readers("eu")
    site.clock.advance(10 * SECOND)
    assert "us" not in site.readers("eu")


async def test_a_wiped_data_centre_is_asked_for_nothing_until_admitted_L5(site: Site) -> None:
    site.ring.wipe("us")
    await site.look()
    for home in DATACENTERS:
        assert "us" not in site.readers(home)
    with pytest.raises(StoreUnavailable, match=r"lost its data.*prepare --admit us"):
        await site.views["us"].may_write_births()
    with pytest.raises(StoreUnavailable, match="rebuild"):
        await site.prepare(admit="us")
    site.ring.copy("eu", "us")
    await site.look()
    assert "us" not in site.readers()  # repaired, but nobody has said so
    assert "admitted us" in await site.prepare(admit="us")
    await site.look()
    assert site.readers() == ["us", "ap", "eu"]
    await site.views["us"].may_write_births()


async def test_a_replaced_node_is_asked_for_nothing_until_admitted_L5(site: Site) -> None:
    site.ring.hosts["ap"] = site.ring.hosts["eu"]
    await site.look()
    assert site.readers() == ["us", "eu"]
    await site.prepare(admit="ap")
    await site.look()
    assert site.readers() == ["us", "ap", "eu"]


async def test_one_that_was_away_longer_than_hints_last_is_not_asked_L5(site: Site) -> None:
    site.ring.away = {"ap"}
    await site.pass_(AWAY + 10 * MINUTE)
    site.ring.away = set()
    await site.look()
    await site.look()
    for home in DATACENTERS:
        assert site.readers(home) == [name for name in site.readers(home) if name != "ap"] != []
    await site.prepare(admit="ap")
    await site.look()
    assert site.readers() == ["us", "ap", "eu"]


async def test_one_that_was_away_for_less_is_asked_again_L5(site: Site) -> None:
    site.ring.away = {"ap"}
    await site.pass_(2 * HOUR)
    site.ring.away = set()
    await site.look()
    assert site.readers() == ["us", "ap", "eu"]


async def test_when_all_stood_still_together_nobody_missed_anything_L5(site: Site) -> None:
    site.clock.advance(12 * HOUR)
    await site.look()
    assert site.readers() == ["us", "ap", "eu"]


async def test_a_minority_judges_nobody_L5(site: Site) -> None:
    site.ring.away = {"ap", "eu"}
    await site.pass_(AWAY + HOUR)
    assert site.readers("us") == ["us"]
    unfit = [row for row in site.ring.live("us", "beats").values() if row.get("unfit")]
    assert unfit == []


async def test_a_clock_that_is_wrong_by_most_coordinators_moves_nothing_W5(site: Site) -> None:
    view = site.views["us"]
    view.check_clock()
    site.ring.skew = 6 * SECOND
    await site.look()
    with pytest.raises(StoreUnavailable, match="6000 ms"):
        view.check_clock()
    site.ring.skew = -4 * SECOND
    await site.look()
    view.check_clock()


async def test_coordinators_that_are_away_vouch_for_no_clock_W5(site: Site) -> None:
    site.ring.away = {"ap", "eu"}
    site.ring.skew = 6 * SECOND
    await site.look("us")
    with pytest.raises(StoreUnavailable, match="6000 ms"):
        site.views["us"].check_clock()


async def test_closing_waits_for_no_data_centre_that_hangs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def hangs(*_: object) -> Sequence[Row]:
        asked.set()
        return await asyncio.Future()

    monkeypatch.setattr(site.ring.sessions["eu"], "execute", hangs)
    view = site.views["us"]
    view.watch()
    async with asyncio.timeout(10):
        await asked.wait()
        await view.close()
        await view.close()


async def test_looking_goes_on_after_what_nobody_expected_L5(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_module, "_LOOK", 0.001)
    session, looked = site.ring.sessions["us"], asyncio.Event()
    execute, times = session.execute, iter(range(3))

    async def broken(statement: Statement, values: Sequence[object] = ()) -> Sequence[Row]:
        if "system.local" in statement.cql and next(times, None) is not None:
            return []
        looked.set()
        return await execute(statement, values)

    monkeypatch.setattr(session, "execute", broken)
    view = site.views["us"]
    view.watch()
    site.clock.advance(10 * SECOND)
    async with asyncio.timeout(30):
        while "us" not in view.readers():
            looked.clear()
            await looked.wait()
            await asyncio.sleep(0)
    await view.close()


async def test_a_process_with_a_wrong_clock_keeps_no_time_for_others_L5(site: Site) -> None:
    before = site.ring.live("us", "beats")
    site.ring.skew = 5 * HOUR
    await site.look()
    assert site.ring.live("us", "beats") == before


async def test_with_no_data_centre_at_all_owners_are_unknown_S1(site: Site) -> None:
    site.ring.away = set(DATACENTERS)
    with pytest.raises(Unreachable):
        await site.view("us").slots()
