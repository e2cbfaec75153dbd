"""Links, events and policies as text (store/record.py)."""

import json
from dataclasses import fields, replace

import pytest

from shortlink.links.model import Cause, EventKind, Link, State, event
from shortlink.links.policy import Policy
from shortlink.store.record import (
    event_from_text,
    event_to_text,
    from_text,
    policy_from_text,
    policy_to_text,
    to_text,
)
from tests.samples import NOW, POLICY, a_link

FULL = a_link(
    state=State.TOMBSTONED,
    tombstoned_at=NOW,
    cause=Cause.EXPIRED,
    disabled="",
    expires_at=NOW,
    claim="team/promo",
    tags=("b", "a"),
    metadata=(("k", "v"), ("ü", "\x00")),
    former=("bob",),
    target="https://example.com/ü?x=%20",
)


@pytest.mark.parametrize("link", [a_link(), FULL, a_link(expires_at=None, claim=None)])
def test_a_link_comes_back_as_it_was_S2(link: Link) -> None:
    assert from_text(to_text(link)) == link


def test_equal_links_give_equal_texts() -> None:
    assert to_text(replace(FULL)) == to_text(FULL)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"state":"active"}', to_text(a_link())[:-1] + ',"new":1}']
)
def test_another_text_is_no_link(text: str) -> None:
    with pytest.raises(ValueError, match="record"):
        from_text(text)


def test_an_event_comes_back_as_it_was_N1() -> None:
    told = event(EventKind.CREATED, FULL, NOW)
    assert event_from_text(event_to_text(told)) == told


@pytest.mark.parametrize("text", ["", "[]", "1", '["id","unheard of","c",1,1,1,"o","t"]'])
def test_another_text_is_no_event(text: str) -> None:
    with pytest.raises(ValueError, match="record"):
        event_from_text(text)


@pytest.mark.parametrize(
    "policy",
    [Policy(), POLICY, Policy(1, 2, 0, False, 4, frozenset({"a.b", "c:8"}), 5, 0.5, 6)],
)
def test_a_policy_comes_back_as_it_was(policy: Policy) -> None:
    assert policy_from_text(policy_to_text(policy)) == policy


def test_a_policy_is_kept_whole_for_releases_with_other_defaults() -> None:
    assert set(json.loads(policy_to_text(Policy()))) == {each.name for each in fields(Policy)}


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", policy_to_text(POLICY)[:-1] + ',"new":1}', '{"own_hosts":1}']
)
def test_another_text_is_no_policy(text: str) -> None:
    with pytest.raises(ValueError, match="record"):
        policy_from_text(text)
