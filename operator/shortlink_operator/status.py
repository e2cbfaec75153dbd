"""What an object's status says of how it stands: pure, and equal for what is equal.

So nothing is written for an object that stands as it stood before.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from shortlink.links.instants import format_instant
from shortlink.links.lifecycle import shown_state
from shortlink.links.policy import SECOND, Policy
from shortlink.links.refusal import Refusal
from shortlink_operator.kinds import FINALIZER, NEVER, TAKE_OVER, wrong_annotation
from shortlink_operator.plan import Rest

READY: Final = "Ready"

WAITING_FOR_QUORUM: Final = "WaitingForQuorum"
"""The store couldn't be asked: whatever it was known to have, it may still have."""
UNREADABLE: Final = "Unreadable"
"""The object asks for something that this version doesn't know; its link goes on as it is."""
POLICY_INVALID: Final = "PolicyInvalid"
"""No policy is in force that new links could be made by."""
BROKEN: Final = "Broken"
"""A fault of this program, or of a row, kept the object from being looked at."""
PROGRESSING: Final = "Progressing"
"""Others changed the link so often meanwhile that it has to be tried again."""
UNSEEN: Final = frozenset({WAITING_FOR_QUORUM, UNREADABLE, POLICY_INVALID, BROKEN, PROGRESSING})
"""Reasons that say nothing about the link: what the status has of it stays, but isn't settled."""

IN_FORCE: Final = "InForce"
DIFFERS: Final = "DiffersBetweenRegions"

MAX_CONDITIONS: Final = 8
"""Ours and those of others."""

MAX_MESSAGE: Final = 1024
"""Characters; Kubernetes allows 32768, which 10,000 objects would feel."""


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Condition(_Model):
    """One statement about the object, in the form that all of Kubernetes has."""

    type: Annotated[str, Field(description="What it is about: Ready.")]
    status: Annotated[Literal["True", "False", "Unknown"], Field(description="Whether it is so.")]
    observed_generation: Annotated[
        int, Field(ge=0, description="The metadata.generation that it is about.")
    ]
    last_transition_time: Annotated[
        str,
        Field(
            description="Since when status is as it is.", json_schema_extra={"format": "date-time"}
        ),
    ]
    reason: Annotated[str, Field(description="Why, in one word that programs can rely on.")]
    message: Annotated[str, Field(description="Why, and what to do, in words for people.")]


class PolicyStatus(_Model):
    """How a LinkPolicy stands."""

    observed_generation: Annotated[
        int, Field(ge=0, description="The metadata.generation that this status is about.")
    ]
    conditions: Annotated[
        list[Condition],
        Field(description="Ready is True when the policy is in force, in all regions alike."),
    ]


class LinkStatus(_Model):
    """How a ShortLink stands. The operator writes it, and mends all but others' conditions."""

    observed_generation: Annotated[
        int, Field(ge=0, description="The metadata.generation that this status is about.")
    ]
    conditions: Annotated[
        list[Condition], Field(description="Ready is True when the link is as spec asks for.")
    ]
    code: Annotated[str | None, Field(description="The code that the object's link has.")] = None
    url: Annotated[str | None, Field(description="The short link: what to give to people.")] = None
    state: Annotated[
        str | None,
        Field(
            description="active, expiring, expired, disabled, tombstoned (deleted, restorable),"
            " quarantined or free."
        ),
    ] = None
    expires_at: Annotated[
        str | None, Field(description='When the link ends, in UTC, or "never".')
    ] = None
    home: Annotated[
        str | None,
        Field(description="The cluster whose object the link obeys; elsewhere are its mirrors."),
    ] = None


