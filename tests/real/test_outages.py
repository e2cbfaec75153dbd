"""What goes on when a part of one region is killed (K5, F2, F4, M1), and that it heals."""

import asyncio
import secrets
from functools import partial

import pytest

from local.regions import faults
from tests.drills.site import Answer, User, until

pytestmark = [pytest.mark.usefixtures("mended"), pytest.mark.timeout(300)]

NOTICED = 60.0
"""Seconds in which everybody notices, on a busy machine, that a store is away, or is back."""


async def answers(user: User, code: str, target: str) -> bool:
    """Whether the link is redirected in this user's region."""
    return (await user.visit(code, fresh=True)).location == target


async def links(user: User, count: int) -> dict[str, str]:
    """New links, with their targets."""
    made = {}
    for _ in range(count):
        target = f"https://real.example/{secrets.token_hex(8)}"
        answer = await user.create(target)
        assert answer.status == 201, str(answer)
        made[answer.body["code"]] = target
    return made


async def born(user: User) -> Answer:
    """The answer to making one more link."""
    return await user.create(f"https://real.example/{secrets.token_hex(8)}")


async def test_redirects_go_on_without_redis_and_with_it_again_K5_F4(users: list[User]) -> None:
    user = users[0]
    known = await links(user, 10)
    await asyncio.to_thread(faults.kill, user.region.name, "redis")
    for code, target in (known | await links(user, 5)).items():
        assert await answers(user, code, target)
    await asyncio.to_thread(faults.heal)
    for code, target in (known | await links(user, 5)).items():
        assert await answers(user, code, target)


async def test_a_region_without_its_store_reads_elsewhere_and_makes_no_links_F2_M1(
    users: list[User],
) -> None:
    hurt, *others = users
    known = await links(hurt, 10)
    for code, target in known.items():
        for user in users:
            await until(partial(answers, user, code, target), f"{code} everywhere")
    await asyncio.to_thread(faults.kill, hurt.region.name, "cassandra")

    async def refused() -> bool:
        return (await born(hurt)).status == 503

    await until(refused, "births in the region without a store to be 503", seconds=NOTICED)
    for code, target in known.items():
        what = f"{code} to be read elsewhere"
        await until(partial(answers, hurt, code, target), what, seconds=NOTICED)
        for user in others:
            assert await answers(user, code, target)
    for user in others:
        assert (await born(user)).status == 201
    assert (await born(hurt)).status == 503

    await asyncio.to_thread(faults.heal)

    async def made() -> bool:
        return (await born(hurt)).status == 201

    await until(made, "births to go on in the region that came back", seconds=NOTICED)
