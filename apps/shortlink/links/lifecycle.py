"""The state machine of a link. Everything that changes a link goes through `decide()`.

    ACTIVE <-> DISABLED --(delete, expiry)--> TOMBSTONED --(grace)--> QUARANTINED --> FREE
       ^------------------(restore by owner)------'                                    |
       '-----------------------(another owner claims the code: next generation)--------'

What is due by the clock is decided on the link as it would be had the sweeper just run
(`settled`), so that a late sweeper changes no answer; only FREE waits for the sweeper.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, assert_never

from shortlink.links.instants import format_instant
from shortlink.links.model import LIVE, Cause, Event, EventKind, Link, State, event
from shortlink.links.names import MAX_VALUE, check_alias, check_labels, check_texts
from shortlink.links.policy import DAY, STALE_BOUND, Policy
from shortlink.links.refusal import Reason, Refusal
from shortlink.links.targets import parse_target


class Keep(Enum):
    """Marks a value that a command leaves as it is (None means never, for an expiry)."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks. `claim` is the `namespace/name` of the object on whose behalf it is."""

    owner: str
    admin: bool = False
    claim: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """A link for `by` at `code`.

    `custom`: the owner chose the code, as an alias. `expires_at`: None is never; KEEP is the
    policy's default, or never for a permanent link. `take_back`: a former owner wants a freed
    code again (L3). `token` tells this creation from every other.
    """

    by: Actor
    code: str
    target: str
    token: str
    custom: bool
    expires_at: int | Keep | None = KEEP
    permanent: bool = False
    take_back: bool = False
    tags: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """New values for a live link; what is KEEP stays."""

    by: Actor
    target: str | Keep = KEEP
    expires_at: int | Keep | None = KEEP
    permanent: bool | Keep = KEEP
    tags: tuple[str, ...] | Keep = KEEP
    metadata: tuple[tuple[str, str], ...] | Keep = KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Edit):
    """The owner takes a tombstone back; a link that had expired needs a new expiry.

    New values come with it, so that the old ones are not served once more.
    """


@dataclass(frozen=True, slots=True)
class Delete:
    """The owner's soft delete: a tombstone, restorable during the grace."""

    by: Actor


@dataclass(frozen=True, slots=True)
class Disable:
    """An administrator stops a link for abuse (451); `why` is kept with it."""

    by: Actor
    why: str


@dataclass(frozen=True, slots=True)
class Enable:
    """An administrator lifts a `Disable`."""

    by: Actor


@dataclass(frozen=True, slots=True)
class Tick:
    """Whatever the clock alone makes due."""


Command = Create | Edit | Delete | Restore | Disable | Enable | Tick


@dataclass(frozen=True, slots=True)
class Transition:
    """The link as it is to become, and the events that say so.

    A command that asks for what is already so gives the link unchanged and no events.
    """

    link: Link
    events: tuple[Event, ...] = ()


def settled(link: Link, policy: Policy, now: int) -> Link:
    """`link` as the clock has it: a passed expiry or grace counts though no sweeper ran."""
    if link.state in LIVE and link.expires_at is not None and now >= link.expires_at:
        link = replace(
            link, state=State.TOMBSTONED, tombstoned_at=link.expires_at, cause=Cause.EXPIRED
        )
    if link.state is State.TOMBSTONED and now >= _tombstoned_at(link) + policy.grace:
        link = replace(link, state=State.QUARANTINED)
    return link


def free_at(link: Link, policy: Policy) -> int:
    """When a quarantined code may become FREE: its time is over and no cache can hold it."""
    return max(
        _tombstoned_at(link) + max(policy.quarantine, policy.grace),
        link.changed_at + STALE_BOUND,
    )


def due_times(link: Link, policy: Policy) -> tuple[int, ...]:
    """The instants at which the sweeper has to look at `link` next."""
    if link.state in LIVE:
        if link.expires_at is None:
            return ()
        if link.state is State.DISABLED:
            return (link.expires_at,)
        # Never before the change itself, so that a sweeper that is just dropping an older hint
        # can't drop this one.
        return (max(link.changed_at, link.expires_at - policy.expiring_ahead), link.expires_at)
    if link.state is State.TOMBSTONED:
        return (_tombstoned_at(link) + policy.grace,)
    if link.state is State.QUARANTINED:
        return (free_at(link, policy),)
    return ()


def look_again_at(link: Link, policy: Policy, now: int) -> int | None:
    """When to look again at a link for which nothing was due at `now`; None is never.

    Due times are written under the policy of their day. Where that policy has changed since,
    this keeps the link on the sweeper's list: at its new time, or daily while reclaiming is off.
    """
    later = [at for at in due_times(link, policy) if at > now]
    if later:
        return min(later)
    return now + DAY if link.state is State.QUARANTINED else None


