"""Drill (M5, K4): how soon every region knows of a new link, of an edit, of a deletion.

    python -m tests.drills.spread --links 200 --changes 30

Links are made by one region's API after the other, and asked for in all regions from the moment
of the 201: each is redirected everywhere in under 2 s. Links that all regions have just served
are edited and deleted: nobody serves the old answer later than 5 s after the change had reached
the region.
"""

import asyncio
import secrets
import sys
import time
from collections.abc import Coroutine
from itertools import cycle
from typing import Any

from tests.drills.site import Site, User, open_site, percentile, site_options, table, verdict

NEW_EVERYWHERE = 2.0
"""Seconds, M5's; a change has as long to reach the regions."""

CACHED = 5.0
"""Seconds for which a cache may serve what it read."""

LINKS_EVERY, CHANGES_EVERY, NEW_POLL, CHANGE_POLL = 0.2, 1.0, 0.02, 0.2


async def first_seen(user: User, code: str, target: str, began: float, broken: list[str]) -> float:
    """Seconds from `began` until the link was redirected in this user's region."""
    while (waited := time.monotonic() - began) < 2 * NEW_EVERYWHERE:
        answer = await user.visit(code, fresh=True)
        if answer.status == 302:
            if answer.location != target:
                broken.append(f"{code} led to {answer.location} in {user.region.name}")
            return time.monotonic() - began
        await asyncio.sleep(NEW_POLL)
    broken.append(f"{code} was not redirected in {user.region.name} after {waited:.1f} s")
    return waited


async def last_old(
    user: User, code: str, new: str | None, began: float, broken: list[str]
) -> float:
    """Seconds from `began` until the last request that was still answered as before.

    `new` is the new target; None: the link was deleted. A few requests more see that it stays.
    """
    last = 0.0
    while (sent := time.monotonic() - began) < CACHED + NEW_EVERYWHERE + 1:
        answer = await user.visit(code, fresh=True)
        said = answer.location if answer.status == 302 else None
        if answer.status not in (302, 410):
            broken.append(f"{code} answered {answer} in {user.region.name}")
        elif said != new:
            last = sent
        await asyncio.sleep(CHANGE_POLL)
    return last


async def new_link(users: list[User], by: User, broken: list[str]) -> list[float]:
    """Make a link; the seconds until it was redirected, by region."""
    target = f"https://new.example/{secrets.token_hex(8)}"
    made = await by.create(target)
    began = time.monotonic()
    if made.status != 201:
        broken.append(f"a create was answered {made} in {by.region.name}")
        return []
    code = made.body["code"]
    return list(await asyncio.gather(*(first_seen(u, code, target, began, broken) for u in users)))


async def change(users: list[User], by: User, edited: bool, broken: list[str]) -> list[float]:
    """Change a link that all regions serve; the seconds until the last old answer, by region."""
    old, new = (f"https://{age}.example/{secrets.token_hex(8)}" for age in ("old", "new"))
    made = await by.create(old)
    if made.status != 201:
        broken.append(f"a create was answered {made} in {by.region.name}")
        return []
    code = made.body["code"]
    await asyncio.gather(*(first_seen(u, code, old, time.monotonic(), broken) for u in users))
    if edited:
        done = await by.api("PATCH", f"/{code}", {"long_url": new})
    else:
        done = await by.api("DELETE", f"/{code}")
    began = time.monotonic()
    if done.status not in (200, 204):
        broken.append(f"a change was answered {done} in {by.region.name}")
        return []
    now = new if edited else None
    return list(await asyncio.gather(*(last_old(u, code, now, began, broken) for u in users)))


async def paced(works: list[Coroutine[Any, Any, list[float]]], every: float) -> list[list[float]]:
    """Start one after the other, `every` seconds; the results that came."""
    tasks = []
    for work in works:
        tasks.append(asyncio.create_task(work))
        await asyncio.sleep(every)
    return [result for result in await asyncio.gather(*tasks) if result]


async def drill(users: list[User], links: int, changes: int) -> int:
    """Measure, print, judge."""
    broken: list[str] = []
    names = [user.region.name for user in users]
    turns = cycle(users)
    measured = {
        "new link": await paced(
            [new_link(users, next(turns), broken) for _ in range(links)], LINKS_EVERY
        )
    }
    for edited, what in ((True, "edit"), (False, "deletion")):
        works = [change(users, next(turns), edited, broken) for _ in range(changes)]
        measured[what] = await paced(works, CHANGES_EVERY)
    rows = []
    for what, all_of_it in measured.items():
        bound = NEW_EVERYWHERE if what == "new link" else CACHED + NEW_EVERYWHERE
        if not all_of_it:
            continue  # whatever there was is told as broken
        everywhere = [max(one) for one in all_of_it]
        for place, seconds in (
            *((name, [one[n] for one in all_of_it]) for n, name in enumerate(names)),
            ("everywhere", everywhere),
        ):
            figures = [f"{percentile(seconds, share):.3f}" for share in (0.5, 0.99, 1)]
            rows.append((f"{what}, {place}", len(seconds), *figures, f"{bound:.0f}"))
        broken += [f"a {what} took {worst:.2f} s" for worst in everywhere if worst >= bound]
    print(table(("seconds until known", "n", "p50", "p99", "worst", "bound"), rows))
    return verdict(broken, "new links in under 2 s, changes in under 5 s and the way there")


async def run(site: Site, links: int, changes: int) -> int:
    """The drill, by one user in each region."""
    async with site.users() as users:
        return await drill(users, links, changes)


def main() -> None:
    """Run the drill; exit 1 when a promise was broken."""
    parser = site_options(__doc__)
    parser.add_argument("--links", type=int, default=200)
    parser.add_argument("--changes", type=int, default=30, help="edits, and as many deletions")
    args = parser.parse_args()
    sys.exit(asyncio.run(run(open_site(args), args.links, args.changes)))


if __name__ == "__main__":
    main()
