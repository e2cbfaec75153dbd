"""Objects that an API server refuses by the CRDs alone, each with what it says of them."""

import json
from dataclasses import dataclass
from typing import Any

TARGET = "https://example.com/"

BEGIN = "begin it with https:// or http:// and its host"
CONTROL = "it has a control character, as a tab or a line's end: remove it or percent-encode it"
CODE = "write 3 to 20 characters of 0-9, A-Z, a-z"
RESERVED = "it is reserved for the platform: choose another word"
FIXED = "it can't be changed, added or removed: set it back, or delete the object and make another"
TIME = (
    "write an RFC 3339 time with an offset, as 2027-01-31T12:00:00Z or 2027-01-31T12:00:00+05:30,"
    " or never"
)
NO_END = "a permanent (301) link can't have an expiry: make redirectType 302, or expiresAt never"
PRINTABLE = "printable characters, with no space but the plain one"
DURATION = "write a whole number and d, h, m or s, as 30d"
HOST = "write the host alone, in lower case, as s.example or s.example:8443"
LONG = "Too long: may not be more than"


@dataclass(frozen=True, slots=True)
class Bad:
    """A document, and all that its refusal says after `Kind "name" is invalid: `."""

    document: dict[str, Any]
    says: str


def a_link(**spec: Any) -> dict[str, Any]:
    """A ShortLink that has a good target, where `spec` has none."""
    return {
        "apiVersion": "shortlink.platform/v1alpha1",
        "kind": "ShortLink",
        "metadata": {"name": "promo", "namespace": "default"},
        "spec": {"target": TARGET, **spec},
    }


def a_policy(**spec: Any) -> dict[str, Any]:
    """The LinkPolicy."""
    return {
        "apiVersion": "shortlink.platform/v1alpha1",
        "kind": "LinkPolicy",
        "metadata": {"name": "default"},
        "spec": spec,
    }


def _link(says: str, **spec: Any) -> Bad:
    return Bad(a_link(**spec), says)


def _value(says: str, **spec: Any) -> Bad:
    """A bad value, the first in `spec`."""
    ((field, value),) = spec.items()
    return Bad(a_link(**spec), _invalid(field, value, says))


def _kind(field: str, value: Any, wanted: str, given: str) -> Bad:
    return Bad(a_link(**{field: value}), _other_kind(field, wanted, given))


def _invalid(field: str, value: Any, says: str) -> str:
    # The API server shows text as Go quotes it, which for most is as JSON does.
    shown = json.dumps(value, ensure_ascii=False)
    for rare in "\u00a0\u2028\u202e":
        shown = shown.replace(rare, f"\\u{ord(rare):04x}")
    return f"spec.{field}: Invalid value: {shown}: {says}"


def _other_kind(field: str, wanted: str, given: str) -> str:
    return (
        f'spec.{field}: Invalid value: "{given}": spec.{field} in body must be of type {wanted}:'
        f' "{given}"'
    )


def _policy(says: str, **spec: Any) -> Bad:
    return Bad(a_policy(**spec), says)


def _rule(says: str, **spec: Any) -> Bad:
    ((field, value),) = spec.items()
    return Bad(a_policy(**spec), _invalid(field, value, says))


