"""decide(): every state by every command by everyone who may ask (L1 to L5, G7, W2, W6)."""

from dataclasses import replace
from itertools import product

import pytest

from shortlink.links.lifecycle import (
    Actor,
    Command,
    Delete,
    Disable,
    Edit,
    Enable,
    Restore,
    Tick,
    Transition,
    decide,
)
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import DAY, HOUR, STALE_BOUND, YEAR, Policy
from shortlink.links.refusal import Reason, Refusal
from tests.samples import ANN, ANNS_OBJECT, BOB, NOW, POLICY, ROOT, a_create, a_link

GONE = {"state": State.TOMBSTONED, "tombstoned_at": NOW - DAY, "cause": Cause.DELETED}
OVER = GONE | {"tombstoned_at": NOW - 30 * DAY}
LAPSED = GONE | {"expires_at": NOW - DAY, "cause": Cause.EXPIRED}
BANNED = {"state": State.DISABLED, "disabled": "spam"}
RETIRED = GONE | {"state": State.QUARANTINED, "tombstoned_at": NOW - YEAR + HOUR}

ROWS: dict[str, Link | None] = {
    "never": None,
    "active": a_link(),
    "lapsed": a_link(expires_at=NOW),
    "long-lapsed": a_link(expires_at=NOW - 30 * DAY),
    "disabled": a_link(**BANNED),
    "disabled-lapsed": a_link(**BANNED, expires_at=NOW),
    "tombstoned": a_link(**GONE),
    "tombstoned-lapsed": a_link(**LAPSED),
    "tombstoned-banned": a_link(**GONE, disabled="spam"),
    "grace-over": a_link(**OVER),
    "quarantined": a_link(**RETIRED),
    "quarantined-due": a_link(**RETIRED | {"tombstoned_at": NOW - YEAR}),
    "free": a_link(**RETIRED | {"state": State.FREE}),
}

COLUMNS = ("edit", "extend", "delete", "restore", "revive", "disable", "enable", "tick")

# What becomes of a row under a command of one who may give it: `state+events`, `same`, or the
# refusal's reason. (lapsed: past its expiry, but no sweeper has come by.)
TABLE = """
never             Unknown         Unknown         Unknown               Unknown           Unknown                      Unknown                        Unknown                       Unknown
active            active+edited   active+edited   tombstoned+tombstoned same              NotTombstoned                disabled+disabled              same                          NotDue
lapsed            Tombstoned      Tombstoned      same                  ExpiryInPast      active+tombstoned+restored   tombstoned+tombstoned+disabled same                          tombstoned+tombstoned
long-lapsed       GraceOver       GraceOver       same                  GraceOver         GraceOver                    GraceOver                      GraceOver                     quarantined+tombstoned+quarantined
disabled          disabled+edited disabled+edited tombstoned+tombstoned same              NotTombstoned                same                           active+enabled                NotDue
disabled-lapsed   Tombstoned      Tombstoned      same                  ExpiryInPast      disabled+tombstoned+restored same                           tombstoned+tombstoned+enabled tombstoned+tombstoned
tombstoned        Tombstoned      Tombstoned      same                  active+restored   active+restored              tombstoned+disabled            same                          NotDue
tombstoned-lapsed Tombstoned      Tombstoned      same                  ExpiryInPast      active+restored              tombstoned+disabled            same                          NotDue
tombstoned-banned Tombstoned      Tombstoned      same                  disabled+restored disabled+restored            same                           tombstoned+enabled            NotDue
grace-over        GraceOver       GraceOver       same                  GraceOver         GraceOver                    GraceOver                      GraceOver                     quarantined+quarantined
quarantined       GraceOver       GraceOver       same                  GraceOver         GraceOver                    GraceOver                      GraceOver                     NotDue
quarantined-due   GraceOver       GraceOver       same                  GraceOver         GraceOver                    GraceOver                      GraceOver                     free+freed
free              Unknown         Unknown         Unknown               Unknown           Unknown                      Unknown                        Unknown                       NotDue
"""  # noqa: E501
CELLS = [
    (row, column, expected)
    for row, *cells in (line.split() for line in TABLE.strip().splitlines())
    for column, expected in zip(COLUMNS, cells, strict=True)
]

ROOTS_OBJECT = replace(ROOT, claim="ann/promo")

# Who may give a command, to a link of Ann's made by the API and to one of her object `ann/promo`.
OWNERS_OWN = {
    ("api", ANN): "",
    ("api", BOB): "NotOwner",
    ("api", ROOT): "",
    ("api", ANNS_OBJECT): "ManagedByObject",
    ("object", ANN): "ManagedByObject",
    ("object", BOB): "NotOwner",
    ("object", replace(BOB, claim="ann/promo")): "NotOwner",
    ("object", replace(ANN, claim="ann/other")): "ManagedByObject",
    ("object", ROOT): "ManagedByObject",
    ("object", ANNS_OBJECT): "",
    ("object", ROOTS_OBJECT): "",
}
MODERATION = {key: "" if key[1].admin else "NotOwner" for key in OWNERS_OWN}