def status_of(
    outcome: Rest,
    generation: int,
    base_url: str,
    old: Mapping[str, Any] | None,
    policy: Policy,
    now: int,
) -> dict[str, Any]:
    """The status of an object of `generation` for `outcome`, where it has the status `old` now.

    `base_url` is what short links begin with, as `https://s.example`. `now`: milliseconds.
    """
    link, old = outcome.link, old or {}
    if link is not None:
        facts: dict[str, str | None] = {
            "code": link.code,
            "url": f"{base_url}/{link.code}",
            "state": shown_state(link, policy, now),
            "expires_at": NEVER if link.expires_at is None else format_instant(link.expires_at),
        }
    elif outcome.reason in UNSEEN:
        facts = {name: old.get(to_camel(name)) for name in ("code", "url", "state", "expires_at")}
    else:
        facts = {}
    home = old.get("home") if outcome.reason in UNSEEN and not outcome.home else outcome.home
    return _dumped(
        LinkStatus(
            observed_generation=generation,
            conditions=[
                _ready(outcome.ready, outcome.reason, outcome.message, generation, old, now)
            ],
            home=home or None,
            **facts,
        ),
        old,
    )


def policy_status_of(
    refusal: Refusal | None,
    differing: Sequence[str],
    generation: int,
    old: Mapping[str, Any] | None,
    now: int,
) -> dict[str, Any]:
    """The status of a LinkPolicy that is refused, or else in force.

    `differing`: regions in which another policy is in force.
    """
    if refusal is not None:
        ready, reason = False, str(refusal.reason)
        message = f"{refusal.message}. The last good policy stays in force."
    elif differing:
        ready, reason = False, DIFFERS
        message = (
            f"in force here, but {', '.join(differing)} has another: apply the same LinkPolicy to"
            " the clusters of all regions"
        )
    else:
        ready, reason, message = True, IN_FORCE, ""
    condition = _ready(ready, reason, message, generation, old or {}, now)
    return _dumped(PolicyStatus(observed_generation=generation, conditions=[condition]), old or {})


def status_patch(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any] | None:
    """The merge patch that makes the status `old` into `new`; None when it is that already."""
    if old == new:
        return None
    return {"status": {**dict.fromkeys(old or {}), **new}}


def is_settled(body: Mapping[str, Any]) -> bool:
    """Whether nothing has to be done for an object that is as `body`, until it changes.

    Or until the sweep comes by, which is what mends a refusal for a reason outside the object.
    """
    metadata, status = body["metadata"], body.get("status") or {}
    generation, annotations = metadata.get("generation"), metadata.get("annotations") or {}
    if metadata.get("deletionTimestamp") or FINALIZER not in metadata.get("finalizers", ()):
        return False
    if wrong_annotation(annotations) or status.get("observedGeneration") != generation:
        return False
    if TAKE_OVER in annotations and annotations[TAKE_OVER] == status.get("home"):
        return False
    ready = ready_in(status)
    return (
        ready is not None
        and ready.get("observedGeneration") == generation
        and (ready["status"] == "True" or ready.get("reason") not in UNSEEN)
    )


def _ready(
    ready: bool, reason: str, message: str, generation: int, old: Mapping[str, Any], now: int
) -> Condition:
    status: Literal["True", "False"] = "True" if ready else "False"
    before = ready_in(old)
    since = format_instant(now - now % SECOND)
    if before is not None and before["status"] == status:
        since = before["lastTransitionTime"]
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 1] + "…"
    return Condition(
        type=READY,
        status=status,
        observed_generation=generation,
        last_transition_time=since,
        reason=reason,
        message=message,
    )


def ready_in(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The Ready condition of a status, if there is one."""
    conditions: list[Mapping[str, Any]] = status.get("conditions") or []
    return next((one for one in conditions if one["type"] == READY), None)


def _dumped(status: BaseModel, old: Mapping[str, Any]) -> dict[str, Any]:
    """With the conditions that others keep there: each would else mend what the other wrote."""
    dumped = status.model_dump(by_alias=True, exclude_none=True)
    (ready,) = dumped["conditions"]
    kept = [ready if one["type"] == READY else one for one in old.get("conditions") or []]
    dumped["conditions"] = kept if ready in kept else [*kept[: MAX_CONDITIONS - 1], ready]
    return dumped