BAD_LINKS = {
    "no spec": Bad({k: v for k, v in a_link().items() if k != "spec"}, "spec: Required value"),
    "no target": Bad(a_link() | {"spec": {"code": "promo"}}, "spec.target: Required value"),
    "a target that is a number": _kind("target", 7, "string", "integer"),
    "an empty target": _value(BEGIN, target=""),
    "a target of another scheme": _value(BEGIN, target="ftp://example.com/"),
    "a script as target": _value(BEGIN, target="javascript:alert(1)"),
    "a host as target": _value(BEGIN, target="example.com/a"),
    "a target without a scheme": _value(BEGIN, target="//example.com/a"),
    "a tab in the target": _value(CONTROL, target="https://example.com/\tb"),
    "a line's end after the target": _value(CONTROL, target=f"{TARGET}\n"),
    "a line separator in the target": _value(CONTROL, target=f"{TARGET}\u2028b"),
    "a target too long": _link(f"spec.target: {LONG} 2048 bytes", target=TARGET + "x" * 2029),
    "a short code": _value(CODE, code="ab"),
    "a long code": _link(f"spec.code: {LONG} 20 bytes", code="x" * 21),
    "an empty code": _value(CODE, code=""),
    "a code that is a number": _kind("code", 1234567, "string", "integer"),
    "a code that is true": _kind("code", True, "string", "boolean"),
    "a code with a hyphen": _value(CODE, code="spring-sale"),
    "a code beyond ASCII": _value(CODE, code="früh"),
    "a code with a line's end": _value(CODE, code="promo\n"),
    "a reserved code": _value(RESERVED, code="metrics"),
    "a reserved code in another case": _value(RESERVED, code="ApI"),
    "an expiry in words": _value(TIME, expiresAt="tomorrow"),
    "an empty expiry": _value(TIME, expiresAt=""),
    "never in another case": _value(TIME, expiresAt="Never"),
    "a date as expiry": _value(TIME, expiresAt="2035-01-15"),
    "an expiry without offset": _value(TIME, expiresAt="2035-01-15T08:00:00"),
    "an expiry at 25 o'clock": _value(TIME, expiresAt="2035-01-15T25:00:00Z"),
    "an expiry in a leap second": _value(TIME, expiresAt="2035-06-30T23:59:60Z"),
    "an expiry too long": _link(
        f"spec.expiresAt: {LONG} 40 bytes", expiresAt=f"2035-01-15T08:00:00.{'0' * 30}Z"
    ),
    "an expiry that is a number": _kind("expiresAt", 2_000_000_000, "string", "integer"),
    "another redirect": _link(
        'spec.redirectType: Unsupported value: 307: supported values: "301", "302"',
        redirectType=307,
    ),
    "a redirect in quotes": _link(
        f"{_other_kind('redirectType', 'integer', 'string')}, "
        'spec.redirectType: Unsupported value: "302": supported values: "301", "302"',
        redirectType="302",
    ),
    "a permanent link with an end": _link(
        f"spec.redirectType: Invalid value: {NO_END}",
        redirectType=301,
        expiresAt="2035-01-15T08:00:00Z",
    ),
    "tags in one text": _kind("tags", "a, b", "array", "string"),
    "too many tags": _link(
        "spec.tags: Too many: 21: must have at most 20 items", tags=[f"t{i}" for i in range(21)]
    ),
    "an empty tag": _link(_invalid("tags[1]", "", f"write 1 to 64 {PRINTABLE}"), tags=["a", ""]),
    "a tag too long": _link(f"spec.tags[0]: {LONG} 64 bytes", tags=["x" * 65]),
    "a tag of two lines": _link(
        _invalid("tags[0]", "a\nb", f"write 1 to 64 {PRINTABLE}"), tags=["a\nb"]
    ),
    "a tag with a space that does not break": _link(
        _invalid("tags[0]", "a\u00a0b", f"write 1 to 64 {PRINTABLE}"), tags=["a\u00a0b"]
    ),
    "a tag that turns the text around": _link(
        _invalid("tags[0]", "a\u202eb", f"write 1 to 64 {PRINTABLE}"), tags=["a\u202eb"]
    ),
    "a tag that is a number": _link(_other_kind("tags[0]", "string", "integer"), tags=[2035]),
    "metadata in a list": _kind("metadata", ["a"], "object", "array"),
    "too many metadata": _link(
        "spec.metadata: Too many: 21: must have at most 20 items",
        metadata={f"n{i}": "x" for i in range(21)},
    ),
    "metadata without a name": _link(
        f"spec.metadata: Invalid value: each name must be 1 to 64 {PRINTABLE}", metadata={"": "x"}
    ),
    "metadata with a name too long": _link(
        f"spec.metadata: Invalid value: each name must be 1 to 64 {PRINTABLE}",
        metadata={"n" * 65: "x"},
    ),
    "metadata without a value": _link(
        _invalid("metadata[a]", "", f"write 1 to 256 {PRINTABLE}"), metadata={"a": ""}
    ),
    "metadata with a value too long": _link(
        f"spec.metadata.a: {LONG} 256 bytes", metadata={"a": "x" * 257}
    ),
    "metadata of two lines": _link(
        _invalid("metadata[a]", "b\nc", f"write 1 to 256 {PRINTABLE}"), metadata={"a": "b\nc"}
    ),
    "metadata that is a number": _link(
        _other_kind("metadata.a", "string", "integer"), metadata={"a": 1}
    ),
    "another deletionPolicy": _link(
        'spec.deletionPolicy: Unsupported value: "Keep": supported values: "Delete", "Retain"',
        deletionPolicy="Keep",
    ),
    "takeBack in quotes": _kind("takeBack", "yes", "boolean", "string"),
    "two faults": _link(
        f"{_invalid('target', 'ftp://example.com/', BEGIN)}, {_invalid('code', 'ab', CODE)}",
        target="ftp://example.com/",
        code="ab",
    ),
}

