"""The ShortLink manifest: what is read, and what each bad document is told (T2)."""

from typing import Any

import pytest

from shortlink.links.lifecycle import KEEP
from shortlink_operator.documents import documents
from shortlink_operator.kinds import ShortLink, Unreadable, foreign, parse_manifest

HOME = frozenset({"default/home"})
HEAD = "apiVersion: shortlink.platform/v1alpha1\nkind: ShortLink\nmetadata: {name: home}\n"
URL = "https://example.com/"


def spec(fields: str) -> str:
    return f"{HEAD}spec: {{{fields}}}\n"


def annotated(name: str, value: str) -> str:
    annotations = f"annotations: {{shortlink.platform/{name}: {value}}}"
    return spec("target: t").replace("name: home", f"name: home, {annotations}")


def read(text: str, where: str = "a.yaml") -> ShortLink | Unreadable:
    (document,) = documents(text, as_json=False)
    return parse_manifest(document, where)


def test_the_least_manifest_leaves_the_rest_to_the_policy() -> None:
    assert read(spec(f"target: '{URL}'")) == ShortLink(
        key="default/home",
        namespace="default",
        name="home",
        target=URL,
        code=None,
        expires_at=KEEP,
        permanent=False,
        tags=(),
        metadata=(),
        take_back=False,
    )


def test_a_full_manifest_as_an_api_server_gives_it_back() -> None:
    text = """
apiVersion: shortlink.platform/v1alpha1
kind: ShortLink
metadata:
  name: spring.sale-26
  namespace: team-a
  labels: {app: shop}
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: "{}"
    shortlink.platform/take-over: eu-west-1
    shortlink.platform/allow-delete: "true"
  uid: 8d5a0b7e
  resourceVersion: "12"
  generation: 3
  creationTimestamp: 2026-01-01T00:00:00Z
  finalizers: [shortlink.platform/held]
  managedFields: [{manager: kubectl}]
spec:
  target: https://example.com/spring?a=b#c
  code: Spring26
  expiresAt: 2027-01-15T08:00:00Z
  redirectType: 302
  tags: [sale, "2026"]
  metadata: {b: "2", a: "1"}
  takeBack: true
  deletionPolicy: Retain
status: {conditions: [{type: Ready}]}
"""
    assert read(text) == ShortLink(
        key="team-a/spring.sale-26",
        namespace="team-a",
        name="spring.sale-26",
        target="https://example.com/spring?a=b#c",
        code="Spring26",
        expires_at=1_800_000_000_000,
        permanent=False,
        tags=("sale", "2026"),
        metadata=(("a", "1"), ("b", "2")),
        take_back=True,
        retain=True,
        uid="8d5a0b7e",
        take_over="eu-west-1",
    )


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ("expiresAt: never", "expires_at", None),
        ("expiresAt: 2027-01-15T13:30:00+05:30", "expires_at", 1_800_000_000_000),
        ("expiresAt: '2027-01-15t08:00:00.5z'", "expires_at", 1_800_000_000_500),
        ("redirectType: 301", "permanent", True),
        ("code: '1234567'", "code", "1234567"),
        ("code: ''", "code", ""),  # the domain refuses it, as at every door
        ("code: 1e3", "code", "1e3"),
        ("tags: []", "tags", ()),
        ("deletionPolicy: Delete", "retain", False),
        ("deletionPolicy: Retain", "retain", True),
    ],
)
def test_values(fields: str, attribute: str, value: object) -> None:
    link = read(spec(f"target: t, {fields}"))
    assert isinstance(link, ShortLink), link
    assert getattr(link, attribute) == value


