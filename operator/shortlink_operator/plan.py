"""What has to be done so that a link becomes what its object asks for: pure, no store, no Kopf.

`plan_object()` and `plan_gone()` compare what is desired with what is observed and give one
action; `apply.py` carries it out. Planning again after any crash goes on where it stopped,
because each action is decided on what is stored, never on what was meant to be done before.

A claim says which cluster is home to an object. In every other cluster the object of the same
namespace and name is a mirror: it tells how the link stands and writes nothing.
"""

from dataclasses import dataclass, replace
from typing import Final

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
from shortlink_operator.kinds import ALLOW_DELETE, TAKE_OVER, ShortLink

HELD: Final = "DeletionHeld"
"""The reason of a `Rest` whose deletion waits for a person: the mass-deletion brake."""

LET_GO: Final = frozenset({"Deleted", "Retained", "Gone"})
"""The reasons of a `Rest` after which nothing holds an object that is being deleted."""

RELEASE_IT: Final = f'; to let this deletion go, annotate the object with {ALLOW_DELETE}: "true"'
"""What a held deletion's message ends with where there is an object to annotate."""

_GONE: Final = (State.QUARANTINED, State.FREE)

_FIELDS: Final = {
    "target": "spec.target",
    "expires_at": "spec.expiresAt",
    "permanent": "spec.redirectType",
    "tags": "spec.tags",
    "metadata": "spec.metadata",
}
"""What an edit can change, as a link and as an object call it."""

_WHERE: Final = _FIELDS | {"alias": "spec.code", "redirect_type": "spec.redirectType"}
"""What a refusal is about, as an object calls it."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the store has for an object: its claim, and the link at the claimed code."""

    claim: Claim
    link: Link | None

    @property
    def own(self) -> Link | None:
        """The link, if it is the one that this claim announced."""
        return self.link if self.link is not None and announced(self.claim, self.link) else None


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
    """Carry out `command` on the link as it was `seen`, under `claim`."""

    key: str
    seen: Link
    claim: Claim
    command: Command


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Put `new` in the place of `claim`; None gives up a claim that holds nothing."""

    key: str
    claim: Claim
    new: Claim | None


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do; `reason` and `message` tell the object's owner how it stands.

    `home` is the cluster that has the claim, empty where none has.
    """

    key: str
    ready: bool
    reason: str
    message: str
    link: Link | None = None
    home: str = ""


Action = Birth | Resume | Change | Reclaim | Rest


def plan_object(
    wanted: ShortLink,
    observed: Observed | None,
    cluster: str,
    policy: Policy,
    now: int,
    *,
    room: bool = True,
) -> Action:
    """What an object that exists in `cluster` needs; without `room` no link is made for it."""
    if observed is None:
        # A mirror revives nothing, and remembers by its status that it is one.
        if cluster and wanted.home not in ("", cluster, wanted.take_over):
            message = f"cluster {wanted.home}, its home, has given up the link: apply"
            return _home_deleted(wanted.key, message, wanted.home, None)
        return _birth(wanted, None, policy, now, room)
    claim, link = observed.claim, observed.own
    if claim.cluster not in (cluster, wanted.take_over):
        return _mirrored(wanted, observed, policy, now)
    if link is None and not _open_to(observed, wanted):
        return _birth(wanted, claim, policy, now, room)
    mine = replace(claim, cluster=cluster, uid=wanted.uid, retain=wanted.retain)
    if claim != mine:  # a rebuilt cluster, an object made again, a take-over, another policy
        return Reclaim(wanted.key, claim, mine)
    if link is None:
        return Resume(wanted.key, wanted, claim)
    view = settled(link, policy, now)
    if late := _expired(wanted, link, claim, policy, now):
        return late
    if link.state in _GONE:
        return _birth(wanted, claim, policy, now, room)
    if view.state in _GONE:
        # Only the row frees its claim: a clock that is ahead for a while may not.
        message = f"{link.code}: its grace is over; a new link is made once it was put away"
        return Rest(wanted.key, False, Reason.GRACE_OVER, message, view, claim.cluster)
    if _other_code(wanted, link):
        if view.cause is Cause.DELETED:  # an object that was deleted, and made again otherwise
            return _birth(wanted, claim, policy, now, room)
        asked = repr(wanted.code) if wanted.code else "none"
        message = (
            f"spec.code is {asked}, but this object's link has the code {link.code!r}, which"
            " can't change: set it back, or delete the object and make another"
        )
        return Rest(wanted.key, False, Reason.CODE_CHANGED, message, view, claim.cluster)
    kind = Restore if view.state is State.TOMBSTONED else Edit
    return _change(claim, link, _edit(kind, wanted, link, policy), policy, now)


