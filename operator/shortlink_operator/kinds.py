"""The ShortLink kind as typed models, and reading one manifest into the domain's words (T2)."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from shortlink.links.instants import parse_instant
from shortlink.links.lifecycle import KEEP, Keep
from shortlink.links.model import as_metadata
from shortlink.links.refusal import Refusal

GROUP: Final = "shortlink.platform"
API_VERSION: Final = f"{GROUP}/v1alpha1"
KIND: Final = "ShortLink"
NEVER: Final = "never"

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACE = re.compile(_LABEL)
_MAX_NAME: Final = 253
_MAX_NAMESPACE: Final = 63
_ERRORS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class ShortLink:
    """What an object asks for. `key` is `namespace/name`; `expires_at` is milliseconds, None
    for never, or KEEP for the policy's default; `code` is the alias, None to have one drawn.
    """

    key: str
    namespace: str
    name: str
    target: str
    code: str | None
    expires_at: int | Keep | None
    permanent: bool
    tags: tuple[str, ...]
    metadata: tuple[tuple[str, str], ...]
    take_back: bool


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A manifest that can't be read: where it is, what is wrong and what to do.

    `keys`: the objects that it holds, or may hold; None when it may hold any.
    """

    where: str
    message: str
    keys: frozenset[str] | None


def _not_null(value: object) -> object:
    if value is None:
        raise PydanticCustomError("null", "null")
    return value


_Given = BeforeValidator(_not_null)  # an optional field may be absent, but not empty


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class Metadata(BaseModel):
    """The object's names. What an API server adds (uid, managedFields, ...) is ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str
    namespace: str = "default"
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Spec(_Model):
    """What the link is to be. Values are checked further by the domain, for all doors alike."""

    target: str = Field(description="where the link leads: an absolute http or https URL")
    code: Annotated[str | None, _Given] = Field(
        None, description="the alias, 3 to 20 of 0-9, A-Z, a-z; without it a code is drawn"
    )
    expires_at: Annotated[str | None, _Given] = Field(
        None, description='RFC 3339 with an offset, or "never"; by default the policy\'s lifetime'
    )
    redirect_type: Literal[301, 302] = Field(
        302, description="301 only for a link that never expires"
    )
    tags: list[str] = Field([], description="for the owner's own use")
    metadata: dict[str, str] = Field({}, description="for the owner's own use")
    take_back: bool = Field(False, description="take a freed alias that was the owner's before")


class Manifest(_Model):
    """A whole ShortLink object."""

    api_version: Literal["shortlink.platform/v1alpha1"]
    kind: Literal["ShortLink"]
    metadata: Metadata
    spec: Spec
    status: Any = None


def foreign(document: object) -> str | None:
    """The kind of an object that is meant for somebody else, or None."""
    if not isinstance(document, Mapping):
        return None
    version, kind = document.get("apiVersion"), document.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str) or kind == KIND:
        return None
    return None if version.partition("/")[0] == GROUP else kind


def parse_manifest(document: object, where: str) -> ShortLink | Unreadable:
    """The object in `document`, as loaded from YAML or JSON, which is at `where` for people."""
    key = _key(document)
    keys = None if key is None else frozenset({key})
    if not isinstance(document, dict):
        return Unreadable(where, f"is {_called(document)}, not an object; {_BEGIN}", keys)
    if "kind" not in document and "apiVersion" not in document:
        return Unreadable(where, f"has no apiVersion and no kind; {_BEGIN}", keys)
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        told = [_told(entry) for entry in error.errors(include_url=False)]
        more = f"; and {len(told) - _ERRORS_SHOWN} more" if len(told) > _ERRORS_SHOWN else ""
        return Unreadable(where, "; ".join(told[:_ERRORS_SHOWN]) + more, keys)
    if key is None:
        return Unreadable(where, _bad_name(manifest.metadata), None)
    spec = manifest.spec
    expires_at = _expiry(spec.expires_at)
    if isinstance(expires_at, Refusal):
        return Unreadable(where, f"{expires_at.message}, or as {NEVER}", keys)
    return ShortLink(
        key=key,
        namespace=manifest.metadata.namespace,
        name=manifest.metadata.name,
        target=spec.target,
        code=spec.code,
        expires_at=expires_at,
        permanent=spec.redirect_type == 301,
        tags=tuple(spec.tags),
        metadata=as_metadata(spec.metadata),
        take_back=spec.take_back,
    )


_BEGIN: Final = f"begin it with apiVersion: {API_VERSION} and kind: {KIND}"
_FIELDS: Final = [
    field.alias or name for model in (Manifest, Spec) for name, field in model.model_fields.items()
]


def _key(document: object) -> str | None:
    """`namespace/name` of an object that may be wrong in any other way."""
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    if not isinstance(metadata, Mapping):
        return None
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    return f"{namespace}/{name}" if _is_name(name) and _is_namespace(namespace) else None


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= _MAX_NAME and bool(_NAME.fullmatch(name))


def _is_namespace(name: object) -> bool:
    return (
        isinstance(name, str) and len(name) <= _MAX_NAMESPACE and bool(_NAMESPACE.fullmatch(name))
    )


def _bad_name(metadata: Metadata) -> str:
    ends = "and begin and end with a letter or digit (DNS-1123)"
    if not _is_name(metadata.name):
        return (
            f"metadata.name {metadata.name[:80]!r} must be at most {_MAX_NAME} of"
            f" a-z, 0-9, - and ., {ends}"
        )
    return (
        f"metadata.namespace {metadata.namespace[:80]!r} must be at most {_MAX_NAMESPACE} of"
        f" a-z, 0-9 and -, {ends}"
    )


def _expiry(text: str | None) -> int | Keep | Refusal | None:
    if text is None:
        return KEEP
    return None if text == NEVER else parse_instant(text, "spec.expiresAt")


def _told(entry: Mapping[str, Any]) -> str:
    loc, kind, value = entry["loc"], entry["type"], entry["input"]
    path = _path(loc)
    if kind == "missing":
        return f"{path} is missing; add it"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(loc[-1]), _FIELDS, 1)
        return f"{path} is not a field" + (
            f"; did you mean {near[0]}?" if near else f"; the fields of spec are {_SPEC}"
        )
    if value is None:
        return f"{path} is empty; give it a value or remove the line"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return (
            f"{path} reads as {_called(value)} {_shown(value).lower()} in YAML;"
            " put the text in quotes"
        )
    if kind == "string_type":
        return f"{path} must be text, not {_called(value)}"
    if kind == "bool_type":
        return f"{path} must be true or false without quotes, not {_shown(value)}"
    if kind == "list_type":
        return f"{path} must be a list, not {_called(value)}"
    if kind in ("dict_type", "model_type"):
        return f"{path} must be a mapping, not {_called(value)}"
    if kind == "literal_error":
        return f"{path} must be {entry['ctx']['expected']}, not {_shown(value)}"
    return f"{path}: {entry['msg']}"


_SPEC: Final = ", ".join(field.alias or name for name, field in Spec.model_fields.items())


def _path(loc: tuple[str | int, ...]) -> str:
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = part[:80] if part.isprintable() else repr(part[:80])
            path += f".{name}" if path else name
    return path


def _called(value: object) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "the boolean"
        case int() | float():
            return "the number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return f"a {type(value).__name__}"


_BITS: Final = 256
"""Of the longest number that is shown: Python refuses to write very long ones."""


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _BITS:
        return "a number too long to show"
    simple = isinstance(value, str | bool | int | float)
    return repr(value)[:80] if simple else _called(value)
