"""The documents in a manifest file: YAML as Kubernetes reads it, or JSON, and nothing odd."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

MAX_ALIASES: Final = 20
"""YAML aliases in one file: with so few, nothing that they repeat grows without bounds."""


@dataclass(frozen=True, slots=True)
class BadDocument:
    """In place of a document that can't be read: why, and what to do."""

    message: str


def documents(text: str, *, as_json: bool) -> Iterator[object]:
    """The documents of a file in their order, those that are empty as None.

    After a fault in the syntax nothing more is found, for documents can't be told apart.
    """
    if as_json:
        yield _json(text)
    elif _has_too_many_aliases(text):
        yield BadDocument(
            f"has more than {MAX_ALIASES} YAML aliases (*name), which could repeat their"
            " anchors without end; write the values out"
        )
    else:
        yield from _yaml(text)


class _Loader(yaml.CSafeLoader):
    """Times stay text, and a name comes once in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name, times in names.items():
            if times > 1:
                raise yaml.constructor.ConstructorError(
                    problem=f"{name[:80]!r} comes {times} times in one mapping; keep one of them",
                    problem_mark=node.start_mark,
                )
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _yaml(text: str) -> Iterator[object]:
    try:
        for node in yaml.compose_all(text, _Loader):
            yield _constructed(node)
    except yaml.YAMLError as error:
        yield _unreadable(error)


def _constructed(node: yaml.Node) -> object:
    try:
        return _Loader("").construct_document(node)
    except yaml.YAMLError as error:
        return _unreadable(error)
    except Exception as error:  # tags such as `!!int x` make constructors raise anything
        return BadDocument(f"is not readable YAML: {error}")


def _has_too_many_aliases(text: str) -> bool:
    aliases = 0
    try:
        for event in yaml.parse(text, _Loader):
            aliases += isinstance(event, yaml.AliasEvent)
            if aliases > MAX_ALIASES:
                return True
    except yaml.YAMLError:
        pass  # told when the documents before the fault have been read
    return False


def _unreadable(error: yaml.YAMLError) -> BadDocument:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return BadDocument(f"is not readable YAML: {place}{problem}")


def _json(text: str) -> object:
    try:
        value: object = json.loads(text, object_pairs_hook=_object) if text.strip() else None
        json.dumps(value, ensure_ascii=False).encode()  # fails on lone surrogates
    except RecursionError:
        return BadDocument("is not readable JSON: it is nested too deeply")
    except ValueError as error:
        return BadDocument(f"is not readable JSON: {error}")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice, times = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice[:80]!r} comes {times} times in one mapping; keep one of them")
    return value
