"""A whole folder of objects against all claims: one action for each (T2)."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shortlink.links.policy import Policy
from shortlink_operator import deletion
from shortlink_operator.kinds import ShortLink
from shortlink_operator.plan import Action, Change, Observed, plan_gone, plan_object

FOLDER = ""
"""The cluster that a folder's claims name: there is none."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The objects as they are now.

    `kept`: keys of objects that exist but can't be read. `unsure`: something that can't be
    read may hold any key. `missing`: the very place of the objects is gone. `released`:
    namespaces whose held deletions a person has let go.
    """

    objects: Mapping[str, ShortLink]
    kept: frozenset[str] = frozenset()
    unsure: bool = False
    missing: bool = False
    released: frozenset[str] = frozenset()


def plan(
    desired: Desired, observed: Mapping[str, Observed], policy: Policy, now: int
) -> list[Action]:
    """One action for each object that exists or has a claim; deletions last."""

    def go(key: str, held: str) -> Action:
        seen = observed[key]
        return plan_gone(key, None, seen, FOLDER, policy, now, retain=None, held=held)

    gone = {
        key: go(key, "") for key in sorted(observed.keys() - desired.objects.keys() - desired.kept)
    }
    going: dict[str, list[str]] = defaultdict(list)
    for key, action in gone.items():
        if isinstance(action, Change):
            going[_namespace(key)].append(key)
    emptied = not desired.objects and not desired.kept and sum(map(len, going.values())) > 1
    for namespace, keys in going.items():
        held = _held(namespace, len(keys), emptied, desired, observed, policy, now)
        gone |= {key: go(key, held) for key in keys}
    actions = [
        plan_object(wanted, observed.get(key), FOLDER, policy, now)
        for key, wanted in sorted(desired.objects.items())
    ]
    return actions + list(gone.values())


def _held(
    namespace: str,
    going: int,
    emptied: bool,
    desired: Desired,
    observed: Mapping[str, Observed],
    policy: Policy,
    now: int,
) -> str:
    """Why these deletions have to wait, or nothing: the brake, and what a folder adds to it."""
    if desired.unsure:
        return "a file that can't be read may hold the object; mend or remove that file first"
    if namespace in desired.released:
        return ""
    if desired.missing:
        return "the place of the manifests is gone"
    if emptied:
        return "all manifests are gone at once"
    links = [
        one.own
        for key, one in observed.items()
        if one.own is not None and _namespace(key) == namespace
    ]
    live, recent = deletion.tally(links, policy, now)
    return deletion.held(namespace, going, live, recent, policy)


def _namespace(key: str) -> str:
    return key.partition("/")[0]
