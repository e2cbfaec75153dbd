"""Load: people in every region who follow links and who make and change them, and their counts.

    python -m tests.drills.visitors --rate 20 --seconds 30

Each region's people are a thread in that region's network, so they see what its users see when
its cable is cut. Requests are sent at their times, whether or not the last one was answered.
Every request is counted under the phase in which it was sent; none is repeated.
"""

import asyncio
import random
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tests.drills.acknowledged import Acknowledged, Held, differences, found
from tests.drills.site import (
    Answer,
    Region,
    Site,
    User,
    enter,
    open_site,
    site_options,
    table,
    verdict,
)

FRESH_SHARE = 0.25
"""Visits that come on a new connection."""

WHAT = ("visit", "birth", "alias", "change")
GOOD = ("right", "ok")
KNOWN = 60
LOOKS = 8
"""Links looked at at once."""

JOIN_SECONDS = 30.0
SETTLE_SECONDS = 60.0


def visited(answer: Answer, target: str) -> str:
    """What a visit to a live link was: right, 503, refused, late, cut, or wrong."""
    if answer.status == 302 and answer.location == target:
        return "right"
    if answer.status == 503:
        return "503"
    return answer.lost or "wrong"


def written(answer: Answer, *expected: int) -> str:
    """What a write was: ok, 503, refused, late, cut, or wrong."""
    if answer.status in expected:
        return "ok"
    if answer.status == 503:
        return "503"
    return answer.lost or "wrong"


