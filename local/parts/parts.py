"""All parts together: found at once, or got."""

import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local.parts import debian, golang, java
from local.parts.cache import Tell, cache_folder, locked
from local.parts.table import DEBIAN, GO_PARTS, GoPart
from local.problem import Problem

ROOM = 8e9
"""Bytes that building all Go parts from nothing takes, most of them in Go's own caches."""
WAIT = 7200.0  # seconds for another build of everything to end


@dataclass(frozen=True)
class Parts:
    """Where everything is."""

    programs: Mapping[str, Path]
    cni: Path
    cassandra: Path
    java: Path
    cache: Path

    def program(self, name: str) -> Path:
        """Return a program by the name that its own documentation calls it by: `kubelet`, `nft`."""
        return self.programs[name]


@dataclass
class Look:
    """What is here, and what is missing."""

    cache: Path
    programs: dict[str, Path]
    packages: list[str]
    jars: bool
    go_parts: list[GoPart]

    @property
    def missing(self) -> list[str]:
        """Name what `make parts` would get."""
        jars = [] if self.jars else ["cassandra"]
        return [*self.packages, *jars, *(part.name for part in self.go_parts)]


def look() -> Look:
    """Look what is here. Raises Problem where the platform can't run at all."""
    if sys.platform != "linux":
        raise Problem("the local platform runs on Linux only; `make demo` runs everywhere")
    cache = cache_folder()
    programs: dict[str, Path] = {}
    absent = []
    for part in GO_PARTS:
        if found := golang.programs(part, cache):
            programs |= found
        else:
            absent.append(part)
    for shown_by in DEBIAN.values():
        if not shown_by.startswith("/") and (program := debian.find(shown_by)):
            programs[shown_by] = program
    return Look(cache, programs, debian.missing(), java.whole(java.jars(cache)), absent)


def find() -> Parts:
    """Return the parts, all of them. Raises Problem that names what is missing."""
    seen = look()
    if seen.missing:
        raise Problem(f"not here yet: {', '.join(seen.missing)}: run `make parts`")
    return parts_of(seen)


def parts_of(seen: Look) -> Parts:
    """Say where everything is, once nothing is missing."""
    command = java.java_command()
    assert command is not None  # noqa: S101 - debian.missing() asks the same
    return Parts(
        programs=seen.programs,
        cni=seen.programs["bridge"].parent,
        cassandra=java.jars(seen.cache),
        java=command,
        cache=seen.cache,
    )


def ensure(tell: Tell = print) -> Parts:
    """Get what is missing, the quickest first, and return all. Raises Problem.

    Cut short at any point, the next run goes on where this one ended. Two runs at once take turns.
    """
    seen = look()
    if not seen.missing:
        return parts_of(seen)
    with locked(seen.cache, tell, WAIT):
        seen = look()  # whoever held the lock may have got all of it
        if seen.packages:
            debian.install(seen.packages, tell)
        if not seen.jars:
            java.fetch(seen.cache, tell)
        if seen.go_parts:
            check_room(seen.cache)
            go = golang.go_command(seen.cache, tell)
            began = time.monotonic()
            for number, part in enumerate(seen.go_parts, 1):
                tell(f"building {part.name} {part.version} ({number} of {len(seen.go_parts)})")
                golang.build(part, seen.cache, go, tell)
            tell(f"{len(seen.go_parts)} Go parts: {time.monotonic() - began:.0f} s")
    return find()


def check_room(cache: Path) -> None:
    """Refuse to begin what the disk has no room for."""
    for folder in {cache, Path(os.environ.get("GOCACHE") or Path.home())}:
        there = next(each for each in (folder, *folder.parents) if each.exists())
        free = shutil.disk_usage(there).free
        if free < ROOM:
            raise Problem(
                f"{there} has {free / 1e9:.1f} GB free, building needs about {ROOM / 1e9:.0f} GB: "
                "make room, or set XDG_CACHE_HOME and GOCACHE to another disk"
            )
