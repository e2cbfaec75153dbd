"""The write and management API: what callers may do with one link (W1, W2, W6)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shortlink.links.model import State
from shortlink.links.policy import DAY, MINUTE, YEAR
from tests.http.api_rig import ADMIN, LINKS, NOW, OTHER, URL, Rig, is_problem


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    async with rig.client:
        yield rig


async def test_create_answers_201_with_the_link_and_where_it_is_managed(rig: Rig) -> None:
    """W1."""
    answer = await rig.call(
        "POST", json={"long_url": "https://EXAMPLE.com", "tags": ["t"], "metadata": {"b": "2"}}
    )
    assert answer.status_code == 201
    link = answer.json()
    assert answer.headers["location"] == f"{LINKS}/{link['code']}"
    assert link == {
        "short_url": f"https://s.example/{link['code']}",
        "code": link["code"],
        "long_url": "https://example.com/",
        "created_at": "2027-01-15T08:00:00Z",
        "expires_at": rig.at(5 * YEAR),
        "redirect_type": 302,
        "state": "active",
        "restorable_until": None,
        "disabled_because": None,
        "owner": "ann",
        "generation": 1,
        "version": 1,
        "tags": ["t"],
        "metadata": {"b": "2"},
        "custom": False,
    }
    assert (await rig.call("GET", answer.headers["location"])).json() == link


async def test_expiry_absent_null_and_given_are_three_things(rig: Rig) -> None:
    """W4."""
    assert (await rig.make())["expires_at"] == rig.at(5 * YEAR)
    assert (await rig.make(expires_at=None))["expires_at"] is None
    for same in ("2027-01-15T12:00:00+03:00", "2027-01-15T09:00:00Z", "2027-01-15t14:45:00+05:45"):
        assert (await rig.make(expires_at=same))["expires_at"] == "2027-01-15T09:00:00Z"
    permanent = await rig.make(redirect_type=301)
    assert (permanent["expires_at"], permanent["redirect_type"]) == (None, 301)


async def test_fifty_creates_of_one_alias_make_one_link(rig: Rig) -> None:
    """G7: one 201, 49 x 409 with a suggestion, and the winner's target stays."""
    answers = await asyncio.gather(
        *(
            rig.call("POST", json={"long_url": f"{URL}?n={n}", "custom_alias": "summer"})
            for n in range(50)
        )
    )
    won = [answer for answer in answers if answer.status_code == 201]
    assert len(won) == 1
    for lost in answers:
        if lost is not won[0]:
            problem = is_problem(lost, 409, "Taken")
            assert (problem["field"], problem["suggestion"]) == ("custom_alias", "summer1")
    read = await rig.call("GET", f"{LINKS}/summer")
    assert read.json()["long_url"] == won[0].json()["long_url"]


async def test_parallel_creates_all_succeed_with_codes_of_their_own(rig: Rig) -> None:
    answers = await asyncio.gather(*(rig.call("POST", json={"long_url": URL}) for _ in range(200)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["code"] for answer in answers}) == 200


async def test_patch_changes_what_it_names_and_nothing_else(rig: Rig) -> None:
    """W2."""
    before = await rig.make(tags=["a"], metadata={"k": "v"})
    path = f"{LINKS}/{before['code']}"
    after = (await rig.call("PATCH", path, json={"long_url": f"{URL}/b"})).json()
    assert after == before | {"long_url": f"{URL}/b", "version": 2}
    assert (await rig.call("PATCH", path, json={})).json() == after
    cleared = await rig.call(
        "PATCH", path, json={"expires_at": None, "tags": [], "metadata": {}, "redirect_type": 301}
    )
    assert cleared.json() == after | {
        "expires_at": None,
        "tags": [],
        "metadata": {},
        "redirect_type": 301,
        "version": 3,
    }
    refused = await rig.call("PATCH", path, json={"expires_at": rig.at(DAY)})
    assert is_problem(refused, 400, "PermanentExpires")["field"] == "redirect_type"


async def test_delete_is_idempotent_and_restore_undoes_it(rig: Rig) -> None:
    """L1, L2."""
    link = await rig.make(expires_at=None)
    path = f"{LINKS}/{link['code']}"
    for _ in range(2):
        gone = await rig.call("DELETE", path)
        assert (gone.status_code, gone.content) == (204, b"")
    dead = (await rig.call("GET", path)).json()
    assert (dead["state"], dead["version"]) == ("tombstoned", 2)
    assert dead["restorable_until"] == rig.at(30 * DAY)
    is_problem(await rig.call("PATCH", path, json={"tags": []}), 409, "Tombstoned")
    alive = (await rig.call("POST", f"{path}/restore")).json()
    assert alive == link | {"version": 3}
    assert (await rig.call("POST", f"{path}/restore", json={})).json() == alive


