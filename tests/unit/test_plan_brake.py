"""The mass-deletion brake: over 10 links and 20 % of a namespace within 5 minutes."""

from typing import Any

import pytest

from shortlink.links.lifecycle import Delete
from shortlink.links.model import Cause, State
from shortlink_operator.desired import Desired, plan
from shortlink_operator.plan import Change, Observed, Rest
from tests.objects import an_object, claim_of
from tests.samples import NOW, POLICY, a_link


def namespace_of(
    live: int, recent: int = 0, earlier: int = 0, namespace: str = "ann"
) -> dict[str, Observed]:
    """Observed objects: live ones, ones deleted a minute ago, and ones from before the window."""
    observed = {}
    ages = [None] * live + [60_000] * recent + [POLICY.brake_window] * earlier
    for number, age in enumerate(ages):
        key = f"{namespace}/{number:03}"
        changes: dict[str, Any] = {}
        if age is not None:
            changes = {
                "state": State.TOMBSTONED,
                "cause": Cause.DELETED,
                "tombstoned_at": NOW - age,
            }
        link = a_link(claim=key, code=f"{namespace}{number:03}", owner=namespace, **changes)
        observed[key] = Observed(claim_of(link, key), link)
    return observed


def verdicts(
    observed: dict[str, Observed], gone: int, **how: Any
) -> tuple[list[Change], list[Rest]]:
    """Deletions done and held when the first `gone` live objects go."""
    objects = {
        key: an_object(key=key, code=one.link.code)
        for key, one in observed.items()
        if one.link is not None and one.link.state is State.ACTIVE
    }
    for key in list(objects)[:gone]:
        del objects[key]
    actions = plan(Desired(objects, **how), observed, POLICY, NOW)
    done = [one for one in actions if isinstance(one, Change) and isinstance(one.command, Delete)]
    held = [one for one in actions if isinstance(one, Rest) and one.reason == "DeletionHeld"]
    assert all(one.ready for one in held), "a held link goes on serving"
    return done, held


@pytest.mark.parametrize(
    ("live", "recent", "earlier", "gone", "held"),
    [
        (100, 0, 0, 10, False),  # not more than 10 links
        (12, 0, 0, 10, False),
        (100, 0, 0, 20, False),  # not more than 20 %
        (100, 0, 0, 21, True),
        (54, 0, 0, 11, True),  # 20.4 %
        (55, 0, 0, 11, False),  # 20 % exactly
        (12, 0, 0, 11, True),
        (20, 10, 0, 1, True),  # recent deletions count
        (20, 9, 0, 1, False),
        (20, 0, 10, 1, False),  # earlier ones don't
        (79, 20, 0, 1, True),  # 21 of 99
        (200, 30, 0, 1, False),  # 31 of 230
    ],
)
def test_T2_many_deletions_at_once_wait_for_a_person(
    live: int, recent: int, earlier: int, gone: int, held: bool
) -> None:
    done, waiting = verdicts(namespace_of(live, recent, earlier), gone)
    assert (len(done), len(waiting)) == ((0, gone) if held else (gone, 0))
    if held:
        assert f"{gone + recent} of {live + recent} links of namespace ann" in waiting[0].message


def test_T2_each_namespace_has_its_own_brake() -> None:
    ann, bob = namespace_of(30), namespace_of(5, namespace="bob")
    objects = {key: an_object(key=key, code=one.claim.code) for key, one in bob.items()}
    del objects["bob/000"]
    actions = plan(Desired(objects), ann | bob, POLICY, NOW)
    held = [one.key for one in actions if isinstance(one, Rest) and one.reason == "DeletionHeld"]
    done = [
        one.key for one in actions if isinstance(one, Change) and isinstance(one.command, Delete)
    ]
    assert held == sorted(ann)
    assert done == ["bob/000"]


def test_T2_a_released_namespace_goes_and_no_other() -> None:
    observed = namespace_of(30) | namespace_of(30, namespace="bob")
    actions = plan(Desired({}, released=frozenset({"bob"})), observed, POLICY, NOW)
    assert {one.key[:3] for one in actions if isinstance(one, Change)} == {"bob"}
    assert {one.key[:3] for one in actions if isinstance(one, Rest)} == {"ann"}


@pytest.mark.parametrize(
    ("live", "how", "held", "why"),
    [
        (1, {"missing": True}, True, "the place of the manifests is gone"),
        (1, {"unsure": True}, True, "may hold the object"),
        (1, {"unsure": True, "released": frozenset({"ann"})}, True, "may hold the object"),
        (1, {"missing": True, "released": frozenset({"ann"})}, False, ""),
        (2, {}, True, "all manifests are gone at once"),
        (1, {}, False, ""),  # the last manifest of one is a plain deletion
        (2, {"released": frozenset({"ann"})}, False, ""),
        (2, {"kept": frozenset({"bob/unreadable"})}, False, ""),
    ],
)
def test_T2_a_folder_that_is_gone_or_emptied_deletes_nothing(
    live: int, how: dict[str, Any], held: bool, why: str
) -> None:
    done, waiting = verdicts(namespace_of(live), live, **how)
    assert (len(done), len(waiting)) == ((0, live) if held else (live, 0))
    assert all(why in one.message for one in waiting)


def test_T2_one_deletion_while_other_objects_stay_is_no_emptied_folder() -> None:
    done, held = verdicts(namespace_of(3), 2)
    assert (len(done), held) == (2, [])


def test_T2_deletions_come_after_everything_else_in_a_settled_order() -> None:
    observed = namespace_of(3)
    objects = {"ann/zzz": an_object(key="ann/zzz", code="zzz"), "ann/001": an_object(key="ann/001")}
    actions = plan(Desired(objects), dict(reversed(observed.items())), POLICY, NOW)
    assert [one.key for one in actions] == ["ann/001", "ann/zzz", "ann/000", "ann/002"]
