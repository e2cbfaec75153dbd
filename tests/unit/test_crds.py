"""The CRDs as they are written, and that they refuse nothing that the platform takes (T2)."""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from unicodedata import category

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shortlink.links.instants import parse_instant
from shortlink.links.lifecycle import decide
from shortlink.links.names import is_code
from shortlink.links.policy import Policy, check_policy
from shortlink.links.refusal import Refusal
from shortlink.links.targets import parse_target
from shortlink_operator import crds
from shortlink_operator.kinds import Model, ShortLink, parse_manifest
from shortlink_operator.plan import creation
from shortlink_operator.policies import parse_policy
from tests.bad_objects import BAD_LINKS, BAD_POLICIES, UNKNOWN_FIELDS, a_link, a_policy
from tests.samples import NOW
from tests.wpt_cases import cases


def _as_python(form: str) -> str:
    """The form of Go's regular expressions as Python has it."""
    return re.sub(r"\\x\{(\w{4})\}", r"\\u\1", form).removesuffix("$") + (
        r"\Z" if form.endswith("$") else ""
    )


def _matches(form: str, text: str) -> bool:
    return re.search(_as_python(form), text, re.ASCII) is not None


@pytest.mark.parametrize("name", crds.FILES)
def test_the_files_are_as_the_models_write_them(name: str) -> None:
    there = (crds.FOLDER / name).read_text(encoding="utf-8")
    assert there == crds.written(crds.FILES[name]()), "run `python -m shortlink_operator.crds`"


def test_no_other_file_is_applied_with_them() -> None:
    assert {path.name for path in crds.FOLDER.iterdir()} == set(crds.FILES)


def _schemas(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _schemas(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from _schemas(schema[name], f"{path}[]")


@pytest.mark.parametrize("name", crds.FILES)
def test_every_field_is_described_and_what_people_write_is_bounded(name: str) -> None:
    version = yaml.safe_load((crds.FOLDER / name).read_text())["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    for part in ("spec", "status"):
        for path, schema in _schemas(properties[part], part):
            assert not any("preserve-unknown" in key for key in schema), path
            assert path.endswith("]") or schema["description"].endswith("."), path
            if part == "spec":
                bound = {"string": "maxLength", "array": "maxItems"}.get(schema["type"])
                assert bound is None or bound in schema or "enum" in schema, path
            for rule in schema.get("x-kubernetes-validations", ()):
                assert rule["message"], path


def test_a_rule_for_a_field_that_is_not_there_is_a_mistake() -> None:
    class Spec(Model):
        target: str

    assert crds.schema_of(Spec, {"target": {"maxLength": 5}})["properties"]["target"] == {
        "type": "string",
        "maxLength": 5,
    }
    with pytest.raises(KeyError, match="targt"):
        crds.schema_of(Spec, {"targt": {"maxLength": 5}})


def _refused(document: dict[str, Any]) -> bool:
    wanted = parse_manifest(document, "here")
    if not isinstance(wanted, ShortLink):
        return True
    return isinstance(decide(None, creation(wanted, wanted.code or "", ""), Policy(), NOW), Refusal)


@pytest.mark.parametrize("name", BAD_LINKS)
def test_T2_what_an_api_server_refuses_the_platform_refuses_at_every_door(name: str) -> None:
    assert _refused(BAD_LINKS[name].document)


def test_T2_so_it_does_fields_that_are_not_there() -> None:
    assert all(_refused(document) for document in UNKNOWN_FIELDS.values())
    assert not _refused(a_link())


def test_what_an_api_server_refuses_in_a_policy_is_wrong_here_too() -> None:
    taken = {
        name
        for name, bad in BAD_POLICIES.items()
        if not isinstance(parse_policy(bad.document), Refusal)
    }
    assert taken == {"another name", "an own host twice"}  # those do no harm here
    assert not isinstance(parse_policy(a_policy()), Refusal)


def test_the_tables_are_as_long_as_was_promised() -> None:
    assert len(BAD_LINKS) + len(BAD_POLICIES) >= 40


@pytest.mark.parametrize("case", cases(), ids=lambda case: ascii(case.input))
def test_S2_no_real_target_that_the_platform_takes_is_refused(case: Any) -> None:
    fits = _matches(crds.TARGET_FORM, case.input) and not _matches(crds.CONTROL, case.input)
    assert fits or isinstance(parse_target(case.input, frozenset()), Refusal)


@given(st.from_regex(r"[ \t]{0,2}[hH][tT][tT][pP][sS]?:?[/\\]{0,3}[a-z.]{0,5}", fullmatch=True))
def test_S2_nor_any_made_up_one(text: str) -> None:
    fits = _matches(crds.TARGET_FORM, text) and not _matches(crds.CONTROL, text)
    assert fits or isinstance(parse_target(text, frozenset()), Refusal)


@given(st.text(max_size=22) | st.from_regex("[0-9A-Za-z\n]{2,21}", fullmatch=True))
def test_T2_codes_have_one_form(text: str) -> None:
    assert _matches(crds.CODE_FORM, text) == is_code(text)


@given(
    st.from_regex(
        r"[0-9]{4}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{0,10})?"
        r"([Zz]|[+-][0-2][0-9]:[0-6][0-9])?",
        fullmatch=True,
    )
)
def test_T2_no_time_is_refused_that_the_platform_takes(text: str) -> None:
    taken = not isinstance(parse_instant(text), Refusal)
    assert _matches(crds.TIME_FORM, text) or not taken


def test_T2_no_character_is_refused_in_a_label_that_the_platform_takes() -> None:
    """By its category, for Python can't read the form. Go's have no unassigned characters."""
    assert crds.PRINTABLE == r"^([^\p{C}\p{Z}]| )+$"
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        refused = character != " " and category(character) in {
            "Cc",
            "Cf",
            "Co",
            "Cs",
            "Zl",
            "Zp",
            "Zs",
        }
        assert not (refused and character.isprintable()), hex(number)


@given(st.from_regex(r"[a-zA-Z0-9.:/@?#\[\]\\ -]{1,12}", fullmatch=True))
def test_P2_no_own_host_is_refused_that_the_platform_takes(host: str) -> None:
    taken = check_policy(Policy(own_hosts=frozenset({host})), production=True) is None
    assert _matches(crds.HOST_FORM, host) or not taken
