"""Links, events and policies as text, for stores and caches that keep each as one value."""

import json
from dataclasses import fields
from typing import Any

from shortlink.links.model import Cause, Event, EventKind, Link, State
from shortlink.links.policy import Policy

_LINK = tuple((field.name, field.default) for field in fields(Link))
_EVENT = tuple(field.name for field in fields(Event))
_POLICY = tuple(field.name for field in fields(Policy))


def to_text(link: Link) -> str:
    """`link` as compact JSON, without what is as by default. Equal links give equal texts."""
    values = {name: value for name, default in _LINK if (value := getattr(link, name)) != default}
    return _dumps(values)


def from_text(text: str) -> Link:
    """The link of `to_text`. Raises ValueError for any other text, as of a newer release."""
    try:
        values: dict[str, Any] = json.loads(text)
        values["state"] = State(values["state"])
        if "cause" in values:
            values["cause"] = Cause(values["cause"])
        for name in ("tags", "former"):
            if name in values:
                values[name] = tuple(values[name])
        if "metadata" in values:
            values["metadata"] = tuple((key, value) for key, value in values["metadata"])
        return Link(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a link's record: {text[:80]!r}") from error


def event_to_text(event: Event) -> str:
    """`event` as compact JSON."""
    return _dumps([getattr(event, name) for name in _EVENT])


def event_from_text(text: str) -> Event:
    """The event of `event_to_text`. Raises ValueError for any other text."""
    try:
        values: dict[str, Any] = dict(zip(_EVENT, json.loads(text), strict=True))
        values["kind"] = EventKind(values["kind"])
        return Event(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"not an event's record: {text[:80]!r}") from error


def policy_to_text(policy: Policy) -> str:
    """`policy` as compact JSON, whole, for another release may have other defaults."""
    values = {name: getattr(policy, name) for name in _POLICY}
    return _dumps(values | {"own_hosts": sorted(policy.own_hosts)})


def policy_from_text(text: str) -> Policy:
    """The policy of `policy_to_text`. Raises ValueError for any other text, as of a newer
    release."""
    try:
        values: dict[str, Any] = json.loads(text)
        return Policy(**values | {"own_hosts": frozenset(values["own_hosts"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"not a policy's record: {text[:80]!r}") from error


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
