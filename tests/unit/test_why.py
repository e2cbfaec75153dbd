"""`shortlink why`: what people are told of a code, in every state, and of a cache that answers
anything or nothing (O4)."""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from shortlink import cli
from shortlink.clock import HandClock
from shortlink.links.lifecycle import Edit
from shortlink.links.model import Cause, Link, State
from shortlink.links.policy import CACHE_BOUND, DAY, HOUR, MINUTE, SECOND, YEAR, Policy
from shortlink.problem import Problem
from shortlink.redirect.ops import Ops
from shortlink.redirect.service import RedirectService
from shortlink.store.port import Claim, StoreError, StoreUnavailable
from shortlink.store.record import policy_to_text
from shortlink.store.sql import open_sql_store
from shortlink.why import span, why
from shortlink_operator import cluster as clusters
from tests.fakes import MemoryStore
from tests.redirect_rig import Source, ask
from tests.samples import ANN, ANNS_OBJECT, NOW, POLICY, TARGET, a_create, a_link
from tests.world import World

CLAIM = Claim("ann/promo", "promo", 1, "t1")
DELETED = {"state": State.TOMBSTONED, "tombstoned_at": NOW - DAY, "cause": Cause.DELETED}
OLD = {"tombstoned_at": NOW - 40 * DAY, "cause": Cause.EXPIRED, "expires_at": NOW - 40 * DAY}


async def facts(
    link: Link | None, policy: Policy = POLICY, ops: tuple[str, int] | None = None
) -> list[tuple[str, str]]:
    world = World(policy)
    if link is not None:
        world.keep(link)
    return await why(MemoryStore(world.kept), "promo", policy, NOW, ops)


# name: (link, what has to be told, topics that may not be there)
STATES: dict[str, tuple[Link | None, dict[str, list[str]], str]] = {
    "never used": (
        None,
        {
            "code": ["promo (never used)"],
            "answer": ["404: This short link does not exist."],
        },
        "row owner target expires due events",
    ),
    "active with an expiry": (
        a_link(),
        {
            "code": ["promo (alias)"],
            "answer": [f"302 to {TARGET}: the link is active"],
            "row": ["generation 1, version 1, active"],
            "owner": ["ann, by the API"],
            "target": [TARGET],
            "created": ["2026-11-16T08:00:00Z (60 d 0 h ago)"],
            "expires": ["2027-01-25T08:00:00Z (in 10 d 0 h)"],
            "due": [
                "announce the expiry 2027-01-24T08:00:00Z (in 9 d 0 h)",
                "tombstone for expiry 2027-01-25T08:00:00Z (in 10 d 0 h)",
            ],
            "events": ["not yet published: none"],
        },
        "disabled tombstone restorable free claim",
    ),
    "active for ever": (
        a_link(expires_at=None, permanent=True, custom=False),
        {
            "code": ["promo (generated)"],
            "answer": [f"301 to {TARGET}: the link is active"],
            "expires": ["never"],
        },
        "due tombstone free",
    ),
    "expiring": (
        a_link(expires_at=NOW + HOUR),
        {
            "answer": [f"302 to {TARGET}: the link is active"],
            "due": ["tombstone for expiry 2027-01-15T09:00:00Z (in 1 h 0 min)"],
        },
        "tombstone",
    ),
    "expired but not swept": (
        a_link(expires_at=NOW - HOUR),
        {
            "answer": ["410: This short link has expired."],
            "row": ["generation 1, version 1, active"],
            "": ["by the clock it is tombstoned; the sweeper has not moved the row yet"],
            "tombstone": ["expired, 2027-01-15T07:00:00Z (1 h 0 min ago)"],
            "restorable": ["until 2027-02-14T07:00:00Z (in 29 d 23 h)"],
        },
        "due free",
    ),
    "expired long ago but not swept": (
        a_link(expires_at=NOW - 40 * DAY),
        {
            "answer": ["410: This short link has expired."],
            "": ["by the clock it is quarantined; the sweeper has not moved the row yet"],
            "free": ["2027-12-06T08:00:00Z (in 325 d 0 h)"],
        },
        "due restorable",
    ),
    "disabled": (
        a_link(state=State.DISABLED, disabled="phishing", version=2),
        {
            "answer": ["451: This short link was disabled because of how it was used."],
            "row": ["generation 1, version 2, disabled"],
            "disabled": ["phishing"],
            "due": ["tombstone for expiry 2027-01-25T08:00:00Z (in 10 d 0 h)"],
        },
        "tombstone free",
    ),
    "deleted": (
        a_link(**DELETED),
        {
            "answer": ["410: This short link was deleted by its owner."],
            "tombstone": ["deleted, 2027-01-14T08:00:00Z (1 d 0 h ago)"],
            "restorable": ["until 2027-02-13T08:00:00Z (in 29 d 0 h)"],
            "due": ["quarantine 2027-02-13T08:00:00Z (in 29 d 0 h)"],
        },
        "disabled free",
    ),
    "expired": (
        a_link(**DELETED | {"cause": Cause.EXPIRED, "expires_at": NOW - DAY}),
        {
            "answer": ["410: This short link has expired."],
            "tombstone": ["expired, 2027-01-14T08:00:00Z (1 d 0 h ago)"],
            "restorable": ["until 2027-02-13T08:00:00Z (in 29 d 0 h)"],
        },
        "free",
    ),
    "quarantined": (
        a_link(state=State.QUARANTINED, **OLD),
        {
            "answer": ["410: This short link has expired."],
            "row": ["generation 1, version 1, quarantined"],
            "free": ["2027-12-06T08:00:00Z (in 325 d 0 h)"],
            "due": ["free 2027-12-06T08:00:00Z (in 325 d 0 h)"],
        },
        "restorable",
    ),
    "free": (
        a_link(state=State.FREE, **OLD | {"tombstoned_at": NOW - 2 * YEAR}),
        {
            "answer": ["410: This short link has expired."],
            "row": ["generation 1, version 1, free"],
        },
        "restorable due free",
    ),
}


