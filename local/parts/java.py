"""Cassandra's jars, and the Java that runs them."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from local.parts.cache import Tell, keyed, making
from local.parts.commands import run
from local.parts.table import CASSANDRA, HERE, JAVA
from local.problem import Problem

POM = HERE / "cassandra" / "pom.xml"
JVMS = Path("/usr/lib/jvm")
DEADLINE = 900.0  # seconds for 67 MB
WHOLE = 60
"""A folder with fewer jars is no Cassandra; 5.0.8 has 100."""


def homes() -> Iterator[Path]:
    """Yield the Java installations here, the preferred one first."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent
    if JVMS.is_dir():
        yield from sorted(JVMS.iterdir())


def java_command() -> Path | None:
    """Return a `java` of the right version, by what its installation says of itself."""
    for home in homes():
        told, java = home / "release", home / "bin" / "java"
        if told.is_file() and java.is_file():
            version = re.search(r'^JAVA_VERSION="(\d+)', told.read_text(errors="replace"), re.M)
            if version and int(version[1]) == JAVA:
                return java
    return None


def jars(cache: Path) -> Path:
    """Return the folder of Cassandra's jars in the cache, there or not."""
    return cache / keyed(f"cassandra-{CASSANDRA}", POM.read_bytes())


def whole(folder: Path) -> bool:
    """Whether the folder has Cassandra and what it needs."""
    main = folder / f"cassandra-all-{CASSANDRA}.jar"
    return main.is_file() and len(list(folder.glob("*.jar"))) >= WHOLE


def fetch(cache: Path, tell: Tell) -> None:
    """Fetch the jars with Maven, set up as the user has it, from a copy of the pom."""
    mvn = shutil.which("mvn")
    if not mvn:
        raise Problem("Maven is not here: put `mvn` on PATH")
    began = time.monotonic()
    with making(jars(cache)) as folder:
        shutil.copy(POM, folder / "pom.xml")
        run(
            "fetching Cassandra's jars",
            [
                *[mvn, "--batch-mode", "--no-transfer-progress", "dependency:copy-dependencies"],
                *["-DincludeScope=runtime", f"-DoutputDirectory={folder}"],
            ],
            tell,
            deadline=DEADLINE,
            cwd=folder,
        )
        (folder / "pom.xml").unlink()
        if not whole(folder):
            raise Problem(f"Maven ended well, but {folder} has no whole Cassandra {CASSANDRA}")
        sizes = [jar.stat().st_size for jar in folder.iterdir()]
        took = f"{sum(sizes) / 1e6:.0f} MB, {time.monotonic() - began:.0f} s"
        tell(f"cassandra {CASSANDRA}: {len(sizes)} jars, {took}")
