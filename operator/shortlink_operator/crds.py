"""The kinds as an API server has them: CustomResourceDefinitions, made from the typed models.

`python -m shortlink_operator.crds` writes them to operator/crds/. Their rules refuse only what
the domain refuses at every door, and of that what needs neither a clock, nor other objects, nor
the URL Standard: so that `kubectl apply` says it at once. Of fields that there aren't an API
server tells those who ask for it, as kubectl does (fieldValidation=Strict), and drops them for
others; a field that is null it takes as absent.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from shortlink.links.names import MAX_LABEL, MAX_LABELS, MAX_VALUE, RESERVED
from shortlink.links.policy import DAY, SECOND
from shortlink.links.targets import MAX_TARGET
from shortlink_operator import kinds, policies
from shortlink_operator.kinds import GROUP, NEVER
from shortlink_operator.policies import MAX_DURATION, UNITS, format_duration
from shortlink_operator.status import MAX_CONDITIONS, MAX_MESSAGE, LinkStatus, PolicyStatus

FOLDER: Final = Path(__file__).parents[1] / "crds"
HEADER: Final = (
    "# Written by `python -m shortlink_operator.crds` from the models in"
    " operator/shortlink_operator.\n# Change those and write it anew.\n"
)

TARGET_FORM: Final = "^ *(?i:https?):"
"""What all begin with that the URL Standard takes as http or https: it skips spaces, not case."""
CONTROL: Final = r"[\x00-\x1f\x7f-\x9f\x{2028}\x{2029}]"
CODE_FORM: Final = "^[0-9A-Za-z]{3,20}$"
TIME_FORM: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
PRINTABLE: Final = r"^([^\p{C}\p{Z}]| )+$"
HOST_FORM: Final = r"^[^A-Z/?#@\\\s]+$"

_MAX_TIME: Final = 40
_MAX_DURATION: Final = 11
_MAX_HOST: Final = 260  # of DNS, with a port
_MAX_HOSTS: Final = 100


def _rule(rule: str, message: str, **more: str) -> dict[str, str]:
    return {"rule": rule, "message": message, **more}


def _matches(form: str, of: str = "self") -> str:
    escaped = form.replace("\\", "\\\\").replace("'", "\\'")
    return f"{of}.matches('{escaped}')"


def _labels(most: int) -> str:
    return f"1 to {most} printable characters, with no space but the plain one"


def _duration(least: int = 0) -> dict[str, Any]:
    # What is no duration is told by the first rule alone.
    form = _matches("^[0-9]{1,10}[dhms]$")
    number, unit = "int(self.substring(0, self.size() - 1))", "self.substring(self.size() - 1)"
    lengths = ", ".join(f"'{name}': {unit // SECOND}" for name, unit in UNITS.items())
    seconds = f"{number} * {{{lengths}}}[{unit}]"
    return {
        "maxLength": _MAX_DURATION,
        "x-kubernetes-validations": [
            _rule(form, "write a whole number and d, h, m or s, as 30d"),
            _rule(
                f"!{form} || ({least // SECOND} <= {seconds}"
                f" && {seconds} <= {MAX_DURATION // SECOND})",
                f"make it {format_duration(least)} to {format_duration(MAX_DURATION)}",
            ),
        ],
    }


_LINK: Final[Mapping[str, Mapping[str, Any]]] = {
    "target": {
        "maxLength": MAX_TARGET,
        "x-kubernetes-validations": [
            _rule(_matches(TARGET_FORM), "begin it with https:// or http:// and its host"),
            _rule(
                "!" + _matches(CONTROL),
                "it has a control character, as a tab or a line's end: remove it or"
                " percent-encode it",
            ),
        ],
    },
    "code": {
        "maxLength": 20,
        "x-kubernetes-validations": [
            _rule(_matches(CODE_FORM), "write 3 to 20 characters of 0-9, A-Z, a-z"),
            _rule(
                f"!(self.lowerAscii() in {sorted(RESERVED)})",
                "it is reserved for the platform: choose another word",
            ),
        ],
    },
    "expiresAt": {
        "maxLength": _MAX_TIME,
        "x-kubernetes-validations": [
            _rule(
                f"self == '{NEVER}' || {_matches(TIME_FORM)}",
                "write an RFC 3339 time with an offset, as 2027-01-31T12:00:00Z or"
                f" 2027-01-31T12:00:00+05:30, or {NEVER}",
            )
        ],
    },
    "redirectType": {"format": "int32"},
    "tags": {"maxItems": MAX_LABELS},
    "tags[]": {
        "maxLength": MAX_LABEL,
        "x-kubernetes-validations": [_rule(_matches(PRINTABLE), f"write {_labels(MAX_LABEL)}")],
    },
    "metadata": {
        "maxProperties": MAX_LABELS,
        "x-kubernetes-validations": [
            _rule(
                f"self.all(name, name.size() <= {MAX_LABEL} && {_matches(PRINTABLE, 'name')})",
                f"each name must be {_labels(MAX_LABEL)}",
            )
        ],
    },
    "metadata{}": {
        "maxLength": MAX_VALUE,
        "x-kubernetes-validations": [_rule(_matches(PRINTABLE), f"write {_labels(MAX_VALUE)}")],
    },
    "": {
        "x-kubernetes-validations": [
            _rule(
                "has(self.code) == has(oldSelf.code)"
                " && (!has(self.code) || self.code == oldSelf.code)",
                "it can't be changed, added or removed: set it back, or delete the object and make"
                " another",
                fieldPath=".code",
            ),
            _rule(
                "!(has(self.redirectType) && self.redirectType == 301 && has(self.expiresAt)"
                f" && self.expiresAt != '{NEVER}')",
                "a permanent (301) link can't have an expiry: make redirectType 302, or expiresAt"
                f" {NEVER}",
                fieldPath=".redirectType",
            ),
        ]
    },
}

_POLICY: Final[Mapping[str, Mapping[str, Any]]] = {
    "defaultLifetime": _duration(SECOND),
    "grace": _duration(DAY),
    "quarantine": _duration(),
    "expiringAhead": _duration(),
    "brake.window": _duration(SECOND),
    "ownHosts": {"maxItems": _MAX_HOSTS, "x-kubernetes-list-type": "set"},
    "ownHosts[]": {
        "maxLength": _MAX_HOST,
        "x-kubernetes-validations": [
            _rule(
                _matches(HOST_FORM),
                "write the host alone, in lower case, as s.example or s.example:8443",
            )
        ],
    },
}

_STATUS: Final[Mapping[str, Mapping[str, Any]]] = {
    "observedGeneration": {"format": "int64"},
    "conditions": {
        "maxItems": MAX_CONDITIONS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    },
    "conditions[].observedGeneration": {"format": "int64"},
    "conditions[].message": {"maxLength": MAX_MESSAGE},
    "conditions[].reason": {
        "maxLength": 100,
        "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
    },
}


def schema_of(model: type[BaseModel], rules: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The structural schema of `model`, with what `rules` adds at each path.

    A path names fields with dots between; `[]` is a list's item, `{}` a mapping's value. Raises
    KeyError for a path that isn't there.
    """
    schema = model.model_json_schema(by_alias=True)
    left = dict(rules)
    structural = _structural(schema, schema.get("$defs", {}), "", left)
    if left:
        raise KeyError(f"{model.__name__} has no {', '.join(left)}")
    return structural


