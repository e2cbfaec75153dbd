"""Proof (W7, R4): how often a caller waits for another region, told by Cassandra's own tracing.

    python -m tests.drills.round_trips

The store's adapter runs here as it does in the services, on the platform's Cassandra (`make up`)
with a keyspace of its own. Only its sessions are the drill's: they trace each statement. A round
trip is a kind of message that the coordinator sent to another data centre and had to have
answered, or a coordinator that is in another data centre itself.
"""

import argparse
import asyncio
import random
import re
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy
from cassandra.query import ConsistencyLevel, tuple_factory

from local.regions.layout import REGIONS
from local.stacks import store_address
from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.codes import SLOT_KEY_BYTES, SPACE, RandomCodes, SlotMap, encode
from shortlink.links.lifecycle import Actor, Create, Edit
from shortlink.links.policy import Policy
from shortlink.management import Management
from shortlink.redirect.service import RedirectService
from shortlink.store.cassandra.opening import over
from shortlink.store.cassandra.session import Level, Row, Statement
from shortlink.store.opening import prepare
from shortlink.store.port import LinkStore
from shortlink_operator.apply import Applier
from shortlink_operator.kinds import ShortLink, parse_manifest
from shortlink_operator.plan import Rest
from tests.drills.site import table, verdict
from tests.operator_rig import manifest
from tests.redirect_rig import ask

EXPECTED = {
    "birth": 0,
    "alias": 2,
    "change": 2,
    "object applied": 2,
    "object edited": 4,
    "object deleted": 4,
    "redirect, not cached": 0,
    "redirect, cached": 0,
    "unknown code of this region": 0,
    "unknown code of another": 1,
    "unknown code of none": 2,
    "unknown alias": 1,
}
"""An object's are those of its claim, whose birth needs none; later, two looks at the claim and
the change. A code of none is asked for in another region, and the map of slots is read anew for
it, once in 10 s: it may have an owner by now."""

KEYSPACE = "drill_round_trips"
T = TypeVar("T")

TIMES = 20
_SLOTS = Statement(f"SELECT slot, region FROM {KEYSPACE}.slots", Level.QUORUM)
TRACE_SECONDS = 10.0
CALL_SECONDS = 30.0

_SENT = re.compile(r"Sending (\w+_REQ) message to /([\d.]+):")
_WRITES = {"MUTATION_REQ", "PAXOS_COMMIT_REQ", "PAXOS2_COMMIT_REMOTE_REQ"}
"""Sent to all replicas, but waited for in another data centre only when the level asks for it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A statement: when it was sent and answered (seconds), and the round trips within it."""

    began: float
    ended: float
    rounds: int


def rounds_of(events: Iterable[tuple[str, str]], coordinator: str, local_level: bool) -> int:
    """Round trips that one statement waited for. `events` are (node, what it did)."""
    near = coordinator.rsplit(".", 1)[0]  # the regions' addresses differ before the last dot
    kinds = set()
    for node, did in events:
        sent = _SENT.match(did)
        if node == coordinator and sent and not sent[2].startswith(f"{near}."):
            kinds.add(sent[1])
    return len(kinds - _WRITES if local_level else kinds)


def waited(steps: Sequence[Step], until: float) -> int:
    """Round trips one after the other, up to `until`: what went on in parallel counts once, and
    what nobody waited for not at all.
    """
    best: list[tuple[float, int]] = []
    for step in sorted(steps, key=lambda step: step.began):
        if step.ended <= until:
            before = max((rounds for ended, rounds in best if ended <= step.began), default=0)
            best.append((step.ended, before + step.rounds))
    return max((rounds for _, rounds in best), default=0)


@dataclass(frozen=True, slots=True)
class Traced:
    """A statement that was sent and answered, its trace not yet read."""

    began: float
    ended: float
    result: Any
    local_level: bool
    away: bool

    def step(self) -> Step:
        """Read the trace. Blocks until Cassandra has written it."""
        trace = self.result.response_future.get_query_trace(
            TRACE_SECONDS, query_cl=ConsistencyLevel.ALL
        )
        events = [(str(event.source), event.description) for event in trace.events]
        rounds = rounds_of(events, str(trace.coordinator), self.local_level)
        return Step(self.began, self.ended, rounds + self.away)


_COMMAND: ContextVar[list[Traced] | None] = ContextVar("_COMMAND", default=None)
"""The statements of the command under way; what the adapter does in the background has none."""


class TracingSession:
    """A Session of the adapter's whose statements are traced. `home` is the caller's region."""

    def __init__(self, datacenter: str, host: str, home: str) -> None:
        self.datacenter = datacenter
        self._away = datacenter != home
        profile = ExecutionProfile(
            DCAwareRoundRobinPolicy(datacenter),
            request_timeout=CALL_SECONDS,
            row_factory=tuple_factory,
        )
        self._cluster = Cluster([host], execution_profiles={EXEC_PROFILE_DEFAULT: profile})
        self._connection = self._cluster.connect()

    async def execute(self, statement: Statement, values: Sequence[object] = ()) -> Sequence[Row]:
        return await asyncio.to_thread(self._run, statement, values, _COMMAND.get())

    async def applied(self, statement: Statement, values: Sequence[object] = ()) -> bool:
        return bool((await self.execute(statement, values))[0][0])

    async def close(self) -> None:
        await asyncio.to_thread(self._cluster.shutdown)

    def _run(
        self, statement: Statement, values: Sequence[object], command: list[Traced] | None
    ) -> Sequence[Row]:
        query = self._connection.prepare(statement.cql).bind(values)
        query.consistency_level = ConsistencyLevel.name_to_value[statement.level]
        if statement.serial is not None:
            query.serial_consistency_level = ConsistencyLevel.name_to_value[statement.serial]
        began = time.monotonic()
        result = self._connection.execute(query, trace=command is not None)
        if command is not None:
            local_level = statement.level.startswith("LOCAL_")
            command.append(Traced(began, time.monotonic(), result, local_level, self._away))
        return list(result)