def expiring(link: Link, policy: Policy, now: int) -> Event | None:
    """The announcement that a link is about to expire, inside its window (L1)."""
    if link.state is not State.ACTIVE or link.expires_at is None:
        return None
    if not link.expires_at - policy.expiring_ahead <= now < link.expires_at:
        return None
    told = event(EventKind.EXPIRING, link, link.expires_at - policy.expiring_ahead)
    # Announced once for an expiry, whatever versions an edit of other values adds meanwhile.
    return replace(told, id=f"{link.code}.{link.generation}.{link.expires_at}.expiring")


UNKNOWN = Refusal(Reason.UNKNOWN, "no link has this code; check its spelling and case")


def shown_state(link: Link, policy: Policy, now: int) -> str:
    """The state as people are shown it: stored or derived, whether or not a sweeper has run."""
    view = settled(link, policy, now)
    if view.state is State.TOMBSTONED and view.cause is Cause.EXPIRED:
        return "expired"
    return "expiring" if expiring(view, policy, now) else view.state.value


def decide(link: Link | None, command: Command, policy: Policy, now: int) -> Transition | Refusal:
    """What becomes of the stored `link` (None: the code was never used) under `command`."""
    if isinstance(command, Create):
        return _create(link, command, policy, now)
    if link is None:
        return UNKNOWN
    if isinstance(command, Tick):
        return _tick(link, policy, now)
    if link.state is State.FREE:
        return UNKNOWN
    if isinstance(command, Disable | Enable):
        return _moderate(link, command, policy, now)
    if refusal := _forbidden(link, command.by):
        return refusal
    view = settled(link, policy, now)
    match command:
        case Restore():
            return _restore(link, view, command, policy, now)
        case Edit():
            return _edit(link, view, command, policy, now)
        case Delete():
            if view.state not in LIVE:
                return Transition(link)
            return _moved(
                link,
                replace(
                    view,
                    state=State.TOMBSTONED,
                    tombstoned_at=max(now, link.changed_at),
                    cause=Cause.DELETED,
                ),
                now,
                EventKind.TOMBSTONED,
            )
        case _ as never:
            assert_never(never)


def _create(link: Link | None, new: Create, policy: Policy, now: int) -> Transition | Refusal:
    if new.custom and (refusal := check_alias(new.code)):
        return refusal
    target = parse_target(new.target, policy.own_hosts)
    if isinstance(target, Refusal):
        return target
    if refusal := check_labels(new.tags, new.metadata):
        return refusal
    expires_at = new.expires_at
    if expires_at is KEEP:
        expires_at = None if new.permanent else now + policy.default_ttl
    generation = 1
    if link is not None:
        if refusal := _occupied(link, new, policy, now):
            return refusal
        generation = link.generation + 1
    born = Link(
        code=new.code,
        generation=generation,
        version=1,
        state=State.ACTIVE,
        owner=new.by.owner,
        target=target,
        permanent=new.permanent,
        custom=new.custom,
        created_at=now,
        changed_at=now,
        expires_at=expires_at,
        token=new.token,
        claim=new.by.claim,
        tags=new.tags,
        metadata=new.metadata,
        former=() if link is None else tuple(dict.fromkeys((*link.former, link.owner))),
    )
    if refusal := _bad_expiry(born, now):
        return refusal
    return Transition(born, (event(EventKind.CREATED, born, now),))


def _occupied(link: Link, new: Create, policy: Policy, now: int) -> Refusal | None:
    if link.state is State.FREE and new.custom:
        if new.by.owner not in (link.owner, *link.former) or new.take_back:
            return None
        return Refusal(
            Reason.SAME_OWNER,
            f"{link.code} was yours before, so its old links would come alive again;"
            " choose another alias, or ask for it explicitly with take_back",
            "alias",
        )
    mine = link.owner == new.by.owner
    if mine and settled(link, policy, now).state is State.TOMBSTONED:
        return Refusal(
            Reason.TAKEN, f"{link.code} is your own deleted link; restore it instead", "alias"
        )
    return Refusal(Reason.TAKEN, f"{link.code} is taken; choose another", "alias")


def _bad_expiry(link: Link, now: int) -> Refusal | None:
    if link.expires_at is None:
        return None
    if link.expires_at <= now:
        return Refusal(
            Reason.EXPIRY_IN_PAST,
            f"expires_at {_written(link.expires_at)} has passed; give a later time",
            "expires_at",
        )
    if link.permanent:
        return Refusal(
            Reason.PERMANENT_EXPIRES,
            "a permanent (301) link can't have an expiry: use redirect type 302, or let it never"
            " expire",
            "redirect_type",
        )
    return None


def _forbidden(link: Link, by: Actor) -> Refusal | None:
    if link.owner != by.owner and not by.admin:
        return Refusal(Reason.NOT_OWNER, f"{link.code} belongs to another owner")
    if link.claim != by.claim:
        return Refusal(
            Reason.MANAGED,
            f"{link.code} is managed by {link.claim or 'the API'}; change it there",
        )
    return None