def plan_gone(
    key: str,
    uid: str | None,
    observed: Observed | None,
    cluster: str,
    policy: Policy,
    now: int,
    *,
    retain: bool | None,
    held: str,
) -> Action:
    """What an object needs that is being deleted in `cluster`, or that is gone.

    `uid`: its own; None where there is only a claim, so that nobody knows. `retain`: what its
    spec says; None where it can't be asked and the claim's word counts. `held`: why the brake
    has its deletion wait, or nothing.
    """
    if observed is None:
        return Rest(key, False, "Gone", "it has no link")
    claim, link = observed.claim, observed.own
    if claim.cluster != cluster:
        message = f"the link stays as it is: cluster {claim.cluster} keeps it"
        return Rest(key, False, "Gone", message, link, claim.cluster)
    if uid is not None and claim.uid != uid:
        message = "the link stays as it is: it belongs to another object of this name"
        return Rest(key, False, "Gone", message, link, claim.cluster)
    view = link and settled(link, policy, now)
    if link is None or view is None or link.state in _GONE:
        return Reclaim(key, claim, None)
    if claim.retain if retain is None else retain:
        if not claim.retain:  # else the claim, once its object is gone, would ask for the deletion
            return Reclaim(key, claim, replace(claim, retain=True))
        message = "the link outlives its object, which takes it up when it is made again"
        return Rest(key, True, "Retained", message, view, claim.cluster)
    if view.state not in LIVE:
        return Rest(key, False, "Deleted", "deleted with its object", view, claim.cluster)
    if held:
        if uid:
            held += RELEASE_IT
        return Rest(key, True, HELD, held, view, claim.cluster)
    return Change(key, link, claim, Delete(actor(key)))


def orphaned(link: Link, claim: Claim | None) -> bool:
    """Whether `link` lives for an object whose `claim` announced another, or is not there.

    Only a claim that was read after the link tells: each is written before its link.
    """
    return (
        link.state in LIVE
        and link.claim is not None
        and (claim is None or not announced(claim, link))
    )


def announced(claim: Claim, link: Link) -> bool:
    """Whether `link` is the very one for which `claim` was written."""
    return (claim.code, claim.generation, claim.token) == (link.code, link.generation, link.token)


def told(refusal: Refusal) -> str:
    """A refusal's message, with the field of the object that it is about."""
    where, message = _WHERE.get(refusal.field), refusal.message
    if where is None:
        return message
    named = message.startswith(f"{refusal.field} ")
    return where + message.removeprefix(refusal.field) if named else f"{where}: {message}"


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


def _birth(wanted: ShortLink, void: Claim | None, policy: Policy, now: int, room: bool) -> Action:
    home = "" if void is None else void.cluster
    trial = decide(None, creation(wanted, wanted.code or "", ""), policy, now)
    if isinstance(trial, Refusal):
        return Rest(wanted.key, False, trial.reason, told(trial), None, home)
    if not room:
        message = (
            f"namespace {wanted.namespace} has as many links as its quota allows: delete some of"
            " its objects, or have the quota raised in the LinkPolicy"
        )
        return Rest(wanted.key, False, "OverQuota", message, None, home)
    return Birth(wanted.key, wanted, void)


def _open_to(observed: Observed, wanted: ShortLink) -> bool:
    """Whether the link that the claim announced, and that is not there, can still be made."""
    claim, link = observed.claim, observed.link
    same_code = wanted.code == claim.code or (wanted.code is None and len(claim.code) == LENGTH)
    return same_code and (link is None or link.generation < claim.generation)