def _structural(
    node: dict[str, Any], definitions: Mapping[str, Any], path: str, rules: dict[str, Any]
) -> dict[str, Any]:
    # Where a field may be absent, pydantic says it as a choice of null, and the kind that it is.
    for choice in node.get("anyOf", ()):
        if choice.get("type") != "null":
            node = {**choice, **node}
    if reference := node.get("$ref"):
        node = {**definitions[reference.rpartition("/")[2]], **node}
    kept: dict[str, Any] = {
        name: node[name]
        for name in ("type", "description", "format", "enum", "minimum", "maximum", "required")
        if name in node
    }
    if node.get("default") not in (None, [], {}):
        kept["default"] = node["default"]
    kept |= rules.pop(path, {})
    if "properties" in node:
        kept["properties"] = {
            name: _structural(child, definitions, f"{path}.{name}" if path else name, rules)
            for name, child in node["properties"].items()
        }
    elif "items" in node:
        kept["items"] = _structural(node["items"], definitions, f"{path}[]", rules)
    elif "additionalProperties" in node:
        kept["additionalProperties"] = _structural(
            node["additionalProperties"], definitions, f"{path}{{}}", rules
        )
    return kept


def _column(name: str, path: str, about: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "string", "jsonPath": path, "description": about, **more}


_READY: Final = '.status.conditions[?(@.type=="Ready")]'
_READY_COLUMNS: Final = [
    _column("Ready", f"{_READY}.status", "Whether it is as spec asks for."),
    _column("Reason", f"{_READY}.reason", "Why."),
    _column("Age", ".metadata.creationTimestamp", "Since when the object is.", type="date"),
]


