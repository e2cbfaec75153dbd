"""Links and events as text (store/record.py)."""

from dataclasses import replace

import pytest

from shortlink.links.model import Cause, EventKind, Link, State, event
from shortlink.store.record import event_from_text, event_to_text, from_text, to_text
from tests.samples import NOW, a_link

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