async def counted(command: Callable[[], Awaitable[T]]) -> tuple[int, T]:
    """Carry out a command: the round trips to other regions that it waited for, and its result."""
    statements: list[Traced] = []
    _COMMAND.set(statements)
    result = await command()
    ended = time.monotonic()
    _COMMAND.set(None)
    steps = [await asyncio.to_thread(each.step) for each in tuple(statements)]
    return waited(steps, ended), result


async def measure(
    store: LinkStore, owners: Mapping[int, str], home: str, rng: random.Random
) -> dict[str, list[int]]:
    """Round trips of each command, TIMES each. `owners` are the regions of the slots."""
    slots = SlotMap(await store.install(secrets.token_bytes(SLOT_KEY_BYTES)))
    codes = RandomCodes(slots, await store.slots(), secrets.token_bytes)
    management = Management(
        store, Policy(), SYSTEM_CLOCK, codes.draw, lambda: secrets.token_hex(16)
    )
    applier = Applier(management, home)
    service = RedirectService(store, SYSTEM_CLOCK)
    by, counts = Actor("drill"), {what: list[int]() for what in EXPECTED}

    def target() -> str:
        return f"https://drill.example/{rng.getrandbits(48):x}"

    def wanted(alias: str = "") -> Create:
        token = management.new_token()
        return Create(by=by, code=alias, target=target(), token=token, custom=bool(alias))

    async def count(what: str, command: Callable[[], Awaitable[T]]) -> T:
        rounds, result = await counted(command)
        counts[what].append(rounds)
        return result

    def wished(name: str) -> ShortLink:
        link = parse_manifest(manifest(f"drill/{name}", {"target": target()}), name)
        assert isinstance(link, ShortLink)
        return link

    async def object_rests(what: str, reason: str, command: Callable[[], Awaitable[Rest]]) -> None:
        assert (outcome := await count(what, command)).reason == reason, outcome

    def unknown(whose: Callable[[str | None], bool]) -> str:
        while not whose(owners.get(slots.slot(code := encode(rng.randrange(SPACE))))):
            pass
        return code

    for _ in range(TIMES):
        code = (await count("birth", lambda: management.create_generated(wanted()))).code
        alias = f"t{rng.getrandbits(60):x}"
        await count("alias", partial(management.create, wanted(alias)))
        for each in (code, code, alias):  # a born link's first change, its second, an alias's
            edit = Edit(by=by, target=target())
            await count("change", partial(management.apply, each, edit))
        name = f"o{rng.getrandbits(60):x}"
        fresh, edited = wished(name), wished(name)
        for what, reason, command in (
            ("object applied", "Ready", partial(applier.settle, fresh, fresh=True)),
            ("object edited", "Ready", partial(applier.settle, edited)),
            ("object deleted", "Deleted", partial(applier.settle_gone, edited.key, "", None, "")),
        ):
            await object_rests(what, reason, command)
        for what in ("redirect, not cached", "redirect, cached"):
            assert (await count(what, partial(ask, service, f"/{code}"))).status == 302
        for what, code in (
            ("unknown code of this region", unknown(lambda owner: owner == home)),
            ("unknown code of another", unknown(lambda owner: owner not in (home, None))),
            ("unknown code of none", unknown(lambda owner: owner is None)),
            ("unknown alias", f"u{rng.getrandbits(60):x}"),
        ):
            await count(what, partial(ask, service, f"/{code}"))
    await service.close()
    return counts


async def drill(home: str, seed: int) -> int:
    """Count, print, judge."""
    await prepare(store_address(KEYSPACE), home, SYSTEM_CLOCK, None)
    sessions = {each.name: TracingSession(each.name, each.address, home) for each in REGIONS}
    store = await over(sessions, home, KEYSPACE, SYSTEM_CLOCK)
    try:
        taken = await sessions[home].execute(_SLOTS)
        counts = await measure(store, dict(taken), home, random.Random(seed))
    finally:
        await store.close()
        last = TracingSession(REGIONS[0].name, REGIONS[0].address, home)
        await last.execute(Statement(f"DROP KEYSPACE {KEYSPACE}", Level.LOCAL_ONE))
        await last.close()
    rows = [
        (what, len(each), min(each), max(each), EXPECTED[what]) for what, each in counts.items()
    ]
    print(f"asked in {home}, seed {seed}")
    print(table(("round trips to other regions", "n", "least", "most", "promised"), rows))
    broken = [
        f"{what}: {most} round trips, not {promised}"
        for what, _, _, most, promised in rows
        if most > promised
    ]
    return verdict(broken, "nobody waits for another region more often than was promised")


def main() -> None:
    """Count; exit 1 when something waited more often than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", default=REGIONS[0].name)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    sys.exit(asyncio.run(drill(args.home, args.seed)))


if __name__ == "__main__":
    main()
