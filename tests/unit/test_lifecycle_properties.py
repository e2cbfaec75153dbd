"""What holds for every history of a link, however late, often or never the sweeper runs."""

import os
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlink.links.answers import answer
from shortlink.links.lifecycle import (
    KEEP,
    Actor,
    Command,
    Create,
    Delete,
    Disable,
    Edit,
    Enable,
    Restore,
    Tick,
    Transition,
    decide,
    due_times,
    expiring,
    look_again_at,
    settled,
)
from shortlink.links.model import LIVE, Cause, Event, EventKind, Link, State
from shortlink.links.policy import DAY, HOUR, YEAR, Policy
from shortlink.links.refusal import Refusal
from tests.samples import ANN, BOB, NOW, POLICY, ROOT, a_create, a_link

# Spans that reach and cross each limit: an hour, the announcement, the grace, the quarantine.
SPANS = st.one_of(
    st.integers(0, 2 * HOUR),
    st.sampled_from([1, DAY, POLICY.grace - 1, POLICY.grace, YEAR, YEAR + DAY]),
)
LIVES = st.one_of(st.none(), st.integers(1, 40 * DAY))
Script = list[tuple[int, str, int | None]]
SCRIPTS: st.SearchStrategy[Script] = st.lists(
    st.tuples(
        SPANS,
        st.sampled_from(["edit", "extend", "delete", "restore", "revive", "disable", "enable"]),
        LIVES,
    ),
    max_size=8,
)


def command(name: str, life: int | None, now: int, by: Actor = ANN) -> Command:
    expires_at = None if life is None else now + life
    commands: dict[str, Command] = {
        "edit": Edit(by=by, target=f"https://example.com/{now}"),
        "extend": Edit(by=by, expires_at=expires_at),
        "delete": Delete(by),
        "restore": Restore(by=by),
        "revive": Restore(by=by, expires_at=expires_at),
        "disable": Disable(ROOT, "spam"),
        "enable": Enable(ROOT),
    }
    return commands[name]


def swept(link: Link, policy: Policy, now: int) -> tuple[Link, list[Event]]:
    events: list[Event] = []
    while isinstance(step := decide(link, Tick(), policy, now), Transition):
        link = step.link
        events += step.events
    return link, events


def timeless(link: Link) -> Link:
    """Without what only tells how often the row was written."""
    return replace(link, version=0, changed_at=0)


def played(
    script: Script, sweeps: list[bool], policy: Policy
) -> tuple[list[object], Link, list[EventKind]]:
    """A history with a sweep before the steps so marked; what everyone was told, and the end."""
    now = NOW
    link = a_link(created_at=now, changed_at=now)
    told: list[object] = []
    events: list[Event] = []
    for (span, name, life), sweep in zip(script, sweeps, strict=False):
        now += span
        if sweep:
            link, more = swept(link, policy, now)
            events += more
        step = decide(link, command(name, life, now), policy, now)
        told.append(answer(link, now))
        if isinstance(step, Refusal):
            told.append(step)
        else:
            link = step.link
            events += step.events
            told.append(timeless(settled(link, policy, now)))
    link, more = swept(link, policy, now + 3 * YEAR)
    events += more
    ids = [event.id for event in events]
    assert len(set(ids)) == len(ids)
    return told, timeless(link), [event.kind for event in events]


@given(SCRIPTS, st.lists(st.booleans(), min_size=8, max_size=8))
def test_L4_the_sweeper_changes_no_answer_no_verdict_and_no_event(
    script: Script, sweeps: list[bool]
) -> None:
    policy = replace(POLICY, reclaim=False)
    assert played(script, sweeps, policy) == played(script, [False] * 8, policy)


@given(SCRIPTS, st.lists(SPANS, max_size=3), SPANS)
def test_L4_visitors_see_no_difference_whether_the_sweeper_came_never_late_or_twice(
    script: Script, sweeps: list[int], later: int
) -> None:
    now = NOW
    link = a_link(created_at=now, changed_at=now)
    for span, name, life in script:
        now += span
        step = decide(link, command(name, life, now), POLICY, now)
        if isinstance(step, Transition):
            link = step.link
    then = now
    tidied = link
    for span in sweeps:
        then += span
        tidied, _ = swept(tidied, POLICY, then)
        tidied, again = swept(tidied, POLICY, then)
        assert again == []
    assert answer(tidied, then + later) == answer(link, then + later)


WHO = st.sampled_from([ANN, BOB])
HISTORY = st.lists(
    st.tuples(
        st.one_of(SPANS, st.integers(-YEAR, -1)),
        st.sampled_from(["create", "back", "edit", "delete", "restore", "revive", "tick"]),
        WHO,
        LIVES,
    ),
    max_size=30,
)


