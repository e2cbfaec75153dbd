"""Conditional writes whose outcome is unknown (store/cassandra/conditional.py)."""

import random
from collections.abc import Callable, Sequence

import pytest

from shortlink.clock import HandClock
from shortlink.store.cassandra.conditional import DEADLINE, Conditional
from shortlink.store.cassandra.session import Level, Statement, Unreachable
from shortlink.store.port import StoreUnavailable
from tests.cassandra_rig import FakeSession, Fault, always, in_turn
from tests.samples import NOW

INSERT = Statement(
    "INSERT INTO links.installation (name, value) VALUES (?, ?) IF NOT EXISTS",
    Level.LOCAL_QUORUM,
    Level.SERIAL,
)
SELECT = Statement("SELECT value FROM links.installation WHERE name = ?", Level.SERIAL)


class Writer:
    """Writes its mark, with a clock that goes on only while it pauses."""

    def __init__(self, session: FakeSession, mark: str = "mine") -> None:
        self.session = session
        self.mark = mark
        self.clock = HandClock(NOW)
        self.pauses: list[float] = []
        self.conditional = Conditional(self.clock.clock, random.Random(1).randbytes, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(int(seconds * 1_000))

    async def read(self) -> object:
        rows = await self.session.execute(SELECT, ("name",))
        return rows[0][0] if rows else None

    async def write(self) -> tuple[bool, object]:
        return await self.conditional.write(self.session, INSERT, ("name", self.mark), self.read)

    @property
    def held(self) -> object:
        row = self.session.tables["installation"].get(("name",))
        return row and row["value"]


def writer(faults: Callable[[Statement], Fault | None] = lambda _: None) -> Writer:
    return Writer(FakeSession("us-east-1", faults=faults))


async def test_a_write_that_was_applied_reads_nothing() -> None:
    one = writer()
    assert await one.write() == (True, None)
    assert one.held == "mine"
    assert len(one.session.log) == 1


async def test_a_refused_write_is_told_whose_row_it_is() -> None:
    one = writer()
    await Writer(one.session, "another's").write()
    assert await one.write() == (False, "another's")
    assert one.held == "another's"
    assert one.pauses == []


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE])
async def test_a_write_that_timed_out_is_repeated_until_it_is_known_L5(fault: Fault) -> None:
    one = writer(in_turn("INSERT", fault, fault))
    assert await one.write() in [(True, None), (False, "mine")]
    assert one.held == "mine"
    assert {tuple(values) for _, values in one.session.log if len(values) == 2} == {
        ("name", "mine")
    }


async def test_a_write_that_timed_out_and_lost_is_lost_L5() -> None:
    one = writer(in_turn("INSERT", Fault.LOST))
    another = Writer(one.session, "another's")
    one.conditional._sleep = lambda _: another.write()  # wins while this one pauses
    assert await one.write() == (False, "another's")


async def test_a_read_that_fails_after_a_refusal_leaves_it_unknown_and_is_repeated_L5() -> None:
    one = writer(in_turn("", Fault.LATE, None, Fault.LOST))
    assert await one.write() == (False, "mine")
    assert [statement.cql.split()[0] for statement, _ in one.session.log] == [
        *("INSERT", "INSERT", "SELECT"),
        *("INSERT", "SELECT"),
    ]


async def test_a_write_that_stays_unknown_is_given_up_and_may_have_happened() -> None:
    one = writer(always("", Fault.LATE))
    began = one.clock.clock.steady()
    with pytest.raises(StoreUnavailable, match=r"not known .* us-east-1 .*repeat the same call"):
        await one.write()
    assert one.clock.clock.steady() - began <= DEADLINE
    assert one.held == "mine"


async def test_pauses_grow_to_a_cap_and_are_not_all_alike() -> None:
    one = writer(always(""))
    with pytest.raises(StoreUnavailable):
        await one.write()
    assert one.pauses[:4] == sorted(one.pauses[:4])
    assert all(0.025 <= pause <= 0.8 for pause in one.pauses)
    assert len(set(one.pauses)) == len(one.pauses) >= 7


async def test_a_coordinator_that_hangs_is_given_up_at_the_deadline() -> None:
    one = writer(in_turn("", Fault.LOST, Fault.HANGS))

    async def almost_to_the_deadline(_: float) -> None:
        one.clock.advance(DEADLINE - 20)

    one.conditional._sleep = almost_to_the_deadline
    with pytest.raises(StoreUnavailable):
        await one.write()


async def test_what_is_no_doubt_about_the_outcome_is_not_repeated() -> None:
    one = writer()

    async def refuse(statement: Statement, values: Sequence[object] = ()) -> bool:
        raise ValueError("no text")

    one.session.applied = refuse  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no text"):
        await one.write()
    assert one.pauses == []


def test_unreachable_is_unavailable_to_callers() -> None:
    assert issubclass(Unreachable, StoreUnavailable)
