"""What people are promised of links, whichever region they are in (M1, M5, G7, K4, L2, R2).

How soon a region knows of something depends on the machine: `tests.drills.spread` measures it.
"""

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial

import httpx
import pytest

from tests.drills.races import held
from tests.drills.site import REGIONS, User, until

NAMES = [region.name for region in REGIONS]


def target() -> str:
    return f"https://real.example/{secrets.token_hex(8)}"


def alias() -> str:
    return f"r{secrets.token_hex(7)}"


async def shows(users: Sequence[User], code: str, wanted: str | int) -> bool:
    """Whether all redirect to the target, or all answer with the status, `wanted`."""
    answers = await asyncio.gather(*(user.visit(code, fresh=True) for user in users))
    return all(wanted in (answer.location, answer.status) for answer in answers)


async def everywhere(users: Sequence[User], code: str, wanted: str | int) -> None:
    """Wait until all regions show it. Raises AssertionError."""
    await until(partial(shows, users, code, wanted), f"{code} to answer {wanted} everywhere")


async def made(user: User, to: str, at: str | None = None) -> str:
    """The code of a link that this user has just made."""
    answer = await user.create(to, at)
    assert answer.status == 201, str(answer)
    return str(answer.body["code"])


@pytest.mark.parametrize("place", range(len(REGIONS)), ids=NAMES)
async def test_a_link_made_in_one_region_is_redirected_in_all_M1_M5(
    users: list[User], place: int
) -> None:
    to = target()
    code = await made(users[place], to)
    assert len(code) == 7
    await everywhere(users, code, to)


@pytest.mark.parametrize("place", range(len(REGIONS)), ids=NAMES)
async def test_a_fresh_link_is_readable_at_once_in_its_own_region_M5(
    users: list[User], place: int
) -> None:
    to = target()
    code = await made(users[place], to)
    answer = await users[place].visit(code)
    assert (answer.status, answer.location) == (302, to)


@pytest.mark.parametrize("place", range(len(REGIONS)), ids=NAMES)
async def test_an_alias_made_in_one_region_is_taken_in_the_others_G7(
    users: list[User], place: int
) -> None:
    to, at = target(), alias()
    await made(users[place], to, at)
    for other in users:
        answer = await other.create(target(), at)
        assert answer.status == 409, str(answer)
        assert answer.body["suggestion"]
    await everywhere(users, at, to)


async def test_regions_that_race_for_an_alias_have_one_winner_G7(users: list[User]) -> None:
    at, targets = alias(), [target() for _ in users]
    answers = await asyncio.gather(
        *(user.create(to, at) for user, to in zip(users, targets, strict=True))
    )
    won = [to for answer, to in zip(answers, targets, strict=True) if answer.status == 201]
    assert len(won) <= 1, [str(answer) for answer in answers]
    assert {answer.status for answer in answers} <= {201, 409, 503}
    # Whoever won may not have been told: it is the same one for everybody all the same.
    (winner,) = {await held(user, at) for user in users}
    assert winner is not None
    assert winner in (won or targets)
    await everywhere(users, at, winner)


async def test_an_edit_is_seen_everywhere_K4(users: list[User]) -> None:
    old, new = target(), target()
    code = await made(users[0], old)
    await everywhere(users, code, old)  # now every cache has it
    assert (await users[1].api("PATCH", f"/{code}", {"long_url": new})).status == 200
    await everywhere(users, code, new)


async def test_a_deletion_is_seen_everywhere_and_restored_L2_L5(users: list[User]) -> None:
    to = target()
    code = await made(users[1], to)
    await everywhere(users, code, to)
    assert (await users[2].api("DELETE", f"/{code}")).status == 204
    await everywhere(users, code, 410)
    assert (await users[0].api("POST", f"/{code}/restore", {})).status == 200
    await everywhere(users, code, to)


async def test_an_unknown_code_is_404_everywhere_R2(users: list[User]) -> None:
    for code in (alias(), secrets.token_hex(8)[:7]):
        for user in users:
            answer = await user.visit(code)
            assert answer.status == 404, str(answer)


@pytest.mark.parametrize("region", REGIONS, ids=NAMES)
async def test_a_connection_is_kept_for_the_next_visit_R4(
    users: list[User], region: object
) -> None:
    user = next(user for user in users if user.region == region)
    code = await made(user, target())
    ports = set()
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        for _ in range(5):
            response = await client.get(f"{user.region.redirect}/{code}")
            assert response.status_code == 302
            ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(ports) == 1


async def test_without_a_key_nobody_makes_a_link_P1(users: list[User]) -> None:
    stranger = User(users[0].region, "nobody's key")
    async with stranger:
        assert (await stranger.create(target())).status == 401