def _definition(
    kind: str, plural: str, short: str, scope: str, version: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["links"],
            },
            "versions": [
                {
                    "name": kinds.API_VERSION.rpartition("/")[2],
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    **version,
                }
            ],
        },
    }


def _object(about: str, spec: dict[str, Any], status: dict[str, Any], **more: Any) -> Any:
    return {
        "openAPIV3Schema": {
            "type": "object",
            "description": about,
            "required": ["spec"],
            **more,
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"type": "object"},
                "spec": spec,
                "status": status,
            },
        }
    }


def shortlinks() -> dict[str, Any]:
    """The definition of ShortLink."""
    about = "A short link that belongs to the namespace, and ends when this object is deleted."
    schema = _object(about, schema_of(kinds.Spec, _LINK), schema_of(LinkStatus, _STATUS))
    columns = [
        _column("URL", ".status.url", "The short link."),
        _column("Target", ".spec.target", "Where it leads."),
        _column("State", ".status.state", "How the link stands."),
        # As a date it would be shown as an age, and a time to come as <invalid>.
        _column("Expires", ".status.expiresAt", "When it ends."),
        *_READY_COLUMNS,
    ]
    version = {
        "additionalPrinterColumns": columns,
        "selectableFields": [{"jsonPath": ".spec.code"}, {"jsonPath": ".status.code"}],
        "schema": schema,
    }
    return _definition(kinds.KIND, "shortlinks", "sl", "Namespaced", version)


def linkpolicies() -> dict[str, Any]:
    """The definition of LinkPolicy."""
    name = _rule(
        f"self.metadata.name == '{policies.NAME}'",
        f"a cluster has one LinkPolicy: name it {policies.NAME}",
    )
    schema = _object(
        "The platform's rules for links: the same in the clusters of all regions.",
        schema_of(policies.PolicySpec, _POLICY),
        schema_of(PolicyStatus, _STATUS),
        **{"x-kubernetes-validations": [name]},
    )
    columns = [
        _column("Grace", ".spec.grace", "How long a link can be restored."),
        _column("Quarantine", ".spec.quarantine", "Until a code may be issued again."),
        *_READY_COLUMNS,
    ]
    version = {"additionalPrinterColumns": columns, "schema": schema}
    return _definition(policies.KIND, "linkpolicies", "lpol", "Cluster", version)


def written(definition: Mapping[str, Any]) -> str:
    """The file of a definition."""
    return HEADER + yaml.safe_dump(definition, sort_keys=False, width=98)


FILES: Final = {"shortlinks.yaml": shortlinks, "linkpolicies.yaml": linkpolicies}


def write(folder: Path) -> None:
    """Write all definitions into `folder`."""
    folder.mkdir(exist_ok=True)
    for name, definition in FILES.items():
        (folder / name).write_text(written(definition()), encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