@pytest.mark.parametrize("name", STATES)
async def test_O4_each_state_is_told(name: str) -> None:
    link, told, untold = STATES[name]
    found: dict[str, list[str]] = {}
    for topic, fact in await facts(link):
        found.setdefault(topic, []).append(fact)
    assert {topic: found.get(topic) for topic in told} == told
    assert found.keys().isdisjoint(untold.split())
    assert found["cache"] == ["no redirect process is known here"]
    assert all(fact for _, fact in await facts(link))


async def test_L3_a_code_that_is_never_freed_is_told_so() -> None:
    policy = replace(POLICY, reclaim=False)
    told = dict(await facts(a_link(state=State.QUARANTINED, **OLD), policy))
    assert told["free"] == "never: reclaiming is off"


async def test_O4_a_link_of_an_object_is_told_with_its_claim() -> None:
    world = World()
    await world.management().create(a_create(by=ANNS_OBJECT))
    store = MemoryStore(world.kept)

    async def told() -> dict[str, str]:
        return dict(await why(store, "promo", POLICY, NOW, None))

    assert (await told())["owner"] == "ann, by object ann/promo"
    assert (await told())["claim"] == (
        "ann/promo has none: the object is gone and the grace was over"
    )
    claim = replace(CLAIM, token="t2")
    world.kept.claims["ann/promo"] = claim
    assert (await told())["claim"] == "ann/promo -> promo generation 1 (this link)"
    for other in ({"generation": 2}, {"code": "other"}):
        world.kept.claims["ann/promo"] = replace(claim, **other)
        assert (await told())["claim"].endswith("(another link: this one is not its own)")


HOME = replace(CLAIM, token="t2", cluster="us-east-1", uid="u1")
SEE = "see kubectl -n ann get shortlink promo -o yaml, in us-east-1"


async def claimed(claim: Claim, region: str | None = "us-east-1") -> dict[str, str]:
    """What is told in `region` of the link of the object that has `claim`."""
    world = World()
    await world.management().create(a_create(by=ANNS_OBJECT))
    world.kept.claims[claim.key] = claim
    return dict(await why(MemoryStore(world.kept), "promo", POLICY, NOW, None, region))


async def test_O4_an_objects_home_and_what_becomes_of_its_link_are_told() -> None:
    told = await claimed(replace(HOME, retain=True), "eu-west-1")
    assert told["claim"] == "ann/promo -> promo generation 1 (this link)"
    assert told["home"] == "us-east-1, of the object with uid u1"
    assert told["retained"] == "the link outlives its object"
    assert told["object"] == SEE
    assert "retained" not in await claimed(HOME)
    assert (await claimed(CLAIM)).keys().isdisjoint({"home", "object", "retained"})


class ApiServer:
    """Answers with `body`, or raises it."""

    def __init__(self, body: dict[str, Any] | Exception) -> None:
        self.body = body

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/apis/shortlink.platform/v1alpha1/namespaces/ann/shortlinks/promo"
        if isinstance(self.body, Exception):
            raise self.body
        return self.body