UNKNOWN_FIELDS = {
    "spec.expires_at": a_link(expires_at="never"),
    "spec.owner": a_link(owner="me"),
    "sepc": a_link() | {"sepc": {}},
}
"""Documents by a field that there isn't. kubectl has them refused (fieldValidation=Strict)."""

BAD_CHANGES = {
    "another code": ({"code": "promo"}, {"code": "other"}),
    "another case": ({"code": "promo"}, {"code": "Promo"}),
    "a code added": ({}, {"code": "promo"}),
    "a code removed": ({"code": "promo"}, {"code": None}),
}
"""What spec had, and what a merge patch wants; each is told FIXED."""

BAD_POLICIES = {
    "another name": Bad(
        a_policy() | {"metadata": {"name": "other"}},
        "<nil>: Invalid value: a cluster has one LinkPolicy: name it default",
    ),
    "a duration in words": _rule(DURATION, grace="30 days"),
    "a duration in years": _rule(DURATION, defaultLifetime="5y"),
    "a duration below nothing": _rule(DURATION, quarantine="-1d"),
    "a duration of parts": _rule(DURATION, expiringAhead="1d12h"),
    "a duration with a fraction": _rule(DURATION, expiringAhead="1.5h"),
    "a duration that is a number": _policy(_other_kind("grace", "string", "integer"), grace=30),
    "a grace under a day": _rule("make it 1d to 36500d", grace="23h"),
    "no lifetime": _rule("make it 1s to 36500d", defaultLifetime="0s"),
    "more than 100 years": _rule("make it 1s to 36500d", defaultLifetime="36501d"),
    "more than there are": _rule("make it 0d to 36500d", quarantine="9999999999d"),
    "no window": _policy(
        _invalid("brake.window", "0m", "make it 1s to 36500d"), brake={"window": "0m"}
    ),
    "a share over all": _policy(
        _invalid(
            "brake.percent", 101, "spec.brake.percent in body should be less than or equal to 100"
        ),
        brake={"percent": 101},
    ),
    "a share in words": _policy(
        _other_kind("brake.percent", "integer", "string"), brake={"percent": "20%"}
    ),
    "links below nothing": _policy(
        _invalid(
            "brake.links", -1, "spec.brake.links in body should be greater than or equal to 0"
        ),
        brake={"links": -1},
    ),
    "no links at all": _rule(
        "spec.linksPerNamespace in body should be greater than or equal to 1", linksPerNamespace=0
    ),
    "an own host as URL": _policy(
        _invalid("ownHosts[0]", "https://s.example", HOST), ownHosts=["https://s.example"]
    ),
    "an own host in capitals": _policy(
        _invalid("ownHosts[0]", "S.example", HOST), ownHosts=["S.example"]
    ),
    "an own host that is empty": _policy(_invalid("ownHosts[0]", "", HOST), ownHosts=[""]),
    "an own host twice": _policy(
        'spec.ownHosts[1]: Duplicate value: "s.example"', ownHosts=["s.example", "s.example"]
    ),
    "reclaim in quotes": _policy(_other_kind("reclaim", "boolean", "string"), reclaim="no"),
}