def broken_promises(where: str, what: str, results: Counter[str], *, goes_on: bool) -> list[str]:
    """What was promised for one kind of request in one region, and did not hold."""
    if not results:
        return [f"{where}: no {what} was asked for"]
    allowed = GOOD if goes_on else ("503",)
    return [
        f"{where}: {count} {what}s were {result}"
        for result, count in sorted(results.items())
        if result not in allowed
    ]


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests per second in each region."""

    visits: float = 20.0
    births: float = 1.0
    aliases: float = 0.5
    changes: float = 1.0


class People:
    """The users of one region. `known` are links that nobody changes, with their targets."""

    def __init__(
        self, region: Region, key: str, known: Mapping[str, str], rates: Rates, seed: int
    ) -> None:
        self.region = region
        self.phase = "before"
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.wrong: list[str] = []
        self.acknowledged = Acknowledged()
        self._key, self._known, self._rates = key, list(known.items()), rates
        self._rng = random.Random(seed)
        self._ending = threading.Event()
        self._serial = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def _run(self) -> None:
        try:
            enter(self.region.network)
            asyncio.run(self._live())
        except Exception as error:  # people who vanish unseen would prove nothing
            self.wrong.append(f"people of {self.region.name}: {error!r}")

    def end(self) -> None:
        """Send no more, and wait for the answers."""
        self._ending.set()
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            raise RuntimeError(f"people of {self.region.name} did not end in {JOIN_SECONDS} s")

    async def _live(self) -> None:
        async with User(self.region, self._key) as user, asyncio.TaskGroup() as all_of_them:
            for rate, act in (
                (self._rates.visits, self._visit),
                (self._rates.births, self._birth),
                (self._rates.aliases, self._alias),
                (self._rates.changes, self._change),
            ):
                if rate:
                    all_of_them.create_task(self._paced(all_of_them, user, rate, act))

    async def _paced(
        self,
        group: asyncio.TaskGroup,
        user: User,
        rate: float,
        act: Callable[[User, str], "asyncio._CoroutineLike[None]"],
    ) -> None:
        at = time.monotonic() + self._rng.random() / rate
        while not self._ending.is_set():
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            group.create_task(act(user, self.phase))
            at += 1 / rate

    def _count(self, phase: str, what: str, asked: str, answer: Answer, result: str) -> str:
        self.counts[phase, what, result] += 1
        if result == "wrong":
            self.wrong.append(f"{self.region.name}, {phase}: {what} of {asked} answered {answer}")
        return result

    async def _visit(self, user: User, phase: str) -> None:
        code, target = self._rng.choice(self._known)
        answer = await user.visit(code, fresh=self._rng.random() < FRESH_SHARE)
        self._count(phase, "visit", f"{code} to {target}", answer, visited(answer, target))

    def _target(self) -> str:
        self._serial += 1
        return f"https://{self.region.name}.example/{self._rng.getrandbits(48):x}/{self._serial}"

    async def _birth(self, user: User, phase: str) -> None:
        target = self._target()
        answer = await user.create(target)
        if self._count(phase, "birth", target, answer, written(answer, 201)) == "ok":
            code = answer.body["code"]
            self.acknowledged.created(code, target)
            first = await user.visit(code, fresh=True)
            self._count(phase, "visit", f"{code}, just made", first, visited(first, target))

    async def _alias(self, user: User, phase: str) -> None:
        target, alias = self._target(), f"d{self._rng.getrandbits(64):x}"
        answer = await user.create(target, alias)
        if self._count(phase, "alias", alias, answer, written(answer, 201)) == "ok":
            self.acknowledged.created(alias, target)
        elif answer.unknown:
            self.acknowledged.maybe(alias, target)

    async def _change(self, user: User, phase: str) -> None:
        link = self.acknowledged.choose(self._rng)
        if link is None:
            return
        new: str | None
        (now,) = link.may
        if now is None:
            (new,) = link.restorable
            self.acknowledged.begin(link, new)
            answer = await user.api("POST", f"/{link.code}/restore", {})
        elif self._rng.random() < 0.6:
            new = self._target()
            self.acknowledged.begin(link, new)
            answer = await user.api("PATCH", f"/{link.code}", {"long_url": new})
        else:
            new = None
            self.acknowledged.begin(link, new)
            answer = await user.api("DELETE", f"/{link.code}")
        asked = f"{link.code} to {new}"
        result = self._count(phase, "change", asked, answer, written(answer, 200, 204))
        self.acknowledged.end(link, result == "ok", new)


class Crowd:
    """The people of all regions."""

    def __init__(self, site: Site, known: Mapping[str, str], rates: Rates, seed: int) -> None:
        self.people = [
            People(region, site.key, known, rates, seed + n)
            for n, region in enumerate(site.regions)
        ]
        self.phases: list[str] = []

    def __enter__(self) -> Self:
        for people in self.people:
            people.start()
        return self

    def __exit__(self, *_: object) -> None:
        for people in self.people:
            people.end()

    def begin(self, phase: str) -> None:
        """Count what is sent from now on under `phase`."""
        print(f"-- {phase}", file=sys.stderr, flush=True)
        self.phases.append(phase)
        for people in self.people:
            people.phase = phase

    def counted(self, phase: str, what: str, region: str | None = None) -> Counter[str]:
        """Results of the requests of one kind in a phase, in one region or in all."""
        total: Counter[str] = Counter()
        for people in self.people:
            if region in (None, people.region.name):
                for (during, kind, result), count in people.counts.items():
                    if (during, kind) == (phase, what):
                        total[result] += count
        return total

    @property
    def wrong(self) -> list[str]:
        """What nobody may be answered, and whatever stopped the drill itself."""
        return [line for people in self.people for line in people.wrong]

    @property
    def links(self) -> list[Held]:
        """All links that somebody was told of."""
        return [link for people in self.people for link in people.acknowledged.links]

    def table(self) -> str:
        """Every phase and region: what came of visits, births, aliases and changes."""
        rows = []
        for phase in self.phases:
            for people in self.people:
                cells = [self.counted(phase, what, people.region.name) for what in WHAT]
                if any(cells):
                    rows.append((phase, people.region.name, *map(_told, cells)))
        return table(("phase", "region", *WHAT), rows)


def _told(results: Counter[str]) -> str:
    bad = [f"{count} {result}" for result, count in sorted(results.items()) if result not in GOOD]
    return ", ".join([f"{sum(results[result] for result in GOOD)} ok", *bad])


async def make_known(site: Site, count: int) -> dict[str, str]:
    """Links that nobody will change, made in all regions in turn and seen in each."""
    known: dict[str, str] = {}
    async with site.users() as users:
        for number in range(count):
            target = f"https://known.example/{secrets.token_hex(8)}"
            answer = await users[number % len(users)].create(target)
            if answer.status != 201:
                raise SystemExit(f"can't begin: a create was answered {answer}")
            known[answer.body["code"]] = target
        held = [Held(code, {target}) for code, target in known.items()]
        if wrong := await looked_at(users, held):
            raise SystemExit(f"can't begin: {wrong[0]}")
    return known


async def looked_at(users: Sequence[User], links: Iterable[Held]) -> list[str]:
    """What is wrong with the links as all regions show them, once they have had time to agree."""
    loop = asyncio.get_running_loop()
    left, told, deadline = list(links), list[str](), loop.time() + SETTLE_SECONDS
    turns = asyncio.Semaphore(LOOKS)

    async def look(link: Held) -> list[str]:
        async with turns:
            answers = await asyncio.gather(*(user.visit(link.code) for user in users))
        try:
            seen = {
                user.region.name: found(answer.status, answer.location)
                for user, answer in zip(users, answers, strict=True)
            }
        except ValueError as error:
            return [f"{link.code} was {error}"]
        return differences(link, seen)

    while left:
        looks = await asyncio.gather(*(look(link) for link in left))
        told = [line for lines in looks for line in lines]
        left = [link for link, lines in zip(left, looks, strict=True) if lines]
        if not left or loop.time() > deadline:
            break
        await asyncio.sleep(1)
    return told


def main() -> None:
    """Run the load with nothing broken; exit 1 when a request failed."""
    parser = site_options(__doc__)
    parser.add_argument("--rate", type=float, default=20.0, help="visits per second and region")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    site = open_site(args)
    known = asyncio.run(make_known(site, KNOWN))
    with Crowd(site, known, Rates(visits=args.rate), args.seed) as crowd:
        crowd.begin("all well")
        time.sleep(args.seconds)
    sys.exit(asyncio.run(finish(site, crowd, known, "every request was answered as it should be")))


async def finish(
    site: Site, crowd: Crowd, known: Mapping[str, str], held: str, broken: Iterable[str] = ()
) -> int:
    """Look at every acknowledged link in all regions, print the table, judge."""
    links = [*crowd.links, *(Held(code, {target}) for code, target in known.items())]
    async with site.users() as users:
        lost = await looked_at(users, links)
    print(crowd.table())
    open_ends = sum(not link.known for link in crowd.links)
    print(
        f"{len(links)} links looked at in {len(site.regions)} regions ({open_ends} of them with a"
        f" write that was never answered): {len(lost)} lost or wrong"
    )
    return verdict([*broken, *crowd.wrong, *lost], held)


if __name__ == "__main__":
    main()
