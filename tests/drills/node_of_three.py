"""Drill (F3): a node of a data centre with three is lost while links are made and changed.

    python -m tests.drills.node_of_three --seconds 10

A ring of its own, three Cassandra nodes in one data centre with three replicas of each row,
used by the services' own adapter. One node is killed: all goes on. A second one is killed: there
is no majority, so everything is refused. Both come back: all that was acknowledged is there.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_bytes, token_hex

from local.regions import faults
from local.regions.layout import REGIONS
from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.codes import SLOT_KEY_BYTES, RandomCodes, SlotMap
from shortlink.links.lifecycle import Actor, Command, Create, Delete, Edit, Restore
from shortlink.links.model import LIVE, Link
from shortlink.links.policy import Policy
from shortlink.management import Management
from shortlink.store.opening import open_store, prepare
from shortlink.store.port import LinkStore, StoreUnavailable
from tests.drills.acknowledged import Acknowledged, Held, Value, differences
from tests.drills.site import table, verdict
from tests.drills.visitors import broken_promises

REGION = REGIONS[0].name
BY = Actor("drill")
WORKERS, PAUSE = 4, 0.05
WHAT = ("create", "change", "read")


class Writers:
    """They make, change and read links through the adapter, and note what they were told."""

    def __init__(self, store: LinkStore, management: Management, rng: random.Random) -> None:
        self.phase = ""
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.wrong: list[str] = []
        self.acknowledged = Acknowledged()
        self._store, self._management, self._rng = store, management, rng

    async def run(self) -> None:
        """Write and read until cancelled."""
        while True:
            act = self._rng.choice((self._create, self._change, self._read, self._read))
            phase, what = self.phase, act.__name__.removeprefix("_")
            try:
                if await act():
                    self.counts[phase, what, "ok"] += 1
            except StoreUnavailable:
                self.counts[phase, what, "503"] += 1
            except Exception as error:
                self.counts[phase, what, "wrong"] += 1
                self.wrong.append(f"{phase}: {what}: {error!r}")
            await asyncio.sleep(PAUSE)

    def _target(self) -> str:
        return f"https://three.example/{self._rng.getrandbits(64):x}"

    async def _create(self) -> bool:
        wanted = Create(
            by=BY, code="", target=self._target(), token=self._management.new_token(), custom=False
        )
        link = await self._management.create_generated(wanted)
        self.acknowledged.created(link.code, link.target)
        return True

    async def _change(self) -> bool:
        if (link := self.acknowledged.choose(self._rng)) is None:
            return False
        (now,) = link.may
        new: Value = None
        command: Command = Delete(BY)
        if now is None:
            (new,) = link.restorable
            command = Restore(by=BY)
        elif self._rng.random() < 0.6:
            new = self._target()
            command = Edit(by=BY, target=new)
        self.acknowledged.begin(link, new)
        done = False
        try:
            await self._management.apply(link.code, command)
            done = True
        finally:
            self.acknowledged.end(link, done, new)
        return True

    async def _read(self) -> bool:
        if (link := self.acknowledged.choose(self._rng)) is None:
            return False
        try:
            shown = value(await self._store.get(link.code))
            if shown not in link.may:
                raise AssertionError(f"{link.code} shows {shown}, not {link.may}")
        finally:
            link.busy = False
        return True


def value(link: Link | None) -> Value:
    """What a reader sees of a link."""
    if link is None:
        return "nobody made it"
    return link.target if link.state in LIVE else None


async def looked_at(store: LinkStore, links: Sequence[Held]) -> list[str]:
    """What is wrong with the links now."""
    told = []
    for link in links:
        try:
            shown = value(await store.get(link.code))
        except StoreUnavailable as error:
            told.append(f"{link.code} can't be read: {error}")
        else:
            told += differences(link, {REGION: shown})
    return told


@asynccontextmanager
async def adapter(addresses: Sequence[str]) -> AsyncIterator[tuple[LinkStore, Management]]:
    """The store of the ring, prepared and opened as the services do it."""
    hosts = ",".join(f"{REGION}={address}" for address in addresses)
    address = f"cassandra://{hosts}/three"
    print(await prepare(address, REGION, SYSTEM_CLOCK, None))
    store = await open_store(address, REGION, SYSTEM_CLOCK)
    try:
        slots = SlotMap(await store.install(token_bytes(SLOT_KEY_BYTES)))
        codes = RandomCodes(slots, await store.slots(), token_bytes)
        yield store, Management(store, Policy(), SYSTEM_CLOCK, codes.draw, lambda: token_hex(16))
    finally:
        await store.close()


def both_back() -> None:
    """Start the killed nodes."""
    for number in (1, 2):
        faults.start_spare(REGION, number)


PHASES: tuple[tuple[str, Callable[[], object], bool], ...] = (
    ("all well", lambda: None, True),
    ("one node killed", partial(faults.kill_spare, REGION, 2), True),
    ("two nodes killed", partial(faults.kill_spare, REGION, 1), False),
    ("both back", both_back, True),
)
"""What is done, and whether requests are answered then."""


async def drill(addresses: Sequence[str], noticed: float, seconds: float, seed: int) -> int:
    """All phases under load; count and judge."""
    async with adapter(addresses) as (store, management):
        writers = Writers(store, management, random.Random(seed))
        tasks = [asyncio.create_task(writers.run()) for _ in range(WORKERS)]
        for name, act, _ in PHASES:
            writers.phase = f"{name}, first {noticed:.0f} s"
            await asyncio.to_thread(act)
            await asyncio.sleep(noticed)
            writers.phase = name
            await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        lost = await looked_at(store, writers.acknowledged.links)
    broken = writers.wrong + lost
    rows = []
    for name, _, goes_on in PHASES:
        for phase in (f"{name}, first {noticed:.0f} s", name):
            results = {what: Counter[str]() for what in WHAT}
            for (during, what, result), count in writers.counts.items():
                if during == phase:
                    results[what][result] += count
            for what in WHAT:
                rows.append((phase, what, *(results[what][r] for r in ("ok", "503", "wrong"))))
                if phase == name:
                    broken += broken_promises(name, what, results[what], goes_on=goes_on)
    print(f"seed {seed}; nodes {', '.join(addresses)}; three replicas of each row")
    print(table(("phase", "request", "ok", "503", "wrong"), rows))
    links = writers.acknowledged.links
    print(f"{len(links)} acknowledged links looked at: {len(lost)} lost or wrong")
    return verdict(
        broken, "with one node lost all goes on; with two all is refused; nothing is lost"
    )


def main() -> None:
    """Run the drill on a ring that ends with it; exit 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noticed", type=float, default=15.0, help="seconds to notice a fault")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of a phase after it")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    try:
        addresses = faults.start_spares(REGION)
        status = asyncio.run(drill(addresses, args.noticed, args.seconds, args.seed))
    finally:
        faults.remove_spares(REGION)
    sys.exit(status)


if __name__ == "__main__":
    main()
