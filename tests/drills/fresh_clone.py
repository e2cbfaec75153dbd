"""Drill: `make demo ONCE=1` on a fresh clone, with nothing on PATH but Python, make and the base.

python -m tests.drills.fresh_clone
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
AIM_SECONDS = 90.0
BASE = "make env sh bash cat echo cp mv rm mkdir ls uname grep sed dirname basename".split()


def main() -> None:
    """Clone, run, print seconds and megabytes as JSON; exit 1 when it fails or is too slow."""
    python = Path(sysconfig.get_config_var("BINDIR")) / Path(os.path.realpath(sys.executable)).name
    with tempfile.TemporaryDirectory(prefix="shortlink-fresh-") as place:
        clone, tools, home = (Path(place, name) for name in ("clone", "bin", "home"))
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        tools.mkdir()
        home.mkdir()
        (tools / "python3").symlink_to(python)
        for name in BASE:
            if found := shutil.which(name):
                (tools / name).symlink_to(found)
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        environment = kept | {"PATH": str(tools), "HOME": str(home), "PIP_NO_CACHE_DIR": "1"}
        began = time.monotonic()
        done = subprocess.run(
            [str(tools / "make"), "demo", "ONCE=1"],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=10 * AIM_SECONDS,
        )
        seconds = time.monotonic() - began
        print(done.stdout[-6000:], done.stderr[-2000:])
        size = re.search(r"([\d.]+) MB downloaded", done.stdout)
        print(
            json.dumps(
                {
                    "exit": done.returncode,
                    "seconds": round(seconds, 1),
                    "megabytes": float(size[1]) if size else None,
                    "PATH": sorted(tool.name for tool in tools.iterdir()),
                }
            )
        )
        if done.returncode != 0 or seconds > AIM_SECONDS:
            sys.exit(f"failed, or slower than {AIM_SECONDS:.0f} s")


if __name__ == "__main__":
    main()
