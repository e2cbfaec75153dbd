"""What is known of a cluster's objects, kept small: no spec, only what says whether one needs work.

Ten thousand of them are a few megabytes.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shortlink_operator.kinds import ALLOW_DELETE, API_VERSION, FINALIZER, GROUP, KIND
from shortlink_operator.plan import HELD, RELEASE_IT
from shortlink_operator.status import ready_in

_LIVE: Final = frozenset({"active", "expiring", "disabled"})
"""States, as a status has them, of links that a deletion would end."""

Body = Mapping[str, Any]


@dataclass(slots=True)
class Entry:
    """An object. Times are milliseconds of the steady clock.

    `version` is the newest resourceVersion known of it, `reported` the newest that the watch
    told. `mark`: two states with the same one need the same work. `waits` to be handled.
    `deleting`: since when that is known. `holds`: has a link whose home is here. `released`: a
    person has let its deletion go. `let_go`: nothing of ours holds it any more.
    """

    uid: str
    generation: int
    version: int
    mark: int
    holds: bool
    released: bool
    retain: bool
    reported: int = 0
    waits: bool = False
    deleting: int | None = None
    let_go: bool = False


@dataclass(slots=True)
class Space:
    """A namespace. `live`: objects that have a link; `going`: those of them whose link a deletion
    asks to end; `orphans`: links that live without their object. `recent`: when links were
    tombstoned (wall clock), by code. `complete`: all its objects are known, and of its claims
    those up to `claimed`, by one who holds `completing`.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    live: int = 0
    going: int = 0
    orphans: int = 0
    recent: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    claimed: str = ""
    completing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def count(self, entry: Entry, sign: int) -> None:
        """Add or take away what `entry` counts for."""
        if entry.holds:
            self.live += sign
            if entry.deleting is not None and not entry.released and not entry.retain:
                self.going += sign


class Index:
    """Entries by key, and their counts by namespace. `cluster` is this one's name.

    `orphans` are the keys of live links whose object is gone. `missed` is how many were gone at
    once, and `emptied` whether no object was left then, since the last time that none was gone.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.spaces: defaultdict[str, Space] = defaultdict(Space)
        self.orphans: set[str] = set()
        self.missed = 0
        self.emptied = False

    def space(self, key: str) -> Space:
        """The namespace of a key."""
        return self.spaces[key.partition("/")[0]]

    def get(self, key: str) -> Entry | None:
        """The object, if it is known."""
        return self.space(key).entries.get(key)

    def items(self) -> Iterator[tuple[str, Entry]]:
        """All objects."""
        for space in self.spaces.values():
            yield from space.entries.items()

    def entry(self, body: Body) -> Entry:
        """A new entry for an object as it is in `body`."""
        metadata = body["metadata"]
        status = body.get("status") or {}
        annotations = metadata.get("annotations") or {}
        ours = sorted(
            (name, text) for name, text in annotations.items() if name.startswith(f"{GROUP}/")
        )
        mark = hash(
            (
                metadata["uid"],
                metadata.get("generation"),
                "deletionTimestamp" in metadata,
                FINALIZER in metadata.get("finalizers", ()),
                repr(ours),
                repr(status),  # an API server writes the names of a mapping in their order
            )
        )
        return Entry(
            uid=metadata["uid"],
            generation=metadata["generation"],
            version=version_of(body),
            mark=mark,
            holds=status.get("home") == self.cluster and status.get("state") in _LIVE,
            released=annotations.get(ALLOW_DELETE) == "true",
            retain=(body.get("spec") or {}).get("deletionPolicy") == "Retain",
        )

    def put(self, key: str, entry: Entry) -> None:
        """Keep `entry` in the place of what is there."""
        self.drop(key)
        space = self.space(key)
        space.entries[key] = entry
        space.count(entry, +1)
        self.found(key)

    def change(self, key: str, **values: Any) -> None:
        """Set attributes of an entry that is there."""
        space = self.space(key)
        entry = space.entries[key]
        space.count(entry, -1)
        for name, value in values.items():
            setattr(entry, name, value)
        space.count(entry, +1)

    def lose(self, key: str) -> None:
        """Note that an object is gone whose link lives, once it was dropped."""
        if key not in self.orphans:
            self.orphans.add(key)
            self.space(key).orphans += 1
        self.missed = max(self.missed, len(self.orphans))
        if len(self.orphans) > 1 and not any(space.entries for space in self.spaces.values()):
            self.emptied = True

    def found(self, key: str) -> None:
        """Note that an object is there again, or that its link is settled without it."""
        if key in self.orphans:
            self.orphans.remove(key)
            self.space(key).orphans -= 1
        if not self.orphans:
            self.missed, self.emptied = 0, False

    def drop(self, key: str) -> None:
        """Forget an object."""
        space = self.space(key)
        entry = space.entries.pop(key, None)
        if entry is not None:
            space.count(entry, -1)


def key_of(body: Body) -> str:
    """`namespace/name`."""
    metadata = body["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def version_of(body: Body) -> int:
    """Its resourceVersion: comparable within one kind (Kubernetes API concepts)."""
    return int(body["metadata"]["resourceVersion"])


def slim(body: Body) -> dict[str, Any]:
    """What is used of an object, without what API servers and others add."""
    metadata = body["metadata"]
    kept = (
        *("namespace", "name", "uid", "resourceVersion", "generation", "deletionTimestamp"),
        *("finalizers", "annotations"),
    )
    return {
        "apiVersion": API_VERSION,  # objects of a list have neither
        "kind": KIND,
        "metadata": {name: metadata[name] for name in kept if metadata.get(name)},
        "spec": body.get("spec"),
        "status": body.get("status"),
    }


def is_ready(body: Body) -> bool:
    """Whether an object is Ready as it is now."""
    ready, generation = ready_of(body) or {}, body["metadata"].get("generation")
    return (ready.get("status"), ready.get("observedGeneration")) == ("True", generation)


def ready_of(body: Body) -> Mapping[str, Any] | None:
    """The Ready condition, if there is one."""
    return ready_in(body.get("status") or {})


def held_before(body: Body) -> str:
    """Why the deletion of an object was held when it was last looked at, or nothing.

    Only a person lets it go, however few others go by then.
    """
    ready = ready_of(body)
    if ready is None or ready["reason"] != HELD:
        return ""
    message: str = ready["message"]
    return message.removesuffix(RELEASE_IT)