def an_object(*conditions: dict[str, str], **metadata: str) -> dict[str, Any]:
    return {"metadata": {"uid": "u1"} | metadata, "status": {"conditions": list(conditions)}}


READY = {"type": "Ready", "status": "False", "reason": "Refused", "message": "no alias"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (an_object({"type": "Odd"}, READY), "Ready=False, Refused: no alias"),
        (an_object(), "no condition yet: does an operator run?"),
        ({"metadata": {"uid": "u1"}}, "no condition yet: does an operator run?"),
        (
            an_object(READY, deletionTimestamp="2027-01-15T08:00:00Z", uid="u2"),
            "another object of this name: being deleted, Ready=False, Refused: no alias",
        ),
        (clusters.Missing("404"), "gone from us-east-1"),
        (clusters.Unreachable("no answer"), f"not known now (no answer); {SEE}"),
        (Problem("no service account"), SEE),
    ],
)
async def test_O4_an_object_of_this_cluster_is_told_by_its_condition(
    answer: dict[str, Any] | Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def open_cluster(kubeconfig: None, deadline: float) -> AsyncIterator[ApiServer]:
        if isinstance(answer, Problem):
            raise answer
        yield ApiServer(answer)

    monkeypatch.setattr(clusters, "open_cluster", open_cluster)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert (await claimed(HOME))["object"] == SEE
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert (await claimed(HOME))["object"] == told
    assert (await claimed(HOME, "eu-west-1"))["object"] == SEE


@pytest.mark.parametrize(
    ("method", "topic"), [("find_claim", "claim"), ("pending", "events")], ids=str
)
async def test_O4_what_cannot_be_read_now_is_told_beside_the_rest(method: str, topic: str) -> None:
    world = World()
    await world.management().create(a_create(by=ANNS_OBJECT))

    async def gate(called: str, done: bool) -> None:
        if called == method:
            raise StoreUnavailable("no majority")

    told = dict(await why(MemoryStore(world.kept, gate), "promo", POLICY, NOW, None))
    assert told[topic].endswith("not known now: no majority")
    assert told["answer"].startswith("302")
    assert told["cache"] == "no redirect process is known here"


class Parted(MemoryStore):
    """A store of three data centres."""

    async def views(self, code: str) -> dict[str, Link | StoreError | None]:
        silent = StoreUnavailable("us-east-1 did not answer")
        return {"us-east-1": silent, "eu-west-1": a_link(version=3), "ap-southeast-1": None}


async def test_O4_what_each_region_has_is_told_and_which_did_not_answer() -> None:
    world = World()
    for link in (a_link(), None):
        world.kept.links = {} if link is None else {"promo": link}
        told = await why(Parted(world.kept), "promo", POLICY, NOW, None)
        assert [fact for topic, fact in told if topic == "view"] == [
            "ap-southeast-1: nothing here",
            "eu-west-1: active, generation 1, version 3",
            "us-east-1: us-east-1 did not answer",
        ]


@pytest.mark.parametrize(("region", "until"), [("us-east-1", "2 d"), ("eu-west-1", "30 d")])
def test_O4_a_services_store_is_told_by_its_regions_policy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    region: str,
    until: str,
) -> None:
    async def fill() -> None:
        store = open_sql_store(tmp_path / "links.db")
        gone = int(time.time() * 1000) + HOUR // 2
        await store.create(a_link(**DELETED | {"tombstoned_at": gone}), (), ())
        await store.keep_policy("us-east-1", policy_to_text(replace(POLICY, grace=2 * DAY)))
        await store.close()

    asyncio.run(fill())
    monkeypatch.setenv("SHORTLINK_STORE", f"sqlite:///{tmp_path / 'links.db'}")
    monkeypatch.setenv("SHORTLINK_REGION", region)
    monkeypatch.setattr(sys, "argv", ["shortlink", "why", "promo"])
    cli.main()
    [line] = [line for line in capsys.readouterr().out.splitlines() if "restorable" in line]
    assert f"(in {until} 0 h)" in line


async def test_N1_events_of_the_code_that_wait_are_told() -> None:
    world = World()
    await world.management().create(a_create())
    await world.management().create(a_create(code="other", token="t3"))
    await world.management().apply("promo", Edit(by=ANN, target="https://example.com/b"))
    told = dict(await why(MemoryStore(world.kept), "promo", POLICY, NOW, None))
    assert told["events"] == "not yet published: created, edited"


