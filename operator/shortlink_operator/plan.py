"""What has to be done so that links become what objects ask for: pure plans, no store, no Kopf.

`plan()` compares what is desired with what is observed and gives one action for each object;
`apply.py` carries them out. Planning again after any crash goes on where it stopped, because
each action is decided on what is stored, never on what was meant to be done before.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shortlink.links.codes import LENGTH
from shortlink.links.instants import format_instant
from shortlink.links.lifecycle import (
    KEEP,
    Actor,
    Command,
    Create,
    Delete,
    Edit,
    Restore,
    decide,
    settled,
)
from shortlink.links.model import LIVE, Cause, Link, State
from shortlink.links.policy import Policy
from shortlink.links.refusal import Reason, Refusal
from shortlink.store.port import Claim
from shortlink_operator.kinds import ShortLink

HELD = "DeletionHeld"
"""The reason of a `Rest` whose deletion waits for a person: the mass-deletion brake."""


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


@dataclass(frozen=True, slots=True)
class Observed:
    """What the store has for an object: its claim, and the link at the claimed code."""

    claim: Claim
    link: Link | None

    @property
    def own(self) -> Link | None:
        """The link, if it is the one that this claim announced."""
        link = self.link
        if link is None or (link.generation, link.token) != (
            self.claim.generation,
            self.claim.token,
        ):
            return None
        return link


@dataclass(frozen=True, slots=True)
class Birth:
    """Claim a code for `wanted` and make its link; `void` is a claim that no longer holds."""

    key: str
    wanted: ShortLink
    void: Claim | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Make the link that `claim` announced: a crash came between the two."""

    key: str
    wanted: ShortLink
    claim: Claim


@dataclass(frozen=True, slots=True)
class Change:
    """Carry out `command` on the object's link."""

    key: str
    code: str
    command: Command


@dataclass(frozen=True, slots=True)
class Release:
    """Give up a claim that holds nothing."""

    key: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do; `reason` and `message` tell the object's owner how it stands."""

    key: str
    ready: bool
    reason: str
    message: str
    link: Link | None = None


Action = Birth | Resume | Change | Release | Rest


def plan(
    desired: Desired, observed: Mapping[str, Observed], policy: Policy, now: int
) -> list[Action]:
    """One action for each object that exists or has a claim; deletions last."""
    actions = [
        plan_object(wanted, observed.get(key), policy, now)
        for key, wanted in sorted(desired.objects.items())
    ]
    gone = sorted(observed.keys() - desired.objects.keys() - desired.kept)
    return actions + _plan_gone(gone, desired, observed, policy, now)


def plan_object(wanted: ShortLink, observed: Observed | None, policy: Policy, now: int) -> Action:
    """What an object that exists needs."""
    if observed is None:
        return _birth(wanted, None, policy, now)
    link = observed.own
    if link is None:
        return _unborn(wanted, observed, policy, now)
    view = settled(link, policy, now)
    over = view.expires_at is not None and view.cause is Cause.EXPIRED
    expires_at = _expiry(wanted, link, policy)
    if over and expires_at is not None and expires_at <= now:
        return Rest(
            wanted.key,
            False,
            "Expired",
            f"{link.code} expired at {format_instant(expires_at)}; to bring it back, set"
            " spec.expiresAt to a later time",
            view,
        )
    if view.state in (State.QUARANTINED, State.FREE):
        return _birth(wanted, observed.claim, policy, now)
    if wanted.code != link.code and (link.custom or wanted.code is not None):
        if view.cause is Cause.DELETED:  # an object that was deleted, and made again otherwise
            return _birth(wanted, observed.claim, policy, now)
        asked = repr(wanted.code) if wanted.code else "none"
        return _refused(
            wanted.key,
            Refusal(
                Reason.CODE_CHANGED,
                f"spec.code is {asked}, but this object's link has the code {link.code!r}, which"
                " can't change: set it back, or delete the object and make another",
                "spec.code",
            ),
            view,
        )
    if view.state is State.TOMBSTONED:
        passed = link.expires_at is not None and link.expires_at <= now
        back = Restore(actor(wanted.key), expires_at if passed else KEEP)
        return _change(wanted.key, link, back, policy, now)
    edit = Edit(
        by=actor(wanted.key),
        target=wanted.target,
        expires_at=expires_at,
        permanent=wanted.permanent,
        tags=wanted.tags,
        metadata=wanted.metadata,
    )
    return _change(wanted.key, link, edit, policy, now)