def command(column: str, by: Actor) -> Command:
    commands: dict[str, Command] = {
        "edit": Edit(by=by, target="https://example.com/b"),
        "extend": Edit(by=by, expires_at=NOW + YEAR),
        "delete": Delete(by),
        "restore": Restore(by=by),
        "revive": Restore(by=by, expires_at=NOW + YEAR),
        "disable": Disable(by, "spam"),
        "enable": Enable(by),
        "tick": Tick(),
    }
    return commands[column]


def verdict(before: Link | None, step: Transition | Refusal) -> str:
    if isinstance(step, Refusal):
        assert step.message
        return step.reason
    if step.link == before:
        assert step.events == ()
        return "same"
    assert [event.id for event in step.events] == [
        f"promo.1.{step.link.version}.{event.kind}" for event in step.events
    ]
    return "+".join([step.link.state, *(event.kind for event in step.events)])


def test_L1_the_table_covers_every_state_and_command() -> None:
    assert {row for row, _, _ in CELLS} == ROWS.keys()
    assert len(CELLS) == len(ROWS) * len(COLUMNS)
    assert {link.state for link in ROWS.values() if link} == set(State)


@pytest.mark.parametrize(("row", "column", "expected"), CELLS)
def test_L1_L2_W2_what_becomes_of_a_link(row: str, column: str, expected: str) -> None:
    rules = MODERATION if column in ("disable", "enable") else OWNERS_OWN
    for (made_by, actor), forbidden in rules.items():
        link = ROWS[row]
        if link is not None and made_by == "object":
            link = replace(link, claim="ann/promo")
        if column == "tick" or row in ("never", "free"):
            forbidden = ""
        step = decide(link, command(column, actor), POLICY, NOW)
        assert verdict(link, step) == (forbidden or expected), (made_by, actor)
        assert step == decide(link, command(column, actor), POLICY, NOW)


@pytest.mark.parametrize(
    ("row", "column"), list(product(("active", "disabled", "tombstoned", "lapsed"), COLUMNS))
)
def test_L1_a_command_repeated_changes_nothing_more(row: str, column: str) -> None:
    by = ROOT if column in ("disable", "enable") else ANN
    first = decide(ROWS[row], command(column, by), POLICY, NOW)
    if isinstance(first, Transition):
        again = decide(first.link, command(column, by), POLICY, NOW + 1)
        if column == "tick":
            assert isinstance(again, Refusal)
            assert again.reason is Reason.NOT_DUE
        else:
            assert again == Transition(first.link)


NOT_FREE = [row for row in ROWS if row not in ("never", "free")]


@pytest.mark.parametrize("by", [ANN, BOB, ROOT, ANNS_OBJECT])
@pytest.mark.parametrize("custom", [True, False])
@pytest.mark.parametrize("take_back", [True, False])
@pytest.mark.parametrize("row", NOT_FREE)
def test_L2_L5_G7_a_code_in_use_or_resting_is_issued_to_nobody(
    row: str, by: Actor, custom: bool, take_back: bool
) -> None:
    wanted = a_create(by=by, custom=custom, take_back=take_back)
    step = decide(ROWS[row], wanted, POLICY, NOW)
    assert isinstance(step, Refusal)
    assert step.reason is Reason.TAKEN
    own_tombstone = by.owner == "ann" and row in (
        "lapsed",
        "disabled-lapsed",
        "tombstoned",
        "tombstoned-lapsed",
        "tombstoned-banned",
    )
    assert ("restore it" in step.message) == own_tombstone


@pytest.mark.parametrize(
    ("by", "custom", "take_back", "expected"),
    [
        (BOB, True, False, "active+created"),
        (ROOT, True, False, "active+created"),
        (ANN, True, False, "SameOwner"),
        (ANN, True, True, "active+created"),
        (ANNS_OBJECT, True, False, "SameOwner"),
        (BOB, False, False, "Taken"),
        (ANN, False, True, "Taken"),
    ],
)
def test_L3_a_freed_code_goes_by_alias_to_another_owner(
    by: Actor, custom: bool, take_back: bool, expected: str
) -> None:
    free = ROWS["free"]
    assert free is not None
    free = replace(free, version=9, disabled="spam", tags=("old",))
    step = decide(free, a_create(by=by, custom=custom, take_back=take_back), POLICY, NOW)
    if isinstance(step, Refusal):
        assert step.reason == expected
        return
    assert step.link == a_link(
        generation=2,
        owner=by.owner,
        token="t2",
        created_at=NOW,
        changed_at=NOW,
        expires_at=NOW + POLICY.default_ttl,
        former=("ann",),
    )
    assert [event.id for event in step.events] == ["promo.2.1.created"]


