"""The cache: a folder for each part, whole or not there at all, and one builder at a time."""

import fcntl
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from local.problem import Problem

Tell = Callable[[str], None]
MAKING = ".making-"


def cache_folder() -> Path:
    """Return this user's cache folder for parts; it need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "shortlink" / "parts"


def keyed(name: str, *made_from: bytes) -> str:
    """Return a folder name: `name` and a digest of what its content is made from, and for."""
    digest = hashlib.sha256(platform.machine().encode())
    for each in made_from:
        digest.update(b"%d:" % len(each) + each)  # lengths: moving a byte to its neighbour shows
    return f"{name}-{digest.hexdigest()[:12]}"


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextmanager
def making(target: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which becomes `target` when the block ends without an error.

    The caller holds the lock of the folder that `target` is in.
    """
    filled = target.with_name(f"{MAKING}{target.name}")
    filled.mkdir(parents=True)
    yield filled
    shutil.rmtree(target, ignore_errors=True)
    filled.rename(target)


@contextmanager
def locked(folder: Path, tell: Tell, deadline: float) -> Iterator[None]:
    """Hold the folder against other builders; waits up to `deadline` seconds, then Problem.

    The lock goes with the process, however it ends; what that left half made is thrown away here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    give_up = time.monotonic() + deadline
    with (folder / ".lock").open("w") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise Problem(
                        f"another build has held {folder} for {deadline:.0f} s: end it, try again"
                    ) from None
                if not waiting:
                    tell("another build is at work here: waiting for it to end")
                waiting = True
                time.sleep(0.2)
        for half in folder.glob(f"{MAKING}*"):
            remove(half)
        yield
