"""What the writers of a drill were told, and so what may be found: nothing else, and no less."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | None
"""A link's target; None: it was deleted."""


@dataclass(slots=True)
class Held:
    """A link as one writer knows it: `may` holds every value that it may have.

    `restorable` are the targets that it may have had when its deletion was asked for.
    """

    code: str
    may: set[Value]
    restorable: set[Value] = field(default_factory=set)
    busy: bool = False

    @property
    def known(self) -> bool:
        """Whether the last change was acknowledged: there is one value."""
        return len(self.may) == 1


@dataclass(slots=True)
class Acknowledged:
    """The links of one writer. Each change is asked for one at a time: `begin`, then `end`."""

    links: list[Held] = field(default_factory=list)

    def created(self, code: str, target: str) -> None:
        """A link was acknowledged."""
        self.links.append(Held(code, {target}))

    def maybe(self, code: str, target: str) -> None:
        """The outcome of making this alias is not known; another may have it, or nobody."""
        self.links.append(Held(code, {target, _NOBODY}))

    def choose(self, rng: random.Random) -> Held | None:
        """A link that can be changed now: its value is known and nobody is at it."""
        for link in rng.sample(self.links, min(len(self.links), 8)):
            if link.known and not link.busy:
                link.busy = True
                return link
        return None

    def begin(self, link: Held, new: Value) -> None:
        """A change to `new` is asked for: until the answer it is either."""
        if new is None:
            link.restorable = set(link.may)
        link.may = {*link.may, new}

    def end(self, link: Held, acknowledged: bool, new: Value) -> None:
        """The answer came; without one that says so the outcome stays open."""
        if acknowledged:
            link.may = {new}
        link.busy = False


_NOBODY = "nobody made it"
"""Among the values of an alias whose creation was never acknowledged."""


def found(status: int, location: str | None) -> Value:
    """The value that a visitor's answer shows. Raises ValueError for one that shows none."""
    match status:
        case 302 if location is not None:
            return location
        case 410:
            return None
        case 404:
            return _NOBODY
    raise ValueError(f"answered {status}")


def differences(link: Held, seen: Mapping[str, Value]) -> list[str]:
    """What is wrong with what each region shows of a link: a value that it may not have, or
    not the same value everywhere.
    """
    told = [
        f"{link.code} shows {value} in {region}, but it may be {sorted(map(str, link.may))}"
        for region, value in seen.items()
        if value not in link.may
    ]
    if len(set(seen.values())) > 1 and not told:
        told.append(f"{link.code} is not the same everywhere: {dict(seen)}")
    return told
