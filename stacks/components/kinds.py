"""The kinds that the operator works on."""

from pathlib import Path
from typing import Any, Final

import pulumi
import yaml
from pulumi_kubernetes.apiextensions import CustomResource

FOLDER: Final = Path(__file__).resolve().parents[2] / "operator" / "crds"
"""A file for each kind. They are generated from the operator's models: `make crds`."""


class Kinds(pulumi.ComponentResource):
    """The CustomResourceDefinitions, which outlive the stack that made them.

    With a definition go all objects of its kind, whoever they belong to, and with those their
    links. So destroying the stack leaves both, and the next stack takes them over; `kubectl
    delete crd` is for who means it.
    """

    def __init__(self, name: str, opts: pulumi.ResourceOptions) -> None:
        super().__init__("shortlink:platform:Kinds", name, None, opts)
        own = pulumi.ResourceOptions(parent=self, retain_on_delete=True)
        for definition in definitions(FOLDER):
            # Not as the typed resource, which would not let x-kubernetes-validations through.
            CustomResource(
                definition["metadata"]["name"],
                api_version=definition["apiVersion"],
                kind=definition["kind"],
                metadata=definition["metadata"],
                spec=definition["spec"],
                opts=own,
            )
        self.register_outputs({})


def definitions(folder: Path) -> list[dict[str, Any]]:
    """What the files in `folder` hold. Raises RunError when there are none."""
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise pulumi.RunError(f"no definitions of kinds are in {folder}; run: make crds")
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
