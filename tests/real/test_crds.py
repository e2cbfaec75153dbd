"""What an API server makes of the CRDs: refused at once, with words that help, or taken (T2)."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from shortlink.links.refusal import Refusal
from shortlink.links.targets import parse_target
from shortlink_operator import crds
from shortlink_operator.kinds import API_VERSION, FINALIZER, TAKE_OVER
from tests.apiserver import ScratchCluster
from tests.bad_objects import (
    BAD_CHANGES,
    BAD_LINKS,
    BAD_POLICIES,
    BEGIN,
    FIXED,
    TARGET,
    UNKNOWN_FIELDS,
    Bad,
    a_link,
    a_policy,
)
from tests.drills.demo_process import wait_for
from tests.operator_rig import trust
from tests.wpt_cases import CONTROL, REFUSED, cases

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMESPACE = "crds"
NOT_ALL = ", <nil>: Invalid value: null: some validation rules were not checked because the"
"""What the API server adds when it can't go on to the rules in CEL."""
JSON = {"Content-Type": "application/json"}


class Server:
    """The API server as `kubectl apply` uses it, by plain HTTP."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def create(self, document: Mapping[str, Any], *, dry: bool = True) -> str:
        """Why the API server doesn't take the document, or nothing."""
        metadata = {**document["metadata"]}
        path = f"/apis/{API_VERSION}/linkpolicies"
        if document["kind"] == "ShortLink":
            metadata["namespace"] = NAMESPACE
            path = _path()
        how = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry else {})
        answer = self._client.post(
            path, params=how, content=json.dumps({**document, "metadata": metadata}), headers=JSON
        )
        return "" if answer.is_success else str(answer.json()["message"])

    def patch(self, name: str, document: Mapping[str, Any], subresource: str = "") -> str:
        """Why the API server doesn't take the merge patch, or nothing."""
        answer = self._client.patch(
            f"{_path()}/{name}{subresource}",
            content=json.dumps(document),
            headers={"Content-Type": "application/merge-patch+json"},
        )
        return "" if answer.is_success else str(answer.json()["message"])

    def get(self, name: str) -> dict[str, Any]:
        answer = self._client.get(f"{_path()}/{name}")
        answer.raise_for_status()
        document: dict[str, Any] = answer.json()
        return document

    def delete(self, name: str) -> None:
        self._client.delete(f"{_path()}/{name}").raise_for_status()


def _path() -> str:
    return f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/shortlinks"


@pytest.fixture(scope="module")
def served(scratch: ScratchCluster) -> ScratchCluster:
    scratch.apply_crds()
    return scratch


@pytest.fixture(scope="module")
def server(served: ScratchCluster) -> Iterator[Server]:
    served.kubectl("create", "namespace", NAMESPACE)
    with httpx.Client(
        base_url=served.url, verify=trust(served), trust_env=False, timeout=30
    ) as client:
        yield Server(client)
    served.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


BAD = [
    pytest.param(bad, id=name) for table in (BAD_LINKS, BAD_POLICIES) for name, bad in table.items()
]


@pytest.mark.parametrize("bad", BAD)
def test_T2_a_bad_object_is_told_what_is_wrong(server: Server, bad: Bad) -> None:
    kind, name = bad.document["kind"], bad.document["metadata"]["name"]
    told = server.create(bad.document).removeprefix(
        f'{kind}.shortlink.platform "{name}" is invalid: '
    )
    told = told.partition(NOT_ALL)[0]
    assert (told[1:] if told.startswith("[") else told).removesuffix("]") == bad.says


@pytest.mark.parametrize("field", UNKNOWN_FIELDS)
def test_T2_a_field_that_is_not_there_is_refused(server: Server, field: str) -> None:
    assert f'strict decoding error: unknown field "{field}"' in server.create(UNKNOWN_FIELDS[field])


@pytest.mark.parametrize("name", BAD_CHANGES)
def test_T2_the_code_of_an_object_stays(server: Server, name: str) -> None:
    before, after = BAD_CHANGES[name]
    assert server.create(a_link(**before), dry=False) == ""
    try:
        told = server.patch("promo", {"spec": after})
        assert FIXED in told
        assert "spec.code: " in told
        assert server.patch("promo", {"spec": {"tags": ["a"]}}) == ""
    finally:
        server.delete("promo")


GOOD: list[dict[str, Any]] = [
    {"target": "HTTPS://example.com"},
    {"target": "  http:example.com"},
    {"target": "https://example.com/" + "x" * 2028},
    {"target": "https://bücher.example/ß?ü#😀"},
    {"code": "abc"},
    {"code": "A" * 20},
    {"code": "apiary"},
    {"expiresAt": "never"},
    {"expiresAt": "2035-01-15T13:30:00.123456789+05:30"},
    {"expiresAt": "2035-01-15t08:00:00z"},
    {"expiresAt": "2020-01-15T08:00:00Z"},  # that it is over is the operator's to say
    {"redirectType": 301},
    {"redirectType": 301, "expiresAt": "never"},
    {"redirectType": 302, "expiresAt": "2035-01-15T08:00:00Z"},
    {"tags": []},
    {"tags": ["a", "a"]},
    {"tags": ["é" * 64] * 20},
    {"tags": ["two words", "木", "😀", "~!@#$%^&*()"]},
    {"metadata": {"木" * 64: "字" * 256}},
    {"metadata": {f"n{i}": "x" * 256 for i in range(20)}},
    {"takeBack": True, "deletionPolicy": "Retain"},
]