async def test_states_follow_the_clock_without_a_sweeper(rig: Rig) -> None:
    """L1: what is shown is derived; an expired link is restored with a new expiry."""
    link = await rig.make(expires_at=rig.at(2 * DAY))
    path = f"{LINKS}/{link['code']}"

    async def shown() -> tuple[str, str | None]:
        body = (await rig.call("GET", path)).json()
        return body["state"], body["restorable_until"]

    assert await shown() == ("active", None)
    rig.hand.advance(DAY)
    assert await shown() == ("expiring", None)
    rig.hand.advance(DAY)
    assert await shown() == ("expired", rig.at(30 * DAY))
    is_problem(await rig.call("POST", f"{path}/restore"), 400, "ExpiryInPast")
    again = await rig.call("POST", f"{path}/restore", json={"expires_at": rig.at(MINUTE)})
    assert again.json()["state"] == "expiring"
    rig.hand.advance(MINUTE)
    rig.hand.advance(30 * DAY)
    assert await shown() == ("quarantined", None)
    is_problem(await rig.call("POST", f"{path}/restore"), 409, "GraceOver")


async def test_an_administrator_disables_and_enables(rig: Rig) -> None:
    """W6."""
    code = (await rig.make())["code"]
    path = f"{LINKS}/{code}/disabled"
    is_problem(await rig.call("PUT", path, json={"why": "spam"}), 403, "NotOwner")
    off = await rig.call("PUT", path, ADMIN, json={"why": "phishing, report 7"})
    assert (off.status_code, off.json()["state"]) == (200, "disabled")
    assert off.json()["disabled_because"] == "phishing, report 7"
    on = await rig.call("DELETE", path, ADMIN)
    assert (on.status_code, on.json()["state"]) == (200, "active")
    assert on.json()["disabled_because"] is None


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {"tags": ["x"]}),
        ("DELETE", "", None),
        ("POST", "/restore", None),
    ],
)
async def test_only_the_owner_and_administrators_reach_a_link(
    rig: Rig, method: str, path: str, body: object
) -> None:
    """W2: 401, 403, 404; nobody else changes anything."""
    code = (await rig.make())["code"]
    row = rig.store.rows[code]
    nobody = is_problem(
        await rig.call(method, f"{LINKS}/{code}{path}", None, json=body), 401, "Unauthorized"
    )
    assert "Authorization" in nobody["detail"]
    is_problem(await rig.call(method, f"{LINKS}/{code}{path}", OTHER, json=body), 403, "NotOwner")
    is_problem(await rig.call(method, f"{LINKS}/nowhere{path}", json=body), 404, "Unknown")
    assert rig.store.rows[code] == row
    assert (await rig.call(method, f"{LINKS}/{code}{path}", ADMIN, json=body)).is_success


@pytest.mark.parametrize(
    ("authorization", "challenge"),
    [
        (None, 'Bearer realm="shortlink"'),
        ("Basic YTpi", 'Bearer realm="shortlink"'),
        ("Bearer", 'Bearer realm="shortlink", error="invalid_token"'),
        ("Bearer sl_wrong", 'Bearer realm="shortlink", error="invalid_token"'),
        ("Bearer \xff\xfe", 'Bearer realm="shortlink", error="invalid_token"'),
    ],
)
async def test_a_missing_or_wrong_key_is_challenged_before_the_body_is_read(
    rig: Rig, authorization: str | None, challenge: str
) -> None:
    """W5; RFC 6750 3."""
    headers = {} if authorization is None else {b"Authorization": authorization.encode("latin-1")}
    answer = await rig.client.post(LINKS, content=b"{", headers=headers)
    is_problem(answer, 401, "Unauthorized")
    assert answer.headers["www-authenticate"] == challenge


async def test_the_scheme_of_a_key_is_read_without_case(rig: Rig) -> None:
    code = (await rig.make())["code"]
    answer = await rig.client.get(f"{LINKS}/{code}", headers={"Authorization": f"bEARER  {ADMIN}"})
    assert answer.status_code == 200


async def test_a_link_of_an_object_refuses_edits_here(rig: Rig) -> None:
    code = (await rig.make())["code"]
    row = rig.store.rows[code]
    rig.store.rows[code] = type(row)(
        **{name: getattr(row, name) for name in row.__slots__} | {"claim": "default/home"}
    )
    refused = await rig.call("DELETE", f"{LINKS}/{code}")
    assert "default/home" in is_problem(refused, 409, "ManagedByObject")["detail"]


async def test_a_freed_alias_goes_back_to_its_owner_only_when_asked_for(rig: Rig) -> None:
    """L3."""
    await rig.make(custom_alias="mine", expires_at=rig.at(DAY))
    row = rig.store.rows["mine"]
    rig.store.rows["mine"] = type(row)(
        **{name: getattr(row, name) for name in row.__slots__} | {"state": State.FREE}
    )
    is_problem(await rig.call("GET", f"{LINKS}/mine"), 404, "Unknown")
    refused = await rig.call("POST", json={"long_url": URL, "custom_alias": "mine"})
    assert is_problem(refused, 409, "SameOwner")["suggestion"] == "mine1"
    assert (await rig.make(custom_alias="mine", take_back=True))["generation"] == 2


async def test_time_is_the_managements_clock(rig: Rig) -> None:
    rig.hand.at = NOW + 1
    assert (await rig.make())["created_at"] == "2027-01-15T08:00:00.001Z"