def actor(key: str) -> Actor:
    """Who an object acts as: its namespace owns its links."""
    return Actor(owner=key.partition("/")[0], claim=key)


def creation(wanted: ShortLink, code: str, token: str) -> Create:
    """The command that makes the link of `wanted` at `code`."""
    return Create(
        by=actor(wanted.key),
        code=code,
        target=wanted.target,
        token=token,
        custom=wanted.code is not None,
        expires_at=wanted.expires_at,
        permanent=wanted.permanent,
        take_back=wanted.take_back,
        tags=wanted.tags,
        metadata=wanted.metadata,
    )


def _unborn(wanted: ShortLink, observed: Observed, policy: Policy, now: int) -> Action:
    claim, link = observed.claim, observed.link
    open_to_us = link is None or link.generation < claim.generation
    same_code = wanted.code == claim.code or (wanted.code is None and len(claim.code) == LENGTH)
    if open_to_us and same_code:
        return Resume(wanted.key, wanted, claim)
    return _birth(wanted, claim, policy, now)


def _birth(wanted: ShortLink, void: Claim | None, policy: Policy, now: int) -> Action:
    trial = decide(None, creation(wanted, wanted.code or "", ""), policy, now)
    if isinstance(trial, Refusal):
        return _refused(wanted.key, trial, None)
    return Birth(wanted.key, wanted, void)


def _expiry(wanted: ShortLink, link: Link, policy: Policy) -> int | None:
    if wanted.expires_at is not KEEP:
        return wanted.expires_at
    return None if wanted.permanent else link.created_at + policy.default_ttl


def _change(key: str, link: Link, command: Command, policy: Policy, now: int) -> Action:
    step = decide(link, command, policy, now)
    if isinstance(step, Refusal):
        return _refused(key, step, link)
    if step.link != link:
        return Change(key, link.code, command)
    if link.state is State.DISABLED:
        return Rest(key, False, "Disabled", f"an administrator disabled it: {link.disabled}", link)
    return Rest(key, True, "Ready", "", link)


def _refused(key: str, refusal: Refusal, link: Link | None) -> Rest:
    return Rest(key, False, refusal.reason, refusal.message, link)


def _plan_gone(
    gone: Iterable[str],
    desired: Desired,
    observed: Mapping[str, Observed],
    policy: Policy,
    now: int,
) -> list[Action]:
    actions: list[Action] = []
    deletions: dict[str, list[tuple[str, Link]]] = defaultdict(list)
    for key in gone:
        link = observed[key].own
        view = link and settled(link, policy, now)
        if view is None or view.state in (State.QUARANTINED, State.FREE):
            actions.append(Release(key, observed[key].claim))
        elif view.state in LIVE:
            deletions[key.partition("/")[0]].append((key, view))
        else:
            actions.append(Rest(key, False, "Deleted", "deleted with its object", view))
    emptied = not desired.objects and not desired.kept and sum(map(len, deletions.values())) > 1
    for namespace, links in deletions.items():
        held = _held(namespace, len(links), emptied, desired, observed, policy, now)
        for key, link in links:
            actions.append(
                Rest(key, True, HELD, held, link)
                if held
                else Change(key, link.code, Delete(actor(key)))
            )
    return actions


def _held(
    namespace: str,
    count: int,
    emptied: bool,
    desired: Desired,
    observed: Mapping[str, Observed],
    policy: Policy,
    now: int,
) -> str:
    """Why these deletions have to wait, or nothing: the mass-deletion brake."""
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
        if one.own is not None and key.startswith(f"{namespace}/")
    ]
    recent = sum(
        link.cause is Cause.DELETED
        and link.tombstoned_at is not None
        and link.tombstoned_at > now - policy.brake_window
        for link in links
    )
    live = sum(settled(link, policy, now).state in LIVE for link in links)
    going = count + recent
    if going > policy.brake_links and going > policy.brake_share * (live + recent):
        return (
            f"{going} of {live + recent} links of the namespace would go within"
            f" {policy.brake_window // 1000} s"
        )
    return ""
