"""The LinkPolicy kind: the platform's rules for links as one object of a cluster."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError

from shortlink.links.policy import DAY, HOUR, MINUTE, SECOND, Policy, check_policy
from shortlink.links.refusal import Reason, Refusal
from shortlink_operator.kinds import Metadata, Model, not_null, told

KIND: Final = "LinkPolicy"
NAME: Final = "default"
"""The one LinkPolicy that counts; the API server takes no other."""

UNITS: Final = {"d": DAY, "h": HOUR, "m": MINUTE, "s": SECOND}
MAX_DURATION: Final = 36_500 * DAY
MAX_LINKS: Final = 1_000_000

_DURATION: Final = re.compile(r"([0-9]{1,10})([dhms])")
_DEFAULTS: Final = Policy()


def format_duration(milliseconds: int) -> str:
    """A duration of whole seconds as a LinkPolicy has it, in the greatest unit that fits."""
    unit = next(unit for unit, length in UNITS.items() if milliseconds % length == 0)
    return f"{milliseconds // UNITS[unit]}{unit}"


def _duration(about: str, default: int) -> Any:
    return Field(
        None,
        description=f"{about} A whole number and d, h, m or s, as 30d."
        f" By default {format_duration(default)}.",
    )


_Given = BeforeValidator(not_null)
Duration = Annotated[str | None, _Given]
Count = Annotated[int | None, _Given]


class Brake(Model):
    """Deletions in one namespace that are more than both `links` and `percent` wait."""

    links: Count = Field(
        None,
        ge=0,
        le=MAX_LINKS,
        description=f"So many deletions are always let go. By default {_DEFAULTS.brake_links}.",
    )
    percent: Count = Field(
        None,
        ge=0,
        le=100,
        description="And so many of each hundred links of the namespace. By default"
        f" {_DEFAULTS.brake_share * 100:.0f}.",
    )
    window: Duration = _duration(
        "Deletions count together when they come within it.", _DEFAULTS.brake_window
    )


class PolicySpec(Model):
    """The rules. What is absent is as the platform has it by default."""

    default_lifetime: Duration = _duration(
        "Life of a link that names no expiry.", _DEFAULTS.default_ttl
    )
    grace: Duration = _duration(
        "How long a link that was deleted or expired can be restored; at least 24h.",
        _DEFAULTS.grace,
    )
    quarantine: Duration = _duration(
        "From a link's end until its code may be issued again; not shorter than the grace, or 0s"
        " for as soon as the grace is over.",
        _DEFAULTS.quarantine,
    )
    expiring_ahead: Duration = _duration(
        "How long before its expiry a link is announced as expiring.", _DEFAULTS.expiring_ahead
    )
    reclaim: Annotated[bool | None, _Given] = Field(
        None, description="Whether codes are ever issued again. By default true."
    )
    own_hosts: list[str] = Field(
        [],
        description="Hosts that links may not point at, as s.example or s.example:8443, beside"
        " the one that this platform's short links have.",
    )
    links_per_namespace: Count = Field(
        None,
        ge=1,
        le=MAX_LINKS,
        description="How many ShortLinks of one namespace can have a link. By default any number.",
    )
    brake: Annotated[Brake | None, _Given] = Field(
        None, description="When deletions are so many that they wait for a person."
    )


class PolicyManifest(Model):
    """A whole LinkPolicy object."""

    api_version: Literal["shortlink.platform/v1alpha1"]
    kind: Literal["LinkPolicy"]
    metadata: Metadata
    spec: PolicySpec
    status: Any = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What a LinkPolicy says. `links_per_namespace`: None for any number."""

    policy: Policy = _DEFAULTS
    links_per_namespace: int | None = None


def parse_policy(document: object) -> Rules | Refusal:
    """The rules in `document`, as loaded from JSON; or what is wrong, by its own field's name."""
    try:
        manifest = PolicyManifest.model_validate(document)
    except ValidationError as error:
        return Refusal(Reason.INVALID_POLICY, told(error, PolicySpec), "spec")
    spec = manifest.spec
    brake = spec.brake or Brake.model_validate({})
    given = {}
    for name, attribute, text, least in (
        ("defaultLifetime", "default_ttl", spec.default_lifetime, SECOND),
        ("grace", "grace", spec.grace, 0),
        ("quarantine", "quarantine", spec.quarantine, 0),
        ("expiringAhead", "expiring_ahead", spec.expiring_ahead, 0),
        ("brake.window", "brake_window", brake.window, SECOND),
    ):
        if text is None:
            continue
        form = _DURATION.fullmatch(text)
        if form is None:
            return _wrong(name, f"is {text[:20]!r}; write a whole number and d, h, m or s, as 30d")
        given[attribute] = int(form[1]) * UNITS[form[2]]
        if not least <= given[attribute] <= MAX_DURATION:
            return _wrong(
                name,
                f"is {text}; it can be {format_duration(least)} to {format_duration(MAX_DURATION)}",
            )
    policy = Policy(
        **given,
        reclaim=_DEFAULTS.reclaim if spec.reclaim is None else spec.reclaim,
        own_hosts=frozenset(spec.own_hosts),
        brake_links=_DEFAULTS.brake_links if brake.links is None else brake.links,
        brake_share=_DEFAULTS.brake_share if brake.percent is None else brake.percent / 100,
    )
    refusal = check_policy(policy, production=True)
    if refusal is None:
        return Rules(policy, spec.links_per_namespace)
    if refusal.field == "own_hosts":
        return _wrong("ownHosts", refusal.message)
    return _wrong(
        refusal.field,
        f"is {format_duration(getattr(policy, refusal.field))}, with a grace of"
        f" {format_duration(policy.grace)}: {refusal.message}",
    )


def _wrong(field: str, message: str) -> Refusal:
    return Refusal(Reason.INVALID_POLICY, f"spec.{field} {message}", f"spec.{field}")
