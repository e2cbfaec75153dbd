"""`shortlink why CODE`: everything that is known of a code, and why it answers as it does."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any

from shortlink.links.answers import answer
from shortlink.links.instants import format_instant
from shortlink.links.lifecycle import due_times, free_at, settled
from shortlink.links.model import Link, State
from shortlink.links.policy import DAY, HOUR, MINUTE, SECOND, YEAR, Policy
from shortlink.problem import Problem
from shortlink.store.port import Claim, LinkStore, StoreError

_PENDING = 1000
_OPS_TIMEOUT = 1.0
_CLUSTER_TIMEOUT = 2.0

_DUE = {
    State.ACTIVE: ("announce the expiry", "tombstone for expiry"),
    State.DISABLED: ("tombstone for expiry",),
    State.TOMBSTONED: ("quarantine",),
    State.QUARANTINED: ("free",),
    State.FREE: (),
}

Facts = Iterator[tuple[str, str]]


async def why(
    store: LinkStore,
    code: str,
    policy: Policy,
    now: int,
    ops: tuple[str, int] | None,
    region: str | None = None,
) -> list[tuple[str, str]]:
    """(topic, fact) pairs about `code`, as a process in `region` knows them.

    `policy` is that region's; `ops` is a redirect process's ops listener, if one runs. Raises
    StoreError when the link can't be read; what else can't be is told.
    """
    link = await store.get(code)
    facts = [("code", _code(code, link)), ("answer", _answer(link, now))]
    if link is not None:
        facts += _row(link, policy, now)
        if link.claim is not None:
            facts += await _claimed(store, link, link.claim, region)
        facts.append(("events", await _events(store, code)))
    views = await store.views(code)
    facts += [("view", _view(place, views[place])) for place in sorted(views)]
    facts.append(("cache", await asyncio.to_thread(_cached, ops, code)))
    return facts


def _code(code: str, link: Link | None) -> str:
    kind = "never used" if link is None else "alias" if link.custom else "generated"
    return f"{code} ({kind})"


def _answer(link: Link | None, now: int) -> str:
    told = answer(link, now)
    if told.target:
        return f"{told.status} to {told.target}: the link is {State.ACTIVE}"
    return f"{told.status}: {told.reason}"


def _row(link: Link, policy: Policy, now: int) -> Facts:
    view = settled(link, policy, now)
    yield "row", f"generation {link.generation}, version {link.version}, {link.state}"
    if view.state is not link.state:
        yield "", f"by the clock it is {view.state}; the sweeper has not moved the row yet"
    yield "owner", link.owner + (f", by object {link.claim}" if link.claim else ", by the API")
    yield "target", link.target
    if link.disabled is not None:
        yield "disabled", link.disabled
    yield "created", _when(link.created_at, now)
    yield "changed", _when(link.changed_at, now)
    yield "expires", "never" if link.expires_at is None else _when(link.expires_at, now)
    if view.tombstoned_at is not None:
        yield "tombstone", f"{view.cause}, {_when(view.tombstoned_at, now)}"
        if view.state is State.TOMBSTONED:
            yield "restorable", f"until {_when(view.tombstoned_at + policy.grace, now)}"
    if view.state is State.QUARANTINED:
        freed = _when(free_at(view, policy), now) if policy.reclaim else "never: reclaiming is off"
        yield "free", freed
    for what, at in zip(_DUE[link.state], due_times(link, policy), strict=False):
        if at > now:
            yield "due", f"{what} {_when(at, now)}"


async def _claimed(
    store: LinkStore, link: Link, key: str, region: str | None
) -> list[tuple[str, str]]:
    try:
        claim = await store.find_claim(key)
    except StoreError as error:
        return [("claim", f"of {key}, not known now: {error}")]
    if claim is None:
        return [("claim", f"{key} has none: the object is gone and the grace was over")]
    holds = (claim.code, claim.generation) == (link.code, link.generation)
    facts = [
        (
            "claim",
            f"{key} -> {claim.code} generation {claim.generation}"
            f" ({'this link' if holds else 'another link: this one is not its own'})",
        )
    ]
    if claim.retain:
        facts.append(("retained", "the link outlives its object"))
    if claim.cluster:
        facts.append(("home", f"{claim.cluster}, of the object with uid {claim.uid}"))
        facts.append(("object", await _object(claim, region)))
    return facts


async def _object(claim: Claim, region: str | None) -> str:
    namespace, _, name = claim.key.partition("/")
    shown_by = f"kubectl -n {namespace} get shortlink {name} -o yaml, in {claim.cluster}"
    if claim.cluster != region or "KUBERNETES_SERVICE_HOST" not in os.environ:
        return f"see {shown_by}"
    from shortlink_operator import cluster as clusters  # it takes half a second

    try:
        async with clusters.open_cluster(None, deadline=_CLUSTER_TIMEOUT) as cluster:
            body = await cluster.get(clusters.object_path("shortlinks", namespace, name))
    except Problem:  # the pod may not ask
        return f"see {shown_by}"
    except clusters.Missing:
        return f"gone from {claim.cluster}"
    except clusters.ClusterError as error:
        return f"not known now ({error}); see {shown_by}"
    return _condition(body, claim)


def _condition(body: dict[str, Any], claim: Claim) -> str:
    found = body.get("status", {}).get("conditions", [])
    told = [each for each in found if each["type"] == "Ready"]
    ready = (
        f"Ready={told[0]['status']}, {told[0]['reason']}: {told[0]['message']}"
        if told
        else "no condition yet: does an operator run?"
    )
    other = "" if body["metadata"]["uid"] == claim.uid else "another object of this name: "
    going = "being deleted, " if "deletionTimestamp" in body["metadata"] else ""
    return f"{other}{going}{ready}"


def _view(place: str, seen: Link | StoreError | None) -> str:
    if isinstance(seen, StoreError):
        return f"{place}: {seen}"
    if seen is None:
        return f"{place}: nothing here"
    return f"{place}: {seen.state}, generation {seen.generation}, version {seen.version}"


async def _events(store: LinkStore, code: str) -> str:
    try:
        pending = await store.pending(_PENDING)
    except StoreError as error:
        return f"not known now: {error}"
    kinds = ", ".join(event.kind for event in pending if event.code == code) or "none"
    of = f" among the {_PENDING} oldest" if len(pending) == _PENDING else ""
    return f"not yet published{of}: {kinds}"


def _cached(ops: tuple[str, int] | None, code: str) -> str:
    if ops is None:
        return "no redirect process is known here"
    host, port = ops
    try:
        with closing(HTTPConnection(host, port, timeout=_OPS_TIMEOUT)) as connection:
            connection.request("GET", f"/why/{code}")
            entry = json.loads(connection.getresponse().read(65536))
        reading = ", a store read is under way" if entry["read_under_way"] else ""
        return f"redirect process at {host}:{port}: {_entry(entry['cached'])}{reading}"
    except (OSError, HTTPException, ValueError) as error:
        return f"the redirect process at {host}:{port} did not answer: {error}"
    except (LookupError, TypeError, RecursionError):
        return f"what answers at {host}:{port} is no redirect process's ops listener"


def _entry(cached: dict[str, Any] | None) -> str:
    if cached is None:
        return "nothing cached"
    stamp = f"generation {cached['generation']}, version {cached['version']}"
    age = f"{cached['age_ms']} of at most {cached['bound_ms']} ms old"
    use = "" if cached["served"] else ", too old to be served: it would be read anew"
    return f"status {cached['status']} of {stamp}, {age}{use}"


def _when(at: int, now: int) -> str:
    return f"{format_instant(at)} ({span(at - now)})"


def span(milliseconds: int) -> str:
    """A length of time as people say it: `in 3 d 4 h`, `5 min 0 s ago`."""
    size = abs(milliseconds)
    units = ((YEAR, "y"), (DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))
    counts: list[str] = []
    for unit, name in units:
        count, size = divmod(size, unit)
        if count or counts:
            counts.append(f"{count} {name}")
    text = " ".join(counts[:2])
    return "now" if not text else f"in {text}" if milliseconds > 0 else f"{text} ago"