def test_L3_a_code_goes_back_unasked_to_none_of_its_former_owners() -> None:
    free = replace(a_link(**RETIRED | {"state": State.FREE}), owner="bob", former=("ann",))
    refused = decide(free, a_create(by=ANN), POLICY, NOW)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.SAME_OWNER
    asked = decide(free, a_create(by=ANN, take_back=True), POLICY, NOW)
    assert isinstance(asked, Transition)
    assert asked.link.former == ("ann", "bob")


def test_W4_a_new_link_lives_as_long_as_asked_or_by_default() -> None:
    def expiry(**changes: object) -> int | None:
        step = decide(None, a_create(**changes), POLICY, NOW)
        assert isinstance(step, Transition)
        return step.link.expires_at

    assert expiry() == NOW + 5 * YEAR
    assert expiry(permanent=True) is None
    assert expiry(expires_at=None) is None
    assert expiry(expires_at=NOW + 1) == NOW + 1


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"code": "ab"}, Reason.INVALID_ALIAS, "alias"),
        ({"code": "API"}, Reason.RESERVED, "alias"),
        ({"target": "ftp://example.com/"}, Reason.INVALID_TARGET, "target"),
        ({"target": "https://sho.rt/x"}, Reason.INVALID_TARGET, "target"),
        ({"tags": ("",)}, Reason.INVALID_LABELS, "tags"),
        ({"metadata": (("a", ""),)}, Reason.INVALID_LABELS, "metadata"),
        ({"expires_at": NOW}, Reason.EXPIRY_IN_PAST, "expires_at"),
        ({"expires_at": -(10**18)}, Reason.EXPIRY_IN_PAST, "expires_at"),
        ({"expires_at": NOW + 1, "permanent": True}, Reason.PERMANENT_EXPIRES, "redirect_type"),
    ],
)
def test_W1_P2_what_no_link_is_made_of(
    changes: dict[str, object], reason: Reason, field: str
) -> None:
    step = decide(None, a_create(**changes), POLICY, NOW)
    assert isinstance(step, Refusal)
    assert (step.reason, step.field) == (reason, field)


def test_G1_a_generated_code_is_not_checked_as_an_alias() -> None:
    assert isinstance(decide(None, a_create(code="x", custom=False), POLICY, NOW), Transition)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": "javascript:alert(1)"}, Reason.INVALID_TARGET),
        ({"tags": ("a\n",)}, Reason.INVALID_LABELS),
        ({"expires_at": NOW}, Reason.EXPIRY_IN_PAST),
        ({"expires_at": NOW - YEAR}, Reason.EXPIRY_IN_PAST),
        ({"permanent": True}, Reason.PERMANENT_EXPIRES),
    ],
)
def test_W2_what_no_link_is_changed_to(changes: dict[str, object], reason: Reason) -> None:
    step = decide(a_link(), Edit(by=ANN, **changes), POLICY, NOW)  # type: ignore[arg-type]
    assert isinstance(step, Refusal)
    assert step.reason is reason


def test_W2_an_edit_changes_what_it_names_and_no_more() -> None:
    wanted = {
        "target": "https://example.com/b",
        "expires_at": None,
        "permanent": True,
        "tags": ("x",),
        "metadata": (("k", "v"),),
    }
    edit = Edit(by=ANN, **wanted)  # type: ignore[arg-type]
    step = decide(a_link(), edit, POLICY, NOW)
    assert isinstance(step, Transition)
    assert step.link == a_link(version=2, changed_at=NOW, **wanted)
    assert decide(step.link, Edit(by=ANN), POLICY, NOW) == Transition(step.link)
    same = Edit(by=ANN, target="HTTPS://EXAMPLE.com/b")
    assert decide(step.link, same, POLICY, NOW) == Transition(step.link)


def test_L2_a_restored_link_is_as_it_was() -> None:
    deleted = decide(a_link(), Delete(ANN), POLICY, NOW)
    assert isinstance(deleted, Transition)
    tombstoned = replace(a_link(version=2, changed_at=NOW, **GONE), tombstoned_at=NOW)
    assert deleted.link == tombstoned
    restored = decide(deleted.link, Restore(by=ANN), POLICY, NOW + DAY)
    assert isinstance(restored, Transition)
    assert restored.link == a_link(version=3, changed_at=NOW + DAY)


def test_L2_the_last_instant_at_which_a_link_can_be_restored() -> None:
    tombstone = a_link(**GONE | {"tombstoned_at": NOW - POLICY.grace + 1})
    assert isinstance(decide(tombstone, Restore(by=ANN), POLICY, NOW), Transition)
    assert isinstance(decide(tombstone, Restore(by=ANN), POLICY, NOW + 1), Refusal)