def _edit(link: Link, view: Link, edit: Edit, policy: Policy, now: int) -> Transition | Refusal:
    if view.state is State.TOMBSTONED:
        return Refusal(
            Reason.TOMBSTONED, f"{link.code} is {view.cause}; restore it before changing it"
        )
    if view.state not in LIVE:
        return Refusal(Reason.GRACE_OVER, f"{link.code} is gone for good; create another link")
    changed = _edited(link, edit, policy)
    if isinstance(changed, Refusal):
        return changed
    if changed == link:
        return Transition(link)
    if refusal := _bad_expiry(changed, now):
        return refusal
    return _moved(link, changed, now, EventKind.EDITED)


def _edited(link: Link, edit: Edit, policy: Policy) -> Link | Refusal:
    changed = replace(
        link,
        expires_at=link.expires_at if edit.expires_at is KEEP else edit.expires_at,
        permanent=link.permanent if edit.permanent is KEEP else edit.permanent,
        tags=link.tags if edit.tags is KEEP else edit.tags,
        metadata=link.metadata if edit.metadata is KEEP else edit.metadata,
    )
    if edit.target is not KEEP:
        target = parse_target(edit.target, policy.own_hosts)
        if isinstance(target, Refusal):
            return target
        changed = replace(changed, target=target)
    return check_labels(changed.tags, changed.metadata) or changed


def _restore(
    link: Link, view: Link, restore: Restore, policy: Policy, now: int
) -> Transition | Refusal:
    changed = _edited(view, restore, policy)
    if isinstance(changed, Refusal):
        return changed
    if view.state in LIVE:
        if changed == link:
            return Transition(link)
        return Refusal(Reason.NOT_TOMBSTONED, f"{link.code} is live; edit it instead")
    if view.state is not State.TOMBSTONED:
        return Refusal(
            Reason.GRACE_OVER,
            f"{link.code} was {view.cause} at {_written(_tombstoned_at(view))} and its grace is"
            " over; create another link",
        )
    live = replace(
        changed,
        state=State.ACTIVE if view.disabled is None else State.DISABLED,
        tombstoned_at=None,
        cause=None,
    )
    if refusal := _bad_expiry(live, now):
        return refusal
    return _moved(link, live, now, *_passed(link, view), EventKind.RESTORED)


def _moderate(
    link: Link, command: Disable | Enable, policy: Policy, now: int
) -> Transition | Refusal:
    if not command.by.admin:
        return Refusal(Reason.NOT_OWNER, "only an administrator disables or enables links")
    view = settled(link, policy, now)
    if view.state is State.QUARANTINED:
        return Refusal(Reason.GRACE_OVER, f"{link.code} serves nobody any more")
    why = command.why if isinstance(command, Disable) else None
    if why is not None and (refusal := check_texts("why", [why], MAX_VALUE)):
        return refusal
    if link.disabled == why:
        return Transition(link)
    state = view.state
    if state in LIVE:
        state = State.ACTIVE if why is None else State.DISABLED
    kind = EventKind.ENABLED if why is None else EventKind.DISABLED
    changed = replace(view, state=state, disabled=why)
    return _moved(link, changed, now, *_passed(link, view), kind)


def _tick(link: Link, policy: Policy, now: int) -> Transition | Refusal:
    view = settled(link, policy, now)
    if view.state is not link.state:
        return _moved(link, view, now, *_passed(link, view))
    if link.state is State.QUARANTINED and policy.reclaim and now >= free_at(link, policy):
        return _moved(link, replace(link, state=State.FREE), now, EventKind.FREED)
    return Refusal(Reason.NOT_DUE, f"nothing is due for {link.code}")


def _passed(link: Link, view: Link) -> list[EventKind]:
    """What the clock has made of `link` that no stored state has told yet."""
    kinds = []
    if link.state in LIVE and view.state not in LIVE:
        kinds.append(EventKind.TOMBSTONED)
    if link.state is not State.QUARANTINED and view.state is State.QUARANTINED:
        kinds.append(EventKind.QUARANTINED)
    return kinds


def _moved(old: Link, new: Link, now: int, *kinds: EventKind) -> Transition:
    # A clock that was set back may not put a change before the one it follows.
    at = max(now, old.changed_at)
    new = replace(new, version=old.version + 1, changed_at=at)
    return Transition(new, tuple(event(kind, new, at) for kind in kinds))


def _tombstoned_at(link: Link) -> int:
    if link.tombstoned_at is None:
        raise ValueError(f"{link.code} is {link.state} without the time of its tombstone")
    return link.tombstoned_at


def _written(at: int) -> str:
    try:
        return format_instant(at)
    except OverflowError:
        return f"{at} ms"