BAD = [
    # YAML that means something else than it looks like
    (spec("target: t, code: 1234567"), "spec.code reads as the number 1234567", HOME),
    (spec("target: t, code: 0123456"), "put the text in quotes", HOME),
    (spec("target: t, code: 1_000_000"), "spec.code reads as the number 1000000", HOME),
    (spec("target: t, code: 190:20:30"), "spec.code reads as the number 685230", HOME),
    (spec("target: t, code: 1.5"), "spec.code reads as the number 1.5", HOME),
    (spec("target: t, code: yes"), "spec.code reads as the boolean true", HOME),
    (spec("target: t, code: Off"), "spec.code reads as the boolean false", HOME),
    (spec("target: t, expiresAt: 2027"), "spec.expiresAt reads as the number 2027", HOME),
    (spec("target: t, expiresAt: !!timestamp 2027-01-01"), "must be text, not a date", HOME),
    (spec("target: t, tags: [a, 1.0]"), "spec.tags[1] reads as the number 1.0", HOME),
    (spec("target: t, metadata: {a: no}"), "spec.metadata.a reads as the boolean false", HOME),
    # values that are missing, empty or of another shape
    (spec(""), "spec.target is missing; add it", HOME),
    (spec("target: "), "spec.target is empty; give it a value or remove the line", HOME),
    (spec("target: [t]"), "spec.target must be text, not a list", HOME),
    (spec("target: t, code: "), "spec.code is empty", HOME),
    (spec("target: t, code: {a: b}"), "spec.code must be text, not a mapping", HOME),
    (spec("target: t, expiresAt: ~"), "spec.expiresAt is empty", HOME),
    (spec("target: t, tags: null"), "spec.tags is empty", HOME),
    (spec("target: t, tags: a"), "spec.tags must be a list, not text", HOME),
    (spec("target: t, metadata: [a]"), "spec.metadata must be a mapping, not a list", HOME),
    (spec("target: t, takeBack: 'yes'"), "must be true or false without quotes", HOME),
    (spec("target: t, takeBack: 1"), "spec.takeBack must be true or false", HOME),
    (spec("target: t, redirectType: '302'"), "must be 301 or 302, not '302'", HOME),
    (spec("target: t, redirectType: 307"), "must be 301 or 302, not 307", HOME),
    (spec("target: t, redirectType: true"), "must be 301 or 302, not True", HOME),
    (spec("target: t, deletionPolicy: Keep"), "must be 'Delete' or 'Retain', not 'Keep'", HOME),
    (spec("target: t, deletionPolicy: "), "spec.deletionPolicy is empty", HOME),
    # annotations of this group
    (annotated("later", "'x'"), "'shortlink.platform/later' is not known to this version", HOME),
    (annotated("later", "'x'"), "it knows shortlink.platform/take-over and short", HOME),
    (annotated("take-over", "'EU West'"), "is 'EU West'; make it the name of the cluster", HOME),
    (annotated("take-over", "''"), "is ''; make it the name of the cluster", HOME),
    (annotated("allow-delete", "'yes'"), "is 'yes'; make it \"true\", or remove it", HOME),
    (annotated("allow-delete", "'true or so'"), "is 'true or so'; make it", HOME),
    (annotated("allow-delete", "true"), "reads as the boolean true in YAML; put the", HOME),
    # times
    (spec("target: t, expiresAt: soon"), "'soon' is not an RFC 3339 time", HOME),
    (spec("target: t, expiresAt: soon"), "or write never", HOME),
    (spec("target: t, expiresAt: Never"), "'Never' is not an RFC 3339 time", HOME),
    (spec("target: t, expiresAt: ''"), "spec.expiresAt '' is not", HOME),
    (spec("target: t, expiresAt: 2027-01-15"), "with an offset", HOME),
    (spec("target: t, expiresAt: 2027-02-30T00:00:00Z"), "is no real time", HOME),
    # fields that are not there
    (spec("target: t, redirecttype: 301"), "did you mean redirectType?", HOME),
    (spec("target: t, expires_at: never"), "did you mean expiresAt?", HOME),
    (spec("target: t, owner: me"), "the fields of spec are target, code, expiresAt", HOME),
    (spec("target: t, 1: me"), "Keys should be strings", HOME),
    (spec('target: t, "\\e[31m": me'), r"spec.'\x1b[31m' is not a field", HOME),
    (spec("target: t") + "sepc: {}\n", "sepc is not a field; did you mean spec?", HOME),
    (spec("a: 1, b: 2, c: 3, d: 4"), "; and 2 more", HOME),
    # the frame
    (HEAD, "spec is missing", HOME),
    (HEAD + "spec:\n", "spec is empty", HOME),
    (HEAD + "spec: [a]\n", "spec must be a mapping, not a list", HOME),
    (spec("target: t").replace("v1alpha1", "v1"), "apiVersion must be 'shortlink.platform/v", HOME),
    (spec("target: t").replace("kind: S", "kind: s"), "kind must be 'ShortLink'", HOME),
    (spec("target: t").replace("kind: ShortLink\n", ""), "kind is missing", HOME),
    ("metadata: {name: home}\n", "has no apiVersion and no kind; begin it with", HOME),
    ("just words\n", "is text, not an object; begin it with apiVersion:", None),
    ("- a\n", "is a list, not an object", None),
    ("5\n", "is the number, not an object", None),
    # names
    (spec("target: t").replace("home", "Home"), "metadata.name 'Home' must be at most 253", None),
    (spec("target: t").replace("home", "-home"), "metadata.name '-home'", None),
    (spec("target: t").replace("home", "a..b"), "metadata.name 'a..b'", None),
    (spec("target: t").replace("home", "a" * 254), "metadata.name 'aaa", None),
    (spec("target: t").replace("home", "''"), "metadata.name ''", None),
    (spec("target: t").replace("home", "2027"), "metadata.name reads as the number 2027", None),
    (spec("target: t").replace("home", "on"), "metadata.name reads as the boolean true", None),
    (spec("target: t").replace("name: home", ""), "metadata.name is missing", None),
    (spec("target: t").replace("{name: home}", ""), "metadata is empty", None),
    (spec("target: t").replace("home", "home, namespace: a.b"), "metadata.namespace 'a.b'", None),
    (
        spec("target: t").replace("home", f"home, namespace: {'a' * 64}"),
        "metadata.namespace 'aaa",
        None,
    ),
]