@given(HISTORY)
def test_L3_L5_stamps_rise_events_are_unique_and_codes_change_hands_only_when_free(
    history: list[tuple[int, str, Actor, int | None]],
) -> None:
    """Clocks may be set back at any point."""
    now = NOW
    link: Link | None = None
    ids: list[str] = []
    for number, (span, name, by, life) in enumerate(history):
        now += span
        match name:
            case "create" | "back":
                asked: Command = a_create(
                    by=by,
                    token=str(number),
                    take_back=name == "back",
                    expires_at=KEEP if life is None else now + life,
                )
            case "tick":
                asked = Tick()
            case _:
                asked = command(name, life, now, by)
        step = decide(link, asked, POLICY, now)
        assert step == decide(link, asked, POLICY, now)
        if isinstance(step, Refusal) or step.link == link:
            continue
        new = step.link
        ids += [event.id for event in step.events]
        assert step.events
        if link is not None:
            assert new.stamp > link.stamp
            if isinstance(asked, Create):
                assert link.state is State.FREE
                assert new.stamp == (link.generation + 1, 1)
                assert link.owner != by.owner or asked.take_back
            else:
                assert (new.owner, new.token, new.created_at) == (
                    link.owner,
                    link.token,
                    link.created_at,
                )
                assert new.changed_at >= link.changed_at
        link = new
    assert len(set(ids)) == len(ids)


@given(LIVES, SPANS)
def test_L1_expiry_holds_from_its_very_instant(life: int | None, later: int) -> None:
    link = a_link(expires_at=None if life is None else NOW + life)
    expired = life is not None and later >= life
    assert answer(link, NOW + later).status == (410 if expired else 302)
    assert (settled(link, POLICY, NOW + later).state in LIVE) is not expired


@given(SCRIPTS, SPANS)
def test_L4_while_anything_is_to_come_the_sweeper_has_a_time_to_look_again(
    script: Script, later: int
) -> None:
    now = NOW
    link = a_link(created_at=now, changed_at=now)
    for span, name, life in script:
        now += span
        step = decide(link, command(name, life, now), POLICY, now)
        if isinstance(step, Transition):
            link = step.link
    now += later
    link, _ = swept(link, POLICY, now)
    at = look_again_at(link, POLICY, now)
    if at is None:
        assert link.state is State.FREE or link.expires_at is None
        return
    assert at > now
    assert swept(link, POLICY, at - 1)[0] == link
    looked = link
    for _ in range(6):
        looked, _ = swept(looked, POLICY, at)
        if (following := look_again_at(looked, POLICY, at)) is None:
            break
        at = following
    assert looked.state is State.FREE


def test_L4_due_times_of_each_state() -> None:
    gone = {"tombstoned_at": NOW, "cause": Cause.DELETED, "changed_at": NOW}
    for link, expected in [
        (a_link(), (NOW + 9 * DAY, NOW + 10 * DAY)),
        (a_link(state=State.DISABLED), (NOW + 10 * DAY,)),
        (a_link(expires_at=None), ()),
        (a_link(state=State.TOMBSTONED, **gone), (NOW + POLICY.grace,)),
        (a_link(state=State.QUARANTINED, **gone), (NOW + YEAR,)),
        (a_link(state=State.FREE, **gone), ()),
    ]:
        assert due_times(link, POLICY) == expected


def test_L3_with_reclaiming_off_a_resting_code_is_looked_at_daily() -> None:
    link = a_link(state=State.QUARANTINED, tombstoned_at=NOW - 2 * YEAR, cause=Cause.DELETED)
    policy = replace(POLICY, reclaim=False)
    assert look_again_at(link, policy, NOW) == NOW + DAY
    assert look_again_at(a_link(expires_at=None), policy, NOW) is None


@pytest.mark.parametrize(
    ("changes", "at", "announced"),
    [
        ({}, NOW + 9 * DAY - 1, False),
        ({}, NOW + 9 * DAY, True),
        ({}, NOW + 10 * DAY - 1, True),
        ({}, NOW + 10 * DAY, False),
        ({"state": State.DISABLED}, NOW + 9 * DAY, False),
        ({"expires_at": None}, NOW + 9 * DAY, False),
    ],
)
def test_L1_a_link_is_announced_in_its_last_day(
    changes: dict[str, object], at: int, announced: bool
) -> None:
    told = expiring(a_link(**changes), POLICY, at)
    assert (told is not None) == announced
    if told:
        assert (told.kind, told.at) == (EventKind.EXPIRING, NOW + 9 * DAY)


def test_L1_N1_a_link_is_announced_once_for_an_expiry() -> None:
    at = NOW + 9 * DAY
    first = expiring(a_link(), POLICY, at)
    edited = expiring(a_link(version=7, target="https://example.com/b"), POLICY, at)
    extended = expiring(a_link(expires_at=NOW + 10 * DAY - 1), POLICY, at)
    assert first
    assert edited
    assert extended
    assert first.id == edited.id != extended.id


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York", "Pacific/Kiritimati"])
def test_L1_the_machines_time_zone_has_no_influence(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: Script = [(HOUR, "extend", 40 * DAY), (DAY, "delete", None), (1, "revive", HOUR)]
    before = played(script, [True] * 3, POLICY)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert played(script, [True] * 3, POLICY) == before
    finally:
        monkeypatch.undo()
        time.tzset()
    assert os.environ.get("TZ") != zone
