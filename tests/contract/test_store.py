"""What every store promises (store/port.py), one promise a test (S1, S3, S5)."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shortlink.links.model import Cause, Event, EventKind, Link, State, as_metadata, event
from shortlink.store.port import Claim, Due, LinkStore, StoreError
from tests import samples
from tests.samples import NOW

REGIONS = ("us-east-1", "eu-west-1")
"""Of the stores under contract, where they have regions at all."""


def a_link(code: str = "AbC1234", **values: Any) -> Link:
    return samples.a_link(code=code, **{"token": f"token of {code}", **values})


def created(link: Link) -> Event:
    return event(EventKind.CREATED, link, link.changed_at)


def edited(link: Link, **values: Any) -> tuple[Link, Event]:
    """The next version of `link`, and the event that says so."""
    values.setdefault("target", f"https://example.com/{link.version + 1}")
    new = replace(link, version=link.version + 1, changed_at=link.changed_at + 1, **values)
    return new, event(EventKind.EDITED, new, new.changed_at)


async def put(store: LinkStore, link: Link, *due: int) -> Link:
    """Create `link` without events."""
    held = await store.create(link, (), due)
    assert held == link
    return held


# Installation


async def test_the_first_slot_key_is_the_installations(store: LinkStore) -> None:
    assert await store.install(b"1" * 16) == b"1" * 16
    assert await store.install(b"2" * 16) == b"1" * 16


async def test_of_many_installing_at_once_one_chooses_the_key(
    store: LinkStore, other: LinkStore
) -> None:
    keys = [bytes([n]) * 16 for n in range(20)]
    in_force = await asyncio.gather(*(each.install(key) for key in keys for each in (store, other)))
    assert len(set(in_force)) == 1
    assert in_force[0] in keys


# Creating


async def test_a_created_link_is_there(store: LinkStore) -> None:
    link = a_link()
    assert await store.get(link.code) is None
    assert await store.create(link, (), ()) == link
    assert await store.get(link.code) == link


async def test_a_code_is_created_once(store: LinkStore) -> None:
    first = await put(store, a_link())
    late = a_link(owner="bob", token="bob's", target="https://example.net/")
    assert await store.create(late, (created(late),), (NOW,)) == first
    assert await store.get(first.code) == first
    assert await store.pending(10) == []
    assert await store.due(NOW, 10) == []


async def test_of_many_creating_one_code_one_wins_and_all_learn_who_G7(
    store: LinkStore, other: LinkStore
) -> None:
    links = [a_link(token=str(n), owner=f"owner {n}") for n in range(50)]
    held = await asyncio.gather(
        *(
            each.create(link, (created(link),), ())
            for each, link in zip(itertools.cycle((store, other)), links, strict=False)
        )
    )
    assert len(set(held)) == 1
    assert held[0] in links
    assert [told.owner for told in await store.pending(100)] == [held[0].owner]


async def test_codes_that_differ_by_case_are_two_links_G1(store: LinkStore) -> None:
    upper = await put(store, a_link("AbC1234"))
    lower = await put(store, a_link("abc1234", owner="bob"))
    assert await store.get("AbC1234") == upper
    assert await store.get("abc1234") == lower
    assert await store.get("ABC1234") is None


async def test_a_repeated_create_succeeds_and_adds_nothing_W7(store: LinkStore) -> None:
    link = a_link()
    for _ in range(3):
        held = await store.create(link, (created(link),), (NOW,))
        assert (held.token, held.generation) == (link.token, link.generation)
    assert len(await store.pending(10)) == 1
    await store.published([created(link).id])
    await store.create(link, (created(link),), ())
    assert await store.pending(10) == []


async def test_a_create_repeated_after_a_change_gives_the_changed_link_W7(
    store: LinkStore,
) -> None:
    link = await put(store, a_link())
    new, _ = edited(link)
    await store.change(link, new, (), ())
    assert await store.create(link, (created(link),), ()) == new
    assert await store.pending(10) == []


# Changing


async def test_a_change_replaces_the_link(store: LinkStore) -> None:
    link = await put(store, a_link())
    new, told = edited(link)
    assert await store.change(link, new, (told,), (NOW,)) == new
    assert await store.get(link.code) == new
    assert await store.pending(10) == [told]
    assert await store.due(NOW, 10) == [Due(NOW, link.code)]


async def test_a_change_leaves_other_links_alone(store: LinkStore) -> None:
    link = await put(store, a_link())
    others = [await put(store, a_link(code)) for code in ("abc1234", "AbC1235", "AbC123")]
    new, _ = edited(link)
    await store.change(link, new, (), ())
    assert [await store.get(each.code) for each in others] == others


@pytest.mark.parametrize(
    "stale", [{"version": 1}, {"version": 3}, {"generation": 2}, {"generation": 0}]
)
async def test_a_change_from_another_stamp_is_refused_and_told_the_link(
    store: LinkStore, stale: dict[str, Any]
) -> None:
    link = await put(store, a_link(version=2))
    old = replace(link, **stale)
    new, told = edited(old, owner="bob")
    assert await store.change(old, new, (told,), (NOW,)) == link
    assert await store.get(link.code) == link
    assert await store.pending(10) == []
    assert await store.due(NOW, 10) == []


async def test_of_many_changes_from_one_stamp_one_wins_and_all_learn_which_L5(
    store: LinkStore, other: LinkStore
) -> None:
    link = await put(store, a_link())
    changes = [edited(link, target=f"https://example.com/{n}") for n in range(20)]
    held = await asyncio.gather(
        *(
            each.change(link, new, (told,), ())
            for each, (new, told) in zip(itertools.cycle((store, other)), changes, strict=False)
        )
    )
    assert len(set(held)) == 1
    assert held[0] in [new for new, _ in changes]
    assert await store.get(link.code) == held[0]
    assert [told.target for told in await store.pending(100)] == [held[0].target]


async def test_a_repeated_change_succeeds_and_adds_nothing(store: LinkStore) -> None:
    link = await put(store, a_link())
    new, told = edited(link)
    for _ in range(2):
        assert await store.change(link, new, (told,), (NOW,)) == new
    assert await store.pending(10) == [told]
    await store.published([told.id])
    await store.done([Due(NOW, link.code)], [])
    assert await store.change(link, new, (told,), (NOW,)) == new
    assert await store.pending(10) == []
    assert await store.due(NOW, 10) == []


async def test_a_change_of_no_link_is_an_error(store: LinkStore) -> None:
    link = a_link()
    new, told = edited(link)
    with pytest.raises(KeyError, match=link.code):
        await store.change(link, new, (told,), (NOW,))
    assert await store.get(link.code) is None
    assert await store.pending(10) == []


async def test_a_reissued_code_keeps_nothing_of_the_former_owner_L3(store: LinkStore) -> None:
    free = await put(
        store,
        a_link(
            state=State.FREE,
            version=7,
            claim="team/promo",
            tombstoned_at=NOW,
            cause=Cause.DELETED,
            disabled="spam",
            tags=("a",),
            metadata=(("k", "v"),),
        ),
    )
    reissued = a_link(generation=2, owner="bob", token="bob's", custom=True)
    assert await store.change(free, reissued, (), ()) == reissued
    assert await store.get(free.code) == reissued


async def test_one_failing_write_leaves_those_beside_it_alone(store: LinkStore) -> None:
    links = [a_link(f"code{n}") for n in range(20)]
    missing, _ = edited(a_link("missing"))
    outcomes = await asyncio.gather(
        *(
            call
            for link in links
            for call in (store.create(link, (), ()), store.change(missing, missing, (), ()))
        ),
        return_exceptions=True,
    )
    assert outcomes[::2] == links
    assert {type(outcome) for outcome in outcomes[1::2]} == {KeyError}
    assert [await store.get(link.code) for link in links] == links


# What is kept of a link

_text = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=64)
_instants = st.integers(0, 253_402_300_799_999)  # up to the year 9999
_LINKS = st.builds(
    Link,
    code=st.text("0123456789ABCXYZabcxyz", max_size=14),
    generation=st.integers(1, 2**31),
    version=st.integers(1, 2**31),
    state=st.sampled_from(State),
    owner=_text,
    target=_text.map(lambda text: f"https://example.com/{text}"),
    permanent=st.booleans(),
    custom=st.booleans(),
    created_at=_instants,
    changed_at=_instants,
    expires_at=st.none() | _instants,
    token=_text,
    claim=st.none() | _text,
    tombstoned_at=st.none() | _instants,
    cause=st.none() | st.sampled_from(Cause),
    disabled=st.none() | st.text(st.characters(exclude_categories=("Cs", "Cc"))),
    tags=st.lists(_text, max_size=20).map(tuple),
    metadata=st.dictionaries(_text, _text, max_size=20).map(as_metadata),
    former=st.lists(_text, max_size=3).map(tuple),
)
_numbers = itertools.count()


@given(drawn=_LINKS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    # Without Phase.shrink: with a sync for each write it would take minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
async def test_every_field_of_a_link_is_kept_S2(store: LinkStore, drawn: Link) -> None:
    link = replace(drawn, code=f"{next(_numbers):06}{drawn.code}")
    told = replace(created(link), kind=EventKind.EXPIRING)
    assert await store.create(link, (told,), ()) == link
    assert await store.get(link.code) == link
    assert link in await store.by_owner(link.owner, "", 100)
    assert await store.pending(1) == [told]
    changed, _ = edited(link)
    assert await store.change(link, changed, (), ()) == changed
    assert await store.get(link.code) == changed
    await store.published([told.id])


@pytest.mark.parametrize("year", [2038, 2106, 9999])
async def test_expiries_beyond_32_bits_are_kept_and_fall_due_W4(
    store: LinkStore, year: int
) -> None:
    at = (year + 1 - 1970) * 31_556_952_000
    link = await put(store, a_link(expires_at=at), at)
    assert await store.get(link.code) == link
    assert await store.due(at - 1, 10) == []
    assert await store.due(at, 10) == [Due(at, link.code)]


@pytest.mark.parametrize("field", ["owner", "token", "target", "claim", "disabled"])
async def test_text_that_is_no_unicode_is_refused_or_kept_and_harms_nothing(
    store: LinkStore, field: str
) -> None:
    bad = a_link("bad1234", **{field: "\ud800"})
    links = [a_link(f"code{n}") for n in range(10)]
    outcome, *held = await asyncio.gather(
        store.create(bad, (created(bad),), (NOW,)),
        *(store.create(link, (), ()) for link in links),
        return_exceptions=True,
    )
    assert isinstance(outcome, ValueError) or outcome == bad
    assert held == links
    assert await store.get(bad.code) == (None if isinstance(outcome, ValueError) else bad)


async def test_a_code_with_a_nul_finds_no_other_link(store: LinkStore) -> None:
    await put(store, a_link("AbC1234"))
    try:
        found = await store.get("AbC1234\0x")
    except ValueError:
        found = None
    assert found is None


# Hints


async def test_hints_come_by_time_then_only_those_due_L4(store: LinkStore) -> None:
    await put(store, a_link("b"), NOW + 2, NOW)
    await put(store, a_link("a"), NOW + 1, NOW + 3)
    assert await store.due(NOW - 1, 10) == []
    assert await store.due(NOW + 2, 10) == [Due(NOW, "b"), Due(NOW + 1, "a"), Due(NOW + 2, "b")]


async def test_hints_are_limited_to_the_earliest_L4(store: LinkStore) -> None:
    for n in (3, 1, 2):
        await put(store, a_link(f"code{n}"), NOW + n)
    assert await store.due(NOW + 9, 2) == [Due(NOW + 1, "code1"), Due(NOW + 2, "code2")]


async def test_links_due_at_one_instant_all_come_L4(store: LinkStore) -> None:
    for code in ("aaa", "AAA", "bbb"):
        await put(store, a_link(code), NOW)
    assert {hint.code for hint in await store.due(NOW, 10)} == {"aaa", "AAA", "bbb"}


async def test_hints_dealt_with_go_and_their_successors_come_L4(store: LinkStore) -> None:
    await put(store, a_link("aaa"), NOW, NOW + 1)
    await put(store, a_link("bbb"), NOW)
    for _ in range(2):  # a sweeper that crashed does it again
        await store.done([Due(NOW, "aaa")], [Due(NOW + 5, "aaa")])
    assert await store.due(NOW + 9, 10) == [
        Due(NOW, "bbb"),
        Due(NOW + 1, "aaa"),
        Due(NOW + 5, "aaa"),
    ]


async def test_a_hint_dealt_with_and_kept_again_stays_L4(store: LinkStore) -> None:
    await put(store, a_link("aaa"), NOW)
    await store.done([Due(NOW, "aaa")], [Due(NOW, "aaa")])
    assert await store.due(NOW, 10) == [Due(NOW, "aaa")]


async def test_dealing_with_nothing_changes_nothing_L4(store: LinkStore) -> None:
    await put(store, a_link("aaa"), NOW)
    await store.done([], [])
    await store.done([Due(NOW, "AAA"), Due(NOW + 1, "aaa")], [])
    assert await store.due(NOW, 10) == [Due(NOW, "aaa")]


# Events


async def test_events_are_kept_in_order_until_published_N1(store: LinkStore) -> None:
    link = a_link("zzz")
    told = [created(link)]
    await store.create(link, told, ())
    for _ in range(3):
        new, edit = edited(link)
        expiring = event(EventKind.EXPIRING, new, NOW)
        await store.change(link, new, (edit, expiring), ())
        told += [edit, expiring]
        link = new
    late = a_link("aaa")
    await store.create(late, [created(late)], ())
    told.append(created(late))
    assert await store.pending(100) == told
    assert await store.pending(2) == told[:2]
    await store.published([told[1].id, told[3].id])
    await store.published([told[1].id])
    await store.published([])
    assert await store.pending(100) == [told[0], told[2], *told[4:]]


async def test_an_event_announced_twice_is_pending_once_N1(store: LinkStore) -> None:
    link = a_link()
    told = event(EventKind.EXPIRING, link, NOW)
    await asyncio.gather(*(store.announce(told) for _ in range(5)))
    await store.announce(replace(told, at=NOW + 1))
    assert await store.pending(10) == [told]
    await store.published([told.id])
    assert await store.pending(10) == []


# By owner


async def test_an_owners_links_come_by_code_in_pages_S3(store: LinkStore) -> None:
    codes = ["0aa", "9aa", "Aaa", "Zaa", "aAa", "aaa", "aab", "zaa"]
    for code in reversed(codes):
        await put(store, a_link(code))
        await put(store, a_link(f"{code}X", owner="Ann"))
    after, seen, pages = "", [], 0
    while page := await store.by_owner("ann", after, 3):
        assert len(page) <= 3
        seen += [link.code for link in page]
        after, pages = page[-1].code, pages + 1
    assert seen == codes
    assert pages == 3
    assert await store.by_owner("nobody", "", 10) == []


async def test_an_owners_list_has_the_links_as_they_are_S3(store: LinkStore) -> None:
    link = await put(store, a_link())
    new, _ = edited(link, state=State.TOMBSTONED, tombstoned_at=NOW, cause=Cause.DELETED)
    await store.change(link, new, (), ())
    assert await store.by_owner("ann", "", 10) == [new]


async def test_a_reissued_code_is_listed_for_its_new_owner_only_S3(store: LinkStore) -> None:
    free = await put(store, a_link(state=State.FREE))
    reissued = a_link(generation=2, owner="bob", token="bob's")
    await store.change(free, reissued, (), ())
    assert await store.by_owner("ann", "", 10) == []
    assert await store.by_owner("bob", "", 10) == [reissued]


# What parts of the store have each


async def test_every_view_has_a_link_that_all_were_told_of_O4(store: LinkStore) -> None:
    link = await put(store, a_link())
    new, _ = edited(link)
    await store.change(link, new, (), ())
    for code, seen in ((link.code, new), ("never12", None)):
        views = (await store.views(code)).values()
        # A part that is away says so, in the other parts' company.
        assert {view for view in views if not isinstance(view, StoreError)} <= {seen}
        assert not views or seen in views


# Policies


async def test_each_region_has_the_policy_kept_for_it_last(store: LinkStore) -> None:
    assert await store.policies() == {}
    await store.keep_policy(REGIONS[0], "first")
    await store.keep_policy(REGIONS[1], "another's")
    for text in ("second, ü", "second, ü", "first"):
        await store.keep_policy(REGIONS[0], text)
        assert await store.policies() == {REGIONS[0]: text, REGIONS[1]: "another's"}
    assert await store.install(b"1" * 16) == b"1" * 16


async def test_of_many_policies_kept_at_once_one_is_in_force(
    store: LinkStore, other: LinkStore
) -> None:
    texts = [str(n) for n in range(8)]
    await asyncio.gather(
        *(
            each.keep_policy(REGIONS[0], text)
            for each, text in zip(itertools.cycle((store, other)), texts, strict=False)
        )
    )
    held = await store.policies()
    assert await other.policies() == held
    assert held[REGIONS[0]] in texts


# Claims

HELD = Claim("team/promo", "AbC1234", 1, "token")
WHOLE = replace(HELD, cluster="us-east-1", uid="0b29f6b2", retain=True)
OTHERS = Claim("team/promo", "XyZ9876", 1, "another's")


async def test_the_first_claim_of_a_key_is_in_force(store: LinkStore) -> None:
    assert await store.find_claim(HELD.key) is None
    assert await store.claim(HELD) == HELD
    assert await store.claim(HELD) == HELD
    assert await store.claim(OTHERS) == HELD
    assert await store.find_claim(HELD.key) == HELD
    assert await store.find_claim("Team/promo") is None


@pytest.mark.parametrize(
    "claim",
    [WHOLE, replace(WHOLE, uid=""), replace(WHOLE, cluster=""), replace(WHOLE, retain=False)],
)
async def test_a_claim_is_kept_whole(store: LinkStore, other: LinkStore, claim: Claim) -> None:
    assert await store.claim(claim) == claim
    assert await other.claim(OTHERS) == claim
    assert await other.find_claim(claim.key) == claim
    assert await other.claims("", 10) == [claim]
    assert await store.reclaim(claim, None) is True
    assert await store.claim(HELD) == HELD


@pytest.mark.parametrize("held", [HELD, WHOLE])
@pytest.mark.parametrize(
    "change",
    [
        {"uid": "of another"},
        {"uid": ""},
        {"cluster": "eu-west-1"},
        {"cluster": ""},
        {"retain": False},
        {"retain": True},
        {"cluster": "eu-west-1", "uid": "of another", "retain": False},
    ],
    ids=str,
)
async def test_whose_a_claim_is_and_what_becomes_of_it_changes_and_again(
    store: LinkStore, held: Claim, change: dict[str, Any]
) -> None:
    await store.claim(held)
    new = replace(held, **change)
    for _ in range(2):
        assert await store.reclaim(held, new) is True
        assert await store.find_claim(held.key) == new
    assert await store.reclaim(held, None) is (new == held)
    for _ in range(2):
        assert await store.reclaim(new, None) is True
        assert await store.find_claim(held.key) is None


async def test_of_many_claiming_one_key_one_wins_and_all_learn_who(
    store: LinkStore, other: LinkStore
) -> None:
    claims = [Claim("team/promo", f"code{n}", 1, str(n)) for n in range(20)]
    held = await asyncio.gather(
        *(
            each.claim(claim)
            for each, claim in zip(itertools.cycle((store, other)), claims, strict=False)
        )
    )
    assert len(set(held)) == 1
    assert held[0] in claims


async def test_a_claim_is_replaced_by_who_holds_it_and_again(store: LinkStore) -> None:
    await store.claim(HELD)
    new = replace(HELD, code="new1234", token="next")
    for _ in range(2):
        assert await store.reclaim(HELD, new) is True
        assert await store.find_claim(HELD.key) == new


async def test_a_claim_is_released_by_who_holds_it_and_again(store: LinkStore) -> None:
    await store.claim(HELD)
    await store.claim(replace(OTHERS, key="team/other"))
    for _ in range(2):
        assert await store.reclaim(HELD, None) is True
        assert await store.find_claim(HELD.key) is None
    assert await store.find_claim("team/other") is not None
    assert await store.claim(OTHERS) == OTHERS


@pytest.mark.parametrize(
    ("held", "field"),
    [
        (HELD, {"code": "new1234"}),
        (HELD, {"generation": 2}),
        (HELD, {"token": "next"}),
        (HELD, {"cluster": "us-east-1"}),
        (HELD, {"uid": "of another"}),
        (HELD, {"retain": True}),
        (WHOLE, {"cluster": "eu-west-1"}),
        (WHOLE, {"cluster": ""}),
        (WHOLE, {"uid": "of another"}),
        (WHOLE, {"uid": ""}),
        (WHOLE, {"retain": False}),
    ],
)
@pytest.mark.parametrize("release", [True, False])
async def test_anothers_claim_is_neither_replaced_nor_released(
    store: LinkStore, held: Claim, field: dict[str, Any], release: bool
) -> None:
    await store.claim(held)
    wrong = replace(held, **field)
    new = None if release else replace(held, code="third12", token="third")
    assert await store.reclaim(wrong, new) is False
    assert await store.find_claim(held.key) == held


async def test_of_many_replacing_one_claim_one_wins(store: LinkStore, other: LinkStore) -> None:
    await store.claim(HELD)
    news = [replace(HELD, code=f"code{n}", token=str(n)) for n in range(20)]
    won = await asyncio.gather(
        *(
            each.reclaim(HELD, new)
            for each, new in zip(itertools.cycle((store, other)), news, strict=False)
        )
    )
    assert won.count(True) == 1
    assert await store.find_claim(HELD.key) == news[won.index(True)]


async def test_claims_come_by_key_in_pages(store: LinkStore) -> None:
    claims = [Claim(f"team/{name}", f"code{name}", 1, name) for name in ("B", "a", "b", "c")]
    for claim in reversed(claims):
        await store.claim(claim)
    assert await store.claims("", 3) == claims[:3]
    assert await store.claims("team/b", 3) == claims[3:]
    assert await store.claims("team/c", 3) == []


# The store itself


async def test_a_read_sees_every_write_acknowledged_before_it(
    store: LinkStore, other: LinkStore
) -> None:
    async def one(n: int) -> None:
        link = await put(store, a_link(f"code{n}", owner=f"owner {n}"), NOW + n)
        for reader in (store, other):
            assert await reader.get(link.code) == link
            assert await reader.by_owner(link.owner, "", 1) == [link]
            assert Due(NOW + n, link.code) in await reader.due(NOW + n, 1000)
        new, told = edited(link)
        await store.change(link, new, (told,), ())
        for reader in (store, other):
            assert await reader.get(link.code) == new
            assert told in await reader.pending(1000)

    await asyncio.gather(*(one(n) for n in range(100)))


async def test_a_reopened_store_has_all_that_was_acknowledged(
    store: LinkStore, open_store: Callable[[], Awaitable[LinkStore]]
) -> None:
    link = a_link(tags=("a",), metadata=(("k", "v"),))
    await store.install(b"1" * 16)
    await store.create(link, (created(link),), (NOW,))
    new, told = edited(link)
    await store.change(link, new, (told,), (NOW + 1,))
    await store.claim(WHOLE)
    await store.keep_policy(REGIONS[0], "policy")
    await store.close()
    again = await open_store()
    assert await again.install(b"2" * 16) == b"1" * 16
    assert await again.get(link.code) == new
    assert await again.by_owner("ann", "", 10) == [new]
    assert await again.pending(10) == [created(link), told]
    assert await again.due(NOW + 1, 10) == [Due(NOW, link.code), Due(NOW + 1, link.code)]
    assert await again.claims("", 10) == [WHOLE]
    assert await again.policies() == {REGIONS[0]: "policy"}


async def test_writes_that_wait_are_done_before_the_store_is_closed(
    store: LinkStore, open_store: Callable[[], Awaitable[LinkStore]]
) -> None:
    links = [a_link(f"code{n}") for n in range(200)]
    writes = [asyncio.ensure_future(store.create(link, (), ())) for link in links]
    await asyncio.sleep(0)  # each has begun
    await store.close()
    assert await asyncio.gather(*writes) == links
    again = await open_store()
    assert [await again.get(link.code) for link in links] == links


async def test_an_open_store_answers_a_ping(store: LinkStore) -> None:
    await store.ping()


async def test_a_store_may_be_closed_twice(store: LinkStore) -> None:
    await store.close()
    await store.close()
