"""One platform a machine: which checkout's it is, and a lock for who changes it.

Its network and control groups have fixed names, so two can't be. Kept outside of any checkout.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local.problem import Problem
from local.regions.layout import CHECKOUT

HOME = Path("/run/shortlink-local")
_LOCK = HOME / "lock"
_OWNER = HOME / "owner"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Owner:
    """Whose platform was brought up, and in which life of the machine."""

    checkout: Path
    boot: str


def this() -> Owner:
    """This checkout, now."""
    return Owner(CHECKOUT, _BOOT.read_text().strip())


def owner() -> Owner | None:
    """Whose platform is up, or was and left something."""
    try:
        found = json.loads(_OWNER.read_text())
        return Owner(Path(found["checkout"]), found["boot"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as broken:
        raise Problem(f"{_OWNER} can't be read ({broken}): remove it") from broken


def check() -> None:
    """Raises Problem when there is no platform of this checkout."""
    theirs = owner()
    if theirs is None:
        raise Problem("no platform is up: `make up`")
    if theirs.checkout != CHECKOUT:
        raise Problem(f"the platform that is up is that of {theirs.checkout}: ask there")


def claim() -> None:
    """Write down that the platform is this checkout's."""
    mine = this()
    new = _OWNER.with_suffix(".new")
    new.write_text(json.dumps({"checkout": str(mine.checkout), "boot": mine.boot}))
    new.replace(_OWNER)


def release() -> None:
    """Nobody's any more. Call it with the lock held; the lock goes too."""
    shutil.rmtree(HOME, ignore_errors=True)


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock. Raises Problem at once when another process has it, and names that."""
    while True:
        try:
            HOME.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise Problem(f"{HOME} can't be made ({error}): run it as root, on Linux") from error
        with _LOCK.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as taken:
                lock.seek(0)
                raise Problem(
                    f"process {lock.read().strip() or '?'} is changing the platform: "
                    "wait until it has ended"
                ) from taken
            # It may have been released, and so removed, between the two lines above.
            if not _LOCK.exists() or not os.path.samestat(os.fstat(lock.fileno()), _LOCK.stat()):
                continue
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield
            return