def _mirrored(wanted: ShortLink, observed: Observed, policy: Policy, now: int) -> Rest:
    key, claim, link = wanted.key, observed.claim, observed.own
    home = claim.cluster
    take_over = _take_over(home)
    if link is None:
        message = (
            f"cluster {home} has claimed the link for its own {key} and not made it yet: see how"
            f" that object stands, or {take_over}"
        )
        return Rest(key, False, "WaitingForHome", message, None, home)
    view = settled(link, policy, now)
    if late := _expired(wanted, link, claim, policy, now):
        return late
    if view.state in _GONE or view.cause is Cause.DELETED:
        message = f"{link.code} was {view.cause} with the object of its home, cluster {home}: apply"
        return _home_deleted(key, message, home, view)
    if _other_code(wanted, link):
        differ = ["spec.code"]
    elif view.state is State.TOMBSTONED:
        differ = [_FIELDS["expires_at"]]
    else:
        step = decide(link, _edit(Edit, wanted, link, policy), policy, now)
        if isinstance(step, Refusal):
            return _refused(claim, step, link)
        differ = [
            name
            for field, name in _FIELDS.items()
            if getattr(step.link, field) != getattr(link, field)
        ]
    if not differ:
        rest = _as_wanted(claim, link)
        mirrored = replace(rest, reason="Mirrored", message=f"cluster {home} keeps the link")
        return mirrored if rest.ready else rest
    message = (
        f"{link.code} differs in {', '.join(differ)}, and follows the object of its home, cluster"
        f" {home}: make both objects alike, or {take_over}"
    )
    return Rest(key, False, "SpecDiffers", message, view, home)


def _home_deleted(key: str, what: str, home: str, link: Link | None) -> Rest:
    message = f"{what} {key} there again, or {_take_over(home)}"
    return Rest(key, False, "HomeDeleted", message, link, home)


def _take_over(home: str) -> str:
    return f"take it over: annotate this object with {TAKE_OVER}: {home}"


def _expired(wanted: ShortLink, link: Link, claim: Claim, policy: Policy, now: int) -> Rest | None:
    view = settled(link, policy, now)
    expires_at = _expiry(wanted, link, policy)
    over = view.expires_at is not None and view.cause is Cause.EXPIRED
    if not over or expires_at is None or expires_at > now:
        return None
    message = (
        f"{link.code} expired at {format_instant(expires_at)}; to bring it back, set"
        " spec.expiresAt to a later time"
    )
    return Rest(wanted.key, False, "Expired", message, view, claim.cluster)


def _other_code(wanted: ShortLink, link: Link) -> bool:
    return wanted.code != link.code and (link.custom or wanted.code is not None)


def _expiry(wanted: ShortLink, link: Link, policy: Policy) -> int | None:
    if wanted.expires_at is not KEEP:
        return wanted.expires_at
    return None if wanted.permanent else link.created_at + policy.default_ttl


def _edit(kind: type[Edit], wanted: ShortLink, link: Link, policy: Policy) -> Edit:
    return kind(
        by=actor(wanted.key),
        target=wanted.target,
        expires_at=_expiry(wanted, link, policy),
        permanent=wanted.permanent,
        tags=wanted.tags,
        metadata=wanted.metadata,
    )


def _change(claim: Claim, link: Link, command: Command, policy: Policy, now: int) -> Change | Rest:
    step = decide(link, command, policy, now)
    if isinstance(step, Refusal):
        return _refused(claim, step, link)
    return Change(claim.key, link, claim, command) if step.link != link else _as_wanted(claim, link)


def _refused(claim: Claim, refusal: Refusal, link: Link) -> Rest:
    return Rest(claim.key, False, refusal.reason, told(refusal), link, claim.cluster)


def _as_wanted(claim: Claim, link: Link) -> Rest:
    if link.state is State.DISABLED:
        message = f"an administrator disabled it: {link.disabled}"
        return Rest(claim.key, False, "Disabled", message, link, claim.cluster)
    return Rest(claim.key, True, "Ready", "", link, claim.cluster)