@pytest.mark.parametrize(("text", "says", "keys"), BAD)
def test_a_bad_manifest_is_told_what_and_where(
    text: str, says: str, keys: frozenset[str] | None
) -> None:
    got = read(text, "links/a.yaml, document 2")
    assert isinstance(got, Unreadable)
    assert says in got.message
    assert got.where == "links/a.yaml, document 2"
    assert got.keys == keys
    assert got.message.isprintable()
    assert len(got.message) < 500


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"apiVersion": "v1", "kind": "ConfigMap"}, "ConfigMap"),
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, "Deployment"),
        ({"apiVersion": "v1", "kind": "ShortLink"}, None),
        ({"apiVersion": "shortlink.platform/v1alpha1", "kind": "ShortLnk"}, None),
        ({"apiVersion": "shortlink.platform/v9", "kind": "ShortLink"}, None),
        ({"kind": "ConfigMap"}, None),
        ({"apiVersion": "v1", "kind": ["ConfigMap"]}, None),
        ({}, None),
        ("text", None),
        (None, None),
    ],
)
def test_only_an_object_that_is_clearly_for_others_is_foreign(
    document: Any, kind: str | None
) -> None:
    assert foreign(document) == kind


@pytest.mark.parametrize(
    ("status", "home"),
    [(None, ""), ({}, ""), ({"home": "away"}, "away"), ({"home": 1}, ""), ("odd", "")],
)
def test_T2_the_home_that_a_status_last_named_is_known(status: Any, home: str) -> None:
    document = {
        "apiVersion": "shortlink.platform/v1alpha1",
        "kind": "ShortLink",
        "metadata": {"name": "promo"},
        "spec": {"target": "https://example.com/"},
        "status": status,
    }
    got = parse_manifest(document, "a.yaml")
    assert isinstance(got, ShortLink)
    assert got.home == home
