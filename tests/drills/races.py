"""Drill (G7): all regions race for the same aliases; who was told what, and is it so?

    python -m tests.drills.races --aliases 500 --seed 7

Half of the aliases have nine characters and belong to nobody; half have seven, so each lies in
the slot of a region, or of none: then nobody may have it. At most one is told that it won. A
503 says nothing: it is resolved by asking. Afterwards all regions are asked, by API and by
redirect, whether everybody was told what is so.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shortlink.links.codes import ALPHABET, LENGTH
from shortlink.links.names import is_reserved
from tests.drills.site import Answer, Site, User, open_site, site_options, table, until, verdict

AT_ONCE = 8
LENGTHS = (9, LENGTH)
ENDS = ("won", "won, told 503", "nobody's")


@dataclass(frozen=True, slots=True)
class Race:
    """One alias: what each region was told (by its status; 0 for no answer), its target, and
    the target that the alias has in the end, None when nobody holds it.
    """

    alias: str
    told: Sequence[int]
    targets: Sequence[str]
    holds: str | None

    @property
    def winner(self) -> int | None:
        """The place of the region whose target the alias has, if one of theirs."""
        places = [n for n, target in enumerate(self.targets) if target == self.holds]
        return places[0] if places else None

    @property
    def kind(self) -> str:
        """How the race ended."""
        if self.winner is None:
            return "nobody's"
        return "won" if self.told[self.winner] == 201 else "won, told 503"


def untrue(race: Race) -> list[str]:
    """What a region was told and is not so."""
    if race.holds is not None and race.holds not in race.targets:
        return [f"{race.alias} leads to {race.holds}, which nobody asked for"]
    wrong = []
    for place, status in enumerate(race.told):
        won = place == race.winner
        if status == 201 and not won:
            wrong.append(f"{race.alias}: told 201, but it leads to {race.holds}")
        elif status == 409 and (won or race.holds is None):
            wrong.append(f"{race.alias}: told 409, but it leads to {race.holds}")
        elif status not in (201, 409, 503, 0):
            wrong.append(f"{race.alias}: told {status}")
    return wrong


def draw(rng: random.Random, length: int) -> str:
    """An alias that nobody has had."""
    while is_reserved(alias := "".join(rng.choices(ALPHABET, k=length))):
        pass
    return alias


async def held(user: User, alias: str) -> str | None:
    """The target that the API of this region says, None for 404; asked until it can tell."""
    answers: list[Answer] = []

    async def told() -> bool:
        answers.append(await user.api("GET", f"/{alias}"))
        return answers[-1].status in (200, 404)

    await until(told, f"the API of {user.region.name} to tell who has {alias}")
    return answers[-1].body["long_url"] if answers[-1].status == 200 else None


async def shows(user: User, alias: str, target: str | None) -> bool:
    """Whether a visitor in this region is led to `target`; None: to nowhere."""
    answer = await user.visit(alias, fresh=True)
    return answer.location == target if target is not None else answer.status in (404, 503)


async def race(users: Sequence[User], alias: str, broken: list[str]) -> Race:
    """Ask for the alias everywhere at once, then look at what became of it."""
    targets = [f"https://{user.region.name}.example/{alias}" for user in users]
    told = await asyncio.gather(
        *(user.create(target, alias) for user, target in zip(users, targets, strict=True))
    )
    held_by = await asyncio.gather(*(held(user, alias) for user in users))
    if len(set(held_by)) > 1:
        broken.append(f"{alias} is not the same everywhere: {held_by}")
    result = Race(alias, [answer.status for answer in told], targets, held_by[0])
    broken += untrue(result)
    for user in users:
        try:
            await until(
                lambda user=user: shows(user, alias, result.holds),  # type: ignore[misc]
                f"{user.region.name} to lead {alias} to {result.holds}",
                seconds=10,
            )
        except AssertionError as error:
            broken.append(str(error))
    return result


async def drill(site: Site, aliases: int, seed: int) -> int:
    """Race for all, count, judge."""
    broken: list[str] = []
    rng, turns = random.Random(seed), asyncio.Semaphore(AT_ONCE)

    async with site.users() as users:

        async def one(alias: str) -> Race | None:
            async with turns:
                try:
                    return await race(users, alias, broken)
                except AssertionError as error:  # nobody could tell who has it
                    broken.append(str(error))
                    return None

        rows = []
        for length in LENGTHS:
            races = await asyncio.gather(*(one(draw(rng, length)) for _ in range(aliases)))
            ended = [each for each in races if each is not None]
            kinds = Counter(each.kind for each in ended)
            told = Counter(status for each in ended for status in each.told)
            rows.append(
                (
                    f"{length} characters",
                    len(ended),
                    *(kinds[kind] for kind in ENDS),
                    *(told[status] for status in (201, 409, 503, 0)),
                )
            )
            if length != LENGTH:  # these need no owner of a slot
                broken += [f"{each.alias} is nobody's" for each in ended if each.holds is None]
    print(f"seed {seed}; {len(site.regions)} regions asked for each alias at once")
    print(table(("aliases", "races", *ENDS, "201", "409", "503", "no answer"), rows))
    return verdict(broken, "no alias has two winners, and nobody was told what is not so")


def main() -> None:
    """Run the drill; exit 1 when a promise was broken."""
    parser = site_options(__doc__)
    parser.add_argument("--aliases", type=int, default=500, help="for each of the two lengths")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    sys.exit(asyncio.run(drill(open_site(args), args.aliases, args.seed)))


if __name__ == "__main__":
    main()
