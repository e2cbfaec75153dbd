"""What a stack is called, and what follows from that."""

import re
from dataclasses import dataclass
from typing import Literal, Self, cast

import pulumi

_FORM = re.compile(r"(local|own)-([a-z0-9]+(?:-[a-z0-9]+)*)-(platform|apps)")

Kind = Literal["local", "own"]
Layer = Literal["platform", "apps"]


@dataclass(frozen=True, slots=True)
class Stack:
    """One layer of one region. `own` is a cluster of yours, `local` one that `make up` made."""

    kind: Kind
    region: str
    layer: Layer

    @classmethod
    def parse(cls, name: str) -> Self:
        """The stack called `name`. Raises RunError, naming the form, for any other name."""
        match = _FORM.fullmatch(name)
        if match is None:
            raise pulumi.RunError(
                f"stack {name!r} is not called (local|own)-REGION-(platform|apps), such as"
                " own-eu-west-1-platform: pulumi stack init own-REGION-platform"
            )
        kind, region, layer = match.groups()
        return cls(cast(Kind, kind), region, cast(Layer, layer))

    @property
    def cluster(self) -> str:
        """Both layers' cluster. Only when this changes is everything in it made anew."""
        return f"{self.kind}-{self.region}"

    @property
    def platform(self) -> str:
        """The name of the stack that this one's layer stands on."""
        return f"{self.cluster}-platform"
