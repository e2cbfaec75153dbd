"""The contract between the layers: what the platform stack leaves for the apps stack."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import pulumi

from stacks.names import Stack


@dataclass(frozen=True, slots=True)
class PlatformOutputs:
    """What services need to know of the platform.

    namespace: where they run.
    settings: the ConfigMap of their environment that anyone may read.
    connections: the Secret of their environment: addresses, perhaps with passwords.
    api_keys: the Secret with the file of hashed API keys.
    checksum: of the content of these three. It changes when they do, so that pods roll out.
    """

    namespace: pulumi.Input[str]
    settings: pulumi.Input[str]
    connections: pulumi.Input[str]
    api_keys: pulumi.Input[str]
    checksum: pulumi.Input[str]

    def export(self) -> None:
        """Make these the stack's outputs."""
        for field in fields(self):
            pulumi.export(field.name, getattr(self, field.name))

    @classmethod
    def of(cls, stack: Stack) -> Self:
        """The outputs of the platform stack under `stack`, which fail when it isn't deployed."""
        reference = pulumi.StackReference(f"{pulumi.get_organization()}/shortlink/{stack.platform}")
        outputs = reference.outputs.apply(lambda left: complete(stack, left))
        return cls(**{field.name: outputs[field.name] for field in fields(cls)})


def complete(stack: Stack, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """`outputs`, once all are there that the contract names. Raises RunError."""
    missing = [field.name for field in fields(PlatformOutputs) if field.name not in outputs]
    if missing:
        raise pulumi.RunError(
            f"stack {stack.platform} has no output {', '.join(missing)}: deploy it first, run:"
            f" pulumi up --stack {stack.platform}"
        )
    return outputs