async def test_N1_when_more_events_wait_than_are_looked_at_that_is_told() -> None:
    world = World()
    for n in range(1001):
        await world.management().create(a_create(code=f"code{n}", token=str(n)))
    told = dict(await why(MemoryStore(world.kept), "code1000", POLICY, NOW, None))
    assert told["events"] == "not yet published among the 1000 oldest: none"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "now"),
        (999, "now"),
        (-999, "now"),
        (SECOND, "in 1 s"),
        (-SECOND, "1 s ago"),
        (61 * SECOND, "in 1 min 1 s"),
        (5 * MINUTE, "in 5 min 0 s"),
        (-5 * MINUTE, "5 min 0 s ago"),
        (HOUR - 1, "in 59 min 59 s"),
        (HOUR, "in 1 h 0 min"),
        (3 * DAY + 4 * HOUR + 59 * MINUTE, "in 3 d 4 h"),
        (DAY + SECOND, "in 1 d 0 h"),
        (-(YEAR + DAY), "1 y 1 d ago"),
        (5 * YEAR, "in 5 y 0 d"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(milliseconds: int, text: str) -> None:
    assert span(milliseconds) == text


# The cache line


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[str, int]]:
    """An HTTP server on a port of its own that answers every GET so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield "127.0.0.1", server.server_port
        finally:
            server.shutdown()
            thread.join()


async def cached(status: int, body: bytes) -> str:
    with answering(status, body) as ops:
        told = dict(await facts(a_link(), ops=ops))["cache"]
        assert f" at {ops[0]}:{ops[1]}" in told
        return told.removeprefix(f"redirect process at {ops[0]}:{ops[1]}: ")


class OpsRig:
    """What a redirect process with the link in its store would answer on its ops listener."""

    def __init__(self) -> None:
        self.source = Source([a_link()])
        self.hand = HandClock(NOW)
        self.service = RedirectService(self.source, self.hand.clock)

    def why(self) -> bytes:
        response = Ops(self.service, lambda: 0).route(b"/why/promo", False, lambda _: None)
        return response.body


async def nothing(_: OpsRig) -> None:
    pass


async def visited(rig: OpsRig) -> None:
    await ask(rig.service, "/promo")
    rig.hand.advance(1500)


async def too_old(rig: OpsRig) -> None:
    await ask(rig.service, "/promo")
    rig.hand.advance(CACHE_BOUND)


async def being_read(rig: OpsRig) -> None:
    rig.source.hold("promo")
    ask(rig.service, "/promo")


@pytest.mark.parametrize(
    ("happened", "told"),
    [
        (nothing, "nothing cached"),
        (visited, "status 302 of generation 1, version 1, 1500 of at most 5000 ms old"),
        (
            too_old,
            "status 302 of generation 1, version 1, 5000 of at most 5000 ms old, too old to be"
            " served: it would be read anew",
        ),
        (being_read, "nothing cached, a store read is under way"),
    ],
)
async def test_O4_what_a_redirect_process_has_cached_is_told(
    happened: Callable[[OpsRig], Any], told: str
) -> None:
    rig = OpsRig()
    await happened(rig)
    assert await cached(200, rig.why()) == told
    await rig.service.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        b"[]",
        b"3",
        b"null",
        b"{}",
        b'{"read_under_way": false}',
        b'{"read_under_way": false, "cached": {}}',
        b'{"read_under_way": false, "cached": 3}',
        b"[" * 60_000,
        json.dumps({"cached": "x" * 70_000}).encode(),
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_O4_a_listener_that_answers_something_else_is_told_and_stops_nothing(
    body: bytes,
) -> None:
    for status in (200, 404):
        told = await cached(status, body)
        assert "did not answer: " in told or "is no redirect process's ops listener" in told


async def test_O4_a_redirect_process_that_is_gone_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    told = dict(await facts(a_link(), ops=("127.0.0.1", port)))
    assert told["cache"].startswith(f"the redirect process at 127.0.0.1:{port} did not answer: ")
    assert told["answer"].startswith("302")


@pytest.mark.parametrize("ops", [("127.0.0.1", 99999), ("a" * 64, 80), ("a b", 80), ("\n", 80)])
async def test_O4_an_ops_listener_that_cannot_be_is_told(ops: tuple[str, int]) -> None:
    assert "did not answer" in dict(await facts(None, ops=ops))["cache"]


async def test_O4_a_listener_that_speaks_no_http_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-x\r\n")
                connection.recv(1000)

        thread = threading.Thread(target=babble)
        thread.start()
        told = dict(await facts(None, ops=("127.0.0.1", server.getsockname()[1])))
        thread.join()
    assert "did not answer" in told["cache"]