@pytest.mark.parametrize("spec", GOOD, ids=lambda spec: ascii(spec)[:60])
def test_T2_what_the_platform_takes_the_crd_takes(server: Server, spec: dict[str, Any]) -> None:
    assert server.create(a_link(**spec)) == ""


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"grace": "24h", "quarantine": "0s", "expiringAhead": "0s", "defaultLifetime": "1s"},
        {"defaultLifetime": "36500d", "quarantine": "3153600000s"},
        {"ownHosts": ["s.example", "s.example:8443", "[::1]:80", "127.0.0.1"]},
        {"linksPerNamespace": 1, "reclaim": False},
        {"brake": {"links": 0, "percent": 0, "window": "1s"}},
    ],
    ids=str,
)
def test_T2_good_policies_are_taken(server: Server, spec: dict[str, Any]) -> None:
    assert server.create(a_policy(**spec)) == ""


def test_S2_of_the_real_targets_only_those_are_refused_that_the_platform_refuses(
    server: Server,
) -> None:
    answers = {case.input: server.create(a_link(target=case.input)) for case in cases()}
    assert len(answers) == 267
    refused = {text: told for text, told in answers.items() if told}
    for text, told in refused.items():
        assert isinstance(parse_target(text, frozenset()), Refusal), told
    control = {text for text, why in REFUSED.items() if why == CONTROL}
    assert control <= refused.keys()


def test_the_examples_are_taken(served: ScratchCluster) -> None:
    try:
        served.kubectl("apply", "-f", str(EXAMPLES / "links"))
        served.kubectl("apply", "-f", str(EXAMPLES / "policy.yaml"))
        found = served.kubectl("get", "shortlinks", "-n", "campaigns", "-o", "name").split()
        assert len(found) == 5
        again = served.kubectl("apply", "-f", str(EXAMPLES / "links"))
        assert [line for line in again.splitlines() if not line.endswith("unchanged")] == []
        chosen = ("get", "sl", "-A", "--field-selector", "spec.code=SpringSale", "-o", "name")
        assert served.kubectl(*chosen).split() == ["shortlink.shortlink.platform/spring-sale"]
    finally:
        served.kubectl("delete", "namespace", "campaigns", "--wait=false")
        served.kubectl("delete", "linkpolicy", "default")


def _paths(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _paths(child.get("items", child), f"{path}.{name}")


def test_kubectl_explains_every_field(served: ScratchCluster) -> None:
    told = served.kubectl("explain", "shortlink.spec.target")
    assert "an absolute http or https URL" in " ".join(told.split())
    for definition in (crds.shortlinks(), crds.linkpolicies()):
        kind = definition["spec"]["names"]["singular"]
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        told = served.kubectl("explain", kind, "--recursive")
        for part in ("spec", "status"):
            for path in _paths(schema[part], part):
                assert re.search(rf"^\s+{path.rpartition('.')[2]}\s*<", told, re.MULTILINE), path


STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-12-01T00:00:00Z",
            "reason": "Ready",
            "message": "",
        }
    ],
    "code": "abc1234",
    "url": "https://s.example/abc1234",
    "state": "active",
    "expiresAt": "2035-01-15T08:00:00Z",
    "home": "us-east-1",
}


def test_the_status_is_kept_whole_and_shown(served: ScratchCluster, server: Server) -> None:
    assert server.create(a_link(), dry=False) == ""
    try:
        assert server.patch("promo", {"status": STATUS}, "/status") == ""
        assert server.get("promo")["status"] == STATUS
        head, row = served.kubectl("get", "sl", "promo", "-n", NAMESPACE).splitlines()
        assert head.split() == "NAME URL TARGET STATE EXPIRES READY REASON AGE".split()
        assert row.split()[:-1] == [
            "promo", "https://s.example/abc1234", TARGET, "active", "2035-01-15T08:00:00Z", "True",
            STATUS["conditions"][0]["reason"],
        ]  # fmt: skip
        by_code = ("--field-selector", "status.code=abc1234", "-o", "name")
        assert served.kubectl("get", "sl", "-n", NAMESPACE, *by_code).split() != []
    finally:
        server.delete("promo")


def test_after_a_rule_was_tightened_an_older_object_can_still_be_looked_after(
    served: ScratchCluster, server: Server
) -> None:
    """Its labels, finalizers, status and what is right in its spec, until somebody mends it."""
    looser = copy.deepcopy(crds.shortlinks())
    schema = looser["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["target"]["x-kubernetes-validations"]
    odd = a_link(target="ftp://example.com/")
    try:
        served.kubectl("apply", "-f", "-", given=json.dumps(looser))
        wait_for(lambda: server.create(odd) == "", "the looser rule to hold", 30)
        assert server.create(odd, dry=False) == ""
    finally:
        served.apply_crds()
    another = a_link(target="ftp://example.com/") | {"metadata": {"name": "another"}}
    wait_for(lambda: server.create(another) != "", "the rule to hold again", 30)
    metadata = {"labels": {"a": "b"}, "annotations": {TAKE_OVER: "x"}, "finalizers": [FINALIZER]}
    assert server.patch("promo", {"metadata": metadata}) == ""
    assert server.patch("promo", {"status": STATUS}, "/status") == ""
    assert server.patch("promo", {"spec": {"tags": ["a"]}}) == ""
    assert BEGIN in server.patch("promo", {"spec": {"target": "gopher://example.com/"}})
    server.delete("promo")
    assert server.patch("promo", {"metadata": {"finalizers": None}}) == ""
