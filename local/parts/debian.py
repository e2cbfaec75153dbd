"""What comes from Debian: found on the machine, else installed, and no service started by that."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local.parts.cache import Tell
from local.parts.commands import run
from local.parts.golang import answer
from local.parts.java import java_command
from local.parts.table import DEBIAN, RUNC
from local.problem import Problem

DEADLINE = 900.0  # seconds for apt-get
POLICY = Path("/usr/sbin/policy-rc.d")
"""What packages ask before they start a service (Debian Policy, `invoke-rc.d`); 101 is no."""
MARK = "# shortlink: put here for the length of one apt-get"
CLUSTERS = Path("/etc/postgresql-common/createcluster.conf")
"""What PostgreSQL's package reads to know whether to make and start a database."""


def find(name: str) -> Path | None:
    """Return a program, or the first file of a pattern; programs in /usr/sbin too, PATH or not."""
    if name.startswith("/"):
        return next(iter(sorted(Path("/").glob(name[1:]))), None)
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def runc_will_do(runc: Path) -> bool:
    """Whether a runc is new enough for the rest."""
    said = re.search(r"runc version (\d+)\.(\d+)", answer([str(runc), "--version"]))
    return said is not None and tuple(map(int, said.groups())) >= RUNC


def missing() -> list[str]:
    """Return the packages that this machine lacks."""
    lacks = []
    for package, shown_by in DEBIAN.items():
        here = java_command() if package.startswith("openjdk") else find(shown_by)
        if here is None or (package == "runc" and not runc_will_do(here)):
            lacks.append(package)
    return lacks


def install(packages: list[str], tell: Tell) -> None:
    """Install packages; as root, where apt-get is. No service is started, no database made."""
    names = " ".join(packages)
    if not shutil.which("apt-get"):
        raise Problem(f"this machine has no apt-get: install what Debian calls {names}")
    if os.geteuid() != 0:
        raise Problem(f"run as root once, or: apt-get install --no-install-recommends {names}")
    tell(f"installing {names}")
    began = time.monotonic()
    quietly = {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"]
    keep = ["-o", "Dpkg::Options::=--force-confold"]
    install = [*apt, "install", "-y", "--no-install-recommends", *keep, *packages]
    with no_services():
        run("apt-get update", [*apt, "update"], tell, deadline=DEADLINE, environment=quietly)
        run("apt-get install", install, tell, deadline=DEADLINE, environment=quietly)
    if still := missing():
        raise Problem(f"apt-get ended well, but {' '.join(still)} won't do: put newer ones on PATH")
    tell(f"{len(packages)} Debian packages: {time.monotonic() - began:.0f} s")


@contextmanager
def no_services() -> Iterator[None]:
    """Keep packages from starting services or making databases; a user's own policy stays."""
    if not CLUSTERS.exists():
        CLUSTERS.parent.mkdir(parents=True, exist_ok=True)
        CLUSTERS.write_text("create_main_cluster = false\n")
    ours = not POLICY.exists() or MARK in POLICY.read_text(errors="replace")
    if ours:
        POLICY.write_text(f"#!/bin/sh\n{MARK}\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            POLICY.unlink()