def test_L2_a_restore_brings_new_values_along() -> None:
    tombstone = a_link(**GONE)
    step = decide(tombstone, Restore(by=ANN, target="https://example.com/b"), POLICY, NOW)
    assert isinstance(step, Transition)
    assert (step.link.state, step.link.target) == (State.ACTIVE, "https://example.com/b")
    bad = decide(tombstone, Restore(by=ANN, target="ftp://example.com/"), POLICY, NOW)
    assert isinstance(bad, Refusal)
    assert bad.reason is Reason.INVALID_TARGET


def test_L2_a_live_link_is_not_restored_into_another() -> None:
    step = decide(a_link(), Restore(by=ANN, target="https://example.com/b"), POLICY, NOW)
    assert isinstance(step, Refusal)
    assert step.reason is Reason.NOT_TOMBSTONED
    assert decide(a_link(), Restore(by=ANN), POLICY, NOW) == Transition(a_link())


def test_L2_a_restored_permanent_link_cannot_be_made_to_expire() -> None:
    tombstone = a_link(**GONE | {"permanent": True, "expires_at": None})
    step = decide(tombstone, Restore(by=ANN, expires_at=NOW + 1), POLICY, NOW)
    assert isinstance(step, Refusal)
    assert step.reason is Reason.PERMANENT_EXPIRES


def test_W6_a_ban_is_lifted_during_the_tombstone_and_then_holds_no_more() -> None:
    lifted = decide(ROWS["tombstoned-banned"], Enable(ROOT), POLICY, NOW)
    assert isinstance(lifted, Transition)
    step = decide(lifted.link, Restore(by=ANN), POLICY, NOW)
    assert isinstance(step, Transition)
    assert step.link.state is State.ACTIVE


def test_W6_a_ban_keeps_its_latest_reason() -> None:
    step = decide(ROWS["disabled"], Disable(ROOT, "phishing"), POLICY, NOW)
    assert isinstance(step, Transition)
    assert step.link.disabled == "phishing"
    assert step.link.state is State.DISABLED


def free_from(policy: Policy, tombstoned_at: int, changed_at: int) -> int:
    """The first instant at which a tick frees the code, found by trying."""
    link = a_link(**RETIRED | {"tombstoned_at": tombstoned_at, "changed_at": changed_at}, version=3)
    low, high = NOW - 10 * YEAR, NOW + 10 * YEAR
    while low < high:
        middle = (low + high) // 2
        if isinstance(decide(link, Tick(), policy, middle), Transition):
            high = middle
        else:
            low = middle + 1
    return low


def test_L3_a_code_rests_one_year_from_its_tombstone() -> None:
    assert free_from(POLICY, NOW, NOW + 30 * DAY) == NOW + YEAR
    assert free_from(replace(POLICY, quarantine=90 * DAY), NOW, NOW) == NOW + 90 * DAY


def test_L3_without_quarantine_a_code_is_freed_when_the_grace_ends() -> None:
    assert free_from(replace(POLICY, quarantine=0), NOW, NOW) == NOW + POLICY.grace


def test_L5_a_code_is_not_freed_while_a_cache_may_hold_its_link() -> None:
    assert free_from(POLICY, NOW - 2 * YEAR, NOW) == NOW + STALE_BOUND


@pytest.mark.parametrize("late", [0, YEAR, 100 * YEAR])
def test_L3_with_reclaiming_off_no_code_is_ever_freed(late: int) -> None:
    step = decide(ROWS["quarantined-due"], Tick(), replace(POLICY, reclaim=False), NOW + late)
    assert isinstance(step, Refusal)
    assert step.reason is Reason.NOT_DUE


def test_L5_a_clock_set_back_puts_no_change_before_the_last() -> None:
    link = a_link(changed_at=NOW)
    step = decide(link, Delete(ANN), POLICY, NOW - YEAR)
    assert isinstance(step, Transition)
    assert step.link.changed_at == NOW
    assert step.link.tombstoned_at == NOW
    assert step.events[0].at == NOW


def test_L5_a_row_without_the_time_of_its_tombstone_is_reported_not_guessed() -> None:
    with pytest.raises(ValueError, match="promo is tombstoned without the time"):
        decide(a_link(state=State.TOMBSTONED), Tick(), POLICY, NOW)


@pytest.mark.parametrize("why", ["", "a\nb", "x" * 257])
def test_w6_a_reason_that_could_not_be_shown_disables_nothing(why: str) -> None:
    step = decide(a_link(), Disable(ROOT, why), POLICY, NOW)
    assert isinstance(step, Refusal)
    assert (step.reason, step.field) == (Reason.INVALID_LABELS, "why")
