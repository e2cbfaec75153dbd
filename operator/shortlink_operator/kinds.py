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

FINALIZER: Final = f"{GROUP}/link"
TAKE_OVER: Final = f"{GROUP}/take-over"
"""Names the cluster whose link this object is to take: the one that is home now."""
ALLOW_DELETE: Final = f"{GROUP}/allow-delete"
"""Lets the object's deletion go that the mass-deletion brake holds."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACE = re.compile(_LABEL)
_MAX_NAME: Final = 253
_MAX_NAMESPACE: Final = 63
_ANNOTATIONS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    TAKE_OVER: (re.compile(r"[a-z0-9][a-z0-9-]{0,62}"), "the name of the cluster in status.home"),
    ALLOW_DELETE: (re.compile("true"), '"true"'),
}
"""Every annotation of this group, with the values that it can have, also in words."""
_ERRORS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class ShortLink:
    """What an object asks for. `key` is `namespace/name`; `expires_at` is milliseconds, None
    for never, or KEEP for the policy's default; `code` is the alias, None to have one drawn.
    `retain`: its link outlives it. `uid` tells it from others of its name, empty where there is
    no API server. `home` is the cluster that its status last named, or empty; `take_over` names
    the cluster whose link this one is to take, or is None.
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
    retain: bool = False
    uid: str = ""
    take_over: str | None = None
    home: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A manifest that can't be read: where it is, what is wrong and what to do.

    `keys`: the objects that it holds, or may hold; None when it may hold any.
    """

    where: str
    message: str
    keys: frozenset[str] | None


def not_null(value: object) -> object:
    """Let an optional field be absent, but not empty. Raises PydanticCustomError."""
    if value is None:
        raise PydanticCustomError("null", "null")
    return value


_Given = BeforeValidator(not_null)


class Model(BaseModel):
    """What people write under `spec`: exact types, and no field that isn't there."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class Metadata(BaseModel):
    """The object's names. What an API server adds (uid, managedFields, ...) is ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str
    namespace: str = "default"
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    uid: str = ""


class Spec(Model):
    """What the link is to be."""

    target: str = Field(
        description="Where the link leads: an absolute http or https URL, not one of this"
        " platform's own hosts."
    )
    code: Annotated[str | None, _Given] = Field(
        None,
        description="The alias, 3 to 20 of 0-9, A-Z, a-z, where case matters; without it a code"
        " is drawn. It can't be changed, added or removed later.",
    )
    expires_at: Annotated[str | None, _Given] = Field(
        None,
        description="When the link ends: an RFC 3339 time with an offset, as 2027-01-31T12:00:00Z,"
        ' or "never". By default the lifetime of the LinkPolicy counts from its creation; a link'
        " with redirectType 301 never ends.",
    )
    redirect_type: Literal[301, 302] = Field(
        302,
        description="The status that visitors get. 301 says that the move is meant to last: only"
        " for a link that never expires.",
    )
    tags: list[str] = Field([], description="Labels of the link, for the owner's own use.")
    metadata: dict[str, str] = Field(
        {}, description="Names and values about the link, for the owner's own use."
    )
    take_back: bool = Field(
        False,
        description="Take an alias that was this namespace's before and is free again, although"
        " its old short links come alive with it.",
    )
    deletion_policy: Literal["Delete", "Retain"] = Field(
        "Delete",
        description="What happens to the link when this object is deleted. Delete: it ends, and"
        " is restored when the object is made again within the grace. Retain: it goes on serving,"
        " and the object, made again, takes it up.",
    )


class Manifest(Model):
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
        return Unreadable(where, told(error, Spec), keys)
    if key is None:
        return Unreadable(where, _bad_name(manifest.metadata), None)
    spec, annotations = manifest.spec, manifest.metadata.annotations or {}
    if wrong := wrong_annotation(annotations):
        return Unreadable(where, wrong, keys)
    expires_at = _expiry(spec.expires_at)
    if isinstance(expires_at, Refusal):
        return Unreadable(where, f"{expires_at.message}; or write {NEVER}", keys)
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
        retain=spec.deletion_policy == "Retain",
        uid=manifest.metadata.uid,
        take_over=annotations.get(TAKE_OVER),
        home=_home(manifest.status),
    )


def _home(status: object) -> str:
    home = status.get("home") if isinstance(status, Mapping) else None
    return home if isinstance(home, str) else ""


def wrong_annotation(annotations: Mapping[str, str]) -> str:
    """What is wrong with the first annotation of this group that can't be followed, or nothing.

    Others' annotations are theirs. An unknown one of ours asks for something that this version
    can't do, perhaps for a link's safety: so it is never passed over.
    """
    for name, value in sorted(annotations.items()):
        if not name.startswith(f"{GROUP}/"):
            continue
        where = f"metadata.annotations: {_shown(name)}"
        if name not in _ANNOTATIONS:
            known = " and ".join(_ANNOTATIONS)
            return f"{where} is not known to this version; remove it, it knows {known}"
        form, words = _ANNOTATIONS[name]
        if not form.fullmatch(value):
            return f"{where} is {_shown(value)}; make it {words}, or remove it"
    return ""


def told(error: ValidationError, spec: type[Model]) -> str:
    """The first of what is wrong with a manifest of which `spec` is the model, in one line."""
    fields = [field.alias or name for name, field in spec.model_fields.items()]
    lines = [_told(entry, fields) for entry in error.errors(include_url=False)]
    more = f"; and {len(lines) - _ERRORS_SHOWN} more" if len(lines) > _ERRORS_SHOWN else ""
    return "; ".join(lines[:_ERRORS_SHOWN]) + more


_BEGIN: Final = f"begin it with apiVersion: {API_VERSION} and kind: {KIND}"
_FRAME: Final = [field.alias or name for name, field in Manifest.model_fields.items()]


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


def _told(entry: Mapping[str, Any], fields: list[str]) -> str:
    loc, kind, value = entry["loc"], entry["type"], entry["input"]
    path = _path(loc)
    if kind == "missing":
        return f"{path} is missing; add it"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(loc[-1]), [*_FRAME, *fields], 1)
        hint = f"did you mean {near[0]}?" if near else f"the fields of spec are {', '.join(fields)}"
        return f"{path} is not a field; {hint}"
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
