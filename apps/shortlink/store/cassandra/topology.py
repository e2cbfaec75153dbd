"""Which region owns which slot, and which data centres are fit to be asked.

A data centre that was wiped or replaced, or was away for longer than Cassandra keeps hints, lacks
what was acknowledged elsewhere: it serves no reads and no births until it was repaired and a
person has admitted it (`shortlink prepare --admit`). It is known by

- a node that isn't among those recorded when it was admitted,
- its own copy of a marker that was written once, is read from itself alone, and so comes back
  by a repair only,
- its beat: every process lets each fit data centre keep the time. A majority in which the beat
  of one stands still for too long marks that one as unfit.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from shortlink.clock import Clock
from shortlink.links.codes import SLOTS, SlotMap
from shortlink.links.policy import HOUR, MINUTE, SECOND
from shortlink.store.cassandra.reach import Reach, together
from shortlink.store.cassandra.session import Level, Row, Sessions, Statement, Unreachable
from shortlink.store.port import StoreError, StoreUnavailable

TABLES = (
    # SERIAL, for ever.
    "CREATE TABLE IF NOT EXISTS {keyspace}.slots (slot int PRIMARY KEY, region text)",
    # SERIAL, for ever. `hosts` is a JSON list of the nodes admitted.
    """CREATE TABLE IF NOT EXISTS {keyspace}.datacenters (
        datacenter text PRIMARY KEY, hosts text, admission int)""",
    # What was seen since an admission; plain writes.
    """CREATE TABLE IF NOT EXISTS {keyspace}.beats (
        datacenter text, admission int, beat bigint, unfit text,
        PRIMARY KEY (datacenter, admission))""",
    # Read at LOCAL_ONE alone: a read in two data centres would repair what it has to find.
    "CREATE TABLE IF NOT EXISTS {keyspace}.markers (datacenter text PRIMARY KEY, at bigint)",
)

AWAY = 2 * HOUR + 50 * MINUTE
"""Cassandra keeps hints for a node that is away for three hours (max_hint_window)."""

SKEW = 5 * SECOND
"""How far this process's clock may be from the coordinators'."""

_LOOK = 2.0
_JUDGE = 10.0
_BEAT = 10 * SECOND
_RELOAD = 10 * SECOND
_VALID = 10 * SECOND
"""How long what was seen of a data centre holds while it is silent."""

_AT_ONCE = 1 * SECOND
"""A node that is gone is told of sooner than this; one that is busy or hangs is not."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """What is on record of a data centre; `unfit` says why it is not to be asked, or is empty."""

    hosts: frozenset[str]
    admission: int
    unfit: str


@dataclass(frozen=True, slots=True)
class _Sight:
    at: int
    offset: int
    unfit: str


class Topology:
    """What a process in the region `home` knows of its own and the other data centres."""

    def __init__(self, sessions: Sessions, home: str, keyspace: str, clock: Clock) -> None:
        self.home = home
        self._sessions = sessions
        self._clock = clock
        self._reach = Reach(sessions, home, clock)
        self._seen: dict[str, _Sight] = {}
        self._admitted: Mapping[str, _Admitted] = {}
        self._beat_at: int | None = None
        self._slots: dict[int, str] = {}
        self._map: SlotMap | None = None
        self._loaded_at = 0
        self._watching: asyncio.Task[None] | None = None
        self._take_slots = f"SELECT slot, region FROM {keyspace}.slots LIMIT {SLOTS}"
        self._take_key = f"SELECT value FROM {keyspace}.installation WHERE name = ?"
        self._take_admitted = (
            f"SELECT hosts, admission FROM {keyspace}.datacenters WHERE datacenter = ?"
        )
        self._take_beat = (
            f"SELECT beat, unfit FROM {keyspace}.beats WHERE datacenter = ? AND admission = ?"
        )
        self._put_beat = Statement(
            f"INSERT INTO {keyspace}.beats (datacenter, admission, beat) VALUES (?, ?, ?)",
            Level.LOCAL_QUORUM,
        )
        self._put_unfit = (
            f"INSERT INTO {keyspace}.beats (datacenter, admission, unfit) VALUES (?, ?, ?)"
        )
        self._take_marker = Statement(
            f"SELECT at FROM {keyspace}.markers WHERE datacenter = ?", Level.LOCAL_ONE
        )

    # Slots

    async def slots(self) -> Collection[int]:
        """The slots that the home region owns; none yet when it was never prepared."""
        await self._load()
        return [slot for slot, region in self._slots.items() if region == self.home]

    async def owner(self, code: str) -> str | None:
        """The region in which a seven-character code is born; None: its slot waits for one.

        Raises StoreUnavailable while the installation has no slot key.
        """
        if self._map is None or self._slots.get(self._map.slot(code)) is None:
            await self._load()
        regions = set(self._slots.values())
        if len(self._slots) == SLOTS and len(regions) == 1:
            return regions.pop()  # whatever the key
        if self._map is None:
            raise StoreUnavailable("no slot key was installed yet: start an API or an operator")
        return self._slots.get(self._map.slot(code))

    async def _load(self) -> None:
        now = self._clock.steady()
        known = self._map is not None and self._slots
        if known and now - self._loaded_at < _RELOAD:
            return
        slots, keys = await together(
            (self._anywhere(self._take_slots, ()), self._anywhere(self._take_key, ("slot_key",)))
        )
        # Ownership never moves and the key never changes: whatever was read is so.
        self._slots |= {int(slot): str(region) for slot, region in slots}
        if keys and self._map is None:
            self._map = SlotMap(bytes(keys[0][0]))
        self._loaded_at = now

    # Fitness

    def readers(self) -> Sequence[str]:
        """The data centres that are fit to be asked, home first."""
        fit = [name for name in sorted(self._sessions) if not self.unfit(name)]
        return sorted(fit, key=lambda name: name != self.home)

    def unfit(self, datacenter: str) -> str:
        """Why `datacenter` may not be asked now; empty when it may."""
        sight = self._seen.get(datacenter)
        return sight.unfit if sight and self._holds(sight) else "it has not answered lately"

    def _holds(self, sight: _Sight) -> bool:
        return self._clock.steady() - sight.at < _VALID

    async def may_write_births(self) -> None:
        """Raises StoreUnavailable when the home data centre is not fit for them."""
        if why := self.unfit(self.home):
            raise StoreUnavailable(f"no link can be created in {self.home}: {why}")

    def check_clock(self) -> None:
        """Raises StoreUnavailable when this clock is wrong by a majority of the coordinators."""
        offsets = [sight.offset for sight in self._seen.values() if self._holds(sight)]
        wrong = [offset for offset in offsets if abs(offset) > SKEW]
        if 2 * len(wrong) > len(offsets):
            raise StoreUnavailable(
                f"this machine's clock differs from most of Cassandra's by up to"
                f" {max(map(abs, wrong))} ms, over {SKEW} ms: nothing is moved by the clock until"
                " it is set right"
            )

    def watch(self) -> None:
        """Go on looking in the background, until `close`."""
        self._watching = asyncio.create_task(self._watch(), name="watch data centres")

    async def close(self) -> None:
        """Stop looking, without waiting for data centres that take their time."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def look(self) -> None:
        """Look at every data centre once. What can't be seen now keeps its last judgement."""
        await self._judge()
        await self._see_all()

    async def _watch(self) -> None:
        # Apart, for a judgement asks data centres that may take their time.
        await asyncio.gather(self._every(_LOOK, self._see_all), self._every(_JUDGE, self._judge))

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await act()
            except Exception:  # whoever stopped looking would take all for unfit, and for ever
                _log.exception("looking at the data centres failed unexpectedly")
            await asyncio.sleep(seconds)

    async def _see_all(self) -> None:
        now = self._clock.steady()
        beating = self._beat_at is None or now - self._beat_at >= _BEAT
        if beating:
            self._beat_at = now
        await together(
            self._see(name, admitted, beating) for name, admitted in self._admitted.items()
        )

    async def _judge(self) -> None:
        with suppress(StoreError):
            self._admitted = await self._judged()

    async def _judged(self) -> dict[str, _Admitted]:
        """What is on record; a data centre whose beat has long stood still is put on record."""
        try:
            beats = await self._records(Level.QUORUM)
        except Unreachable:
            # A minority can't tell whether it or the others are away.
            return {
                name: admitted
                for name, (admitted, _) in (await self._records(Level.LOCAL_QUORUM)).items()
            }
        newest = max(beat for _, beat in beats.values())
        judged = {}
        for name, (admitted, beat) in beats.items():
            if not admitted.unfit and beat and newest - beat > AWAY:
                why = f"it was away for over {AWAY // MINUTE} minutes"
                admitted = await self._put_on_record(name, admitted, why)
            judged[name] = admitted
        return judged

    async def _records(self, level: Level) -> dict[str, tuple[_Admitted, int]]:
        records = await together(self._record(name, level) for name in self._sessions)
        return dict(zip(self._sessions, records, strict=True))

    async def _record(self, name: str, level: Level) -> tuple[_Admitted, int]:
        rows = await self._reach.run(self._take_admitted, (name,), level)
        if not rows:
            return _Admitted(frozenset(), 0, "it is not on record: run `shortlink prepare`"), 0
        hosts, admission = rows[0]
        beats = await self._reach.run(self._take_beat, (name, admission), level)
        beat, unfit = beats[0] if beats else (None, None)
        return _Admitted(frozenset(json.loads(hosts)), admission, unfit or ""), beat or 0

    async def _see(self, name: str, admitted: _Admitted, beating: bool) -> None:
        session = self._sessions[name]
        before, began = self._clock.wall(), self._clock.steady()
        try:
            host, told = (await session.execute(Statement(_SELF, Level.LOCAL_ONE)))[0]
        except StoreError:
            # It may come back in a moment, wiped: what was seen of it before is void.
            if self._clock.steady() - began < _AT_ONCE:
                self._seen.pop(name, None)
            return
        try:
            offset = told - (before + self._clock.wall()) // 2
            unfit = admitted.unfit
            if not unfit and str(host) not in admitted.hosts:
                unfit = f"its node {host} is new or replaced"
            if not unfit and not await session.execute(self._take_marker, (name,)):
                unfit = "it has lost its data"
            if unfit:
                if admitted.admission and not admitted.unfit:
                    await self._put_on_record(name, admitted, unfit)
                unfit += f"; repair it, then `shortlink prepare --admit {name}`"
            elif beating and abs(offset) <= SKEW:
                await session.execute(self._put_beat, (name, admitted.admission, told))
        except StoreError:
            return
        self._seen[name] = _Sight(self._clock.steady(), offset, unfit)

    async def _put_on_record(self, name: str, admitted: _Admitted, why: str) -> _Admitted:
        values = (name, admitted.admission, why)
        await self._reach.run(self._put_unfit, values, Level.LOCAL_QUORUM)
        return _Admitted(admitted.hosts, admitted.admission, why)

    async def _anywhere(self, cql: str, values: Sequence[object]) -> Sequence[Row]:
        try:
            return await self._reach.run(cql, values, Level.QUORUM)
        except Unreachable:
            return await self._reach.run(cql, values, Level.LOCAL_QUORUM)


_SELF = "SELECT host_id, toUnixTimestamp(now()) FROM system.local"
