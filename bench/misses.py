"""A redirect that no cache has, through each of the two Cassandra drivers, in turns (R4).

    python -m bench.misses

Needs the local platform's Cassandra (`make up`). All of a redirect but its connection: the
service, the store's adapter, the driver, a read of both tables in the region's data centre.
What counts is this process's time for one; the rate also says what the neighbours did.
"""

import asyncio
import json
import platform
import secrets
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path

import uvloop

from local.regions.layout import REGIONS
from local.stacks import store_address
from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.codes import Entropy
from shortlink.links.model import Link, State
from shortlink.redirect.service import RedirectService
from shortlink.store.cassandra.driver import open_session
from shortlink.store.cassandra.native import open_native_session
from shortlink.store.cassandra.opening import over
from shortlink.store.cassandra.session import Level, Session, Statement
from shortlink.store.opening import prepare
from shortlink.store.port import LinkStore
from tests.redirect_rig import ask

HOME = REGIONS[0].name
KEYSPACE = "bench_misses"

LINKS = 2_000
READS = 4_000
AT_ONCE = 64
ROUNDS = 5
DROP_SECONDS = 30.0

Opener = Callable[[str, Sequence[str], Entropy], Awaitable[Session]]
DRIVERS: dict[str, Opener] = {
    "cassandra-driver": open_session,
    "acsylla": open_native_session,
}


@dataclass(frozen=True, slots=True)
class Turn:
    """Redirects per second, this process's time for one in microseconds, and p99 in ms."""

    rate: float
    cost: float
    p99: float


async def _open(opener: Opener) -> LinkStore:
    sessions = {
        each.name: await opener(each.name, [each.address], secrets.token_bytes) for each in REGIONS
    }
    return await over(sessions, HOME, KEYSPACE, SYSTEM_CLOCK)


async def _fill(store: LinkStore) -> list[str]:
    now = SYSTEM_CLOCK.wall()
    links = [
        Link(
            code=f"m{number:07d}",  # eight characters: in no slot, so any region may make it
            generation=1,
            version=1,
            state=State.ACTIVE,
            owner="bench",
            target=f"https://www.example.com/articles/2026/some-story-number-{number}",
            permanent=False,
            custom=True,
            created_at=now,
            changed_at=now,
            expires_at=now + 3_600_000,
            token=f"token-{number}",
        )
        for number in range(LINKS)
    ]
    turns = asyncio.Semaphore(8)

    async def create(link: Link) -> str:
        async with turns:
            return (await store.create(link, [], [])).code

    return list(await asyncio.gather(*map(create, links)))


async def _turn(store: LinkStore, codes: Sequence[str]) -> Turn:
    service = RedirectService(store, SYSTEM_CLOCK, capacity=1)  # so each one is a miss
    asked = islice(cycle(codes), READS)
    took: list[float] = []

    async def visitor() -> None:
        for code in asked:
            began = time.perf_counter()
            answer = await ask(service, f"/{code}")
            took.append(time.perf_counter() - began)
            if answer.status != 302:
                raise RuntimeError(f"{code} was answered {answer.status}")

    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(visitor() for _ in range(AT_ONCE)))
    seconds, used = time.perf_counter() - began, time.process_time() - used
    await service.close()
    p99 = statistics.quantiles(took, n=100)[98]
    return Turn(READS / seconds, used / READS * 1e6, p99 * 1_000)


async def _run() -> dict[str, list[Turn]]:
    await prepare(store_address(KEYSPACE), HOME, SYSTEM_CLOCK, None)
    stores: dict[str, LinkStore] = {}
    try:
        for name, opener in DRIVERS.items():
            stores[name] = await _open(opener)
        codes = await _fill(next(iter(stores.values())))
        for store in stores.values():
            await _turn(store, codes)  # prepares its statements
        turns: dict[str, list[Turn]] = {name: [] for name in stores}
        for round_ in range(ROUNDS):
            names = list(stores) if round_ % 2 else list(reversed(stores))
            for name in names:
                turns[name].append(await _turn(stores[name], codes))
        return turns
    finally:
        for store in stores.values():
            await store.close()
        session = await open_session(HOME, [REGIONS[0].address], secrets.token_bytes)
        drop = f"DROP KEYSPACE {KEYSPACE}"
        await session.execute(Statement(drop, Level.LOCAL_ONE, timeout=DROP_SECONDS))
        await session.close()


def main() -> int:
    """Run both in turns, print the table, keep the figures."""
    turns = uvloop.run(_run())
    base = statistics.median(turn.cost for turn in turns["cassandra-driver"])
    print(f"{'':18} {'CPU us/redirect':>22} {'ratio':>6} {'redirects/s':>12} {'p99 ms':>7}")
    for name, each in turns.items():
        costs = [turn.cost for turn in each]
        middle = statistics.median(costs)
        print(
            f"{name:18} {f'{middle:.0f} ({min(costs):.0f}-{max(costs):.0f})':>22}"
            f" {base / middle:6.2f} {statistics.median(turn.rate for turn in each):12,.0f}"
            f" {statistics.median(turn.p99 for turn in each):7.1f}"
        )
    print(f"{ROUNDS} turns of {READS:,} redirects each, {AT_ONCE} at once, none of them cached.")
    path = Path(__file__).parent / "results" / "misses.json"
    path.parent.mkdir(exist_ok=True)
    record = {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in DRIVERS},
        "turns": {name: [asdict(turn) for turn in each] for name, each in turns.items()},
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
