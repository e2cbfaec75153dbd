"""The layers of the services' image, each made once from what it is keyed by.

Base: Python and what it needs from Debian, no shell. Then what requirements/regions.txt locks. Then
the checkout's own packages. All Python is compiled ahead, for a pod's root is read-only and each
start would compile it again; no `.pyc` is compared with its source (unchecked-hash, PEP 552).
"""

import json
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from local.image.pack import Layer, pack
from local.parts.cache import Tell, keyed, making, remove
from local.parts.commands import run
from local.problem import Problem

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REQUIREMENTS = ROOT / "requirements" / "regions.txt"
OWN = [ROOT / "apps" / "shortlink", ROOT / "operator" / "shortlink_operator"]

SUITE = "bookworm"
PYTHON = "3.11"
"""What the suite has."""
PACKAGES = """
    python3.11 python3-minimal libpython3-stdlib ca-certificates tzdata libc6 base-files netbase
    media-types libstdc++6
""".split()
SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
"""Where this Python looks for what isn't Debian's."""
LEFT_OUT = """
    usr/share/man usr/share/locale usr/share/lintian usr/share/info usr/share/bash-completion
    usr/share/perl5 var/cache var/log var/lib/apt etc/apt dev
""".split()
USERS = "root:x:0:0:root:/:/nonexistent\nnonroot:x:65532:65532:nonroot:/:/nonexistent\n"
GROUPS = "root:x:0:\nnonroot:x:65532:\n"
BASE = "base"
KEPT = 3
"""How many versions of each layer and image stay in the cache."""
DEADLINE = 900.0  # seconds for what is fetched
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""This machine's name -> the images' name for it."""


def prune(images: Path, pattern: str) -> None:
    """Leave only the newest few of what one name has had in the cache."""
    by_age = sorted(images.glob(pattern), key=lambda each: each.stat().st_mtime)
    for old in by_age[:-KEPT]:
        remove(old)


def layer(
    images: Path,
    name: str,
    at: str,
    made_from: Iterable[bytes],
    fill: Callable[[Path], None],
    tell: Tell,
) -> Layer:
    """Return a layer, made from a folder that `fill` fills when it is not in the cache yet.

    The caller holds the cache's lock.
    """
    recipe = [(HERE / file).read_bytes() for file in ("layers.py", "pack.py")]
    folder = images / keyed(name, *recipe, *made_from)
    told = folder / "layer.json"
    if not told.is_file():
        began = time.monotonic()
        with making(folder) as place:
            tree = place / "tree"
            tree.mkdir()
            fill(tree)
            packed = pack(tree, place / "layer.tar.gz", at)
            (place / told.name).write_text(json.dumps(asdict(packed), default=str))
            if name != BASE:  # whose Python compiles the others
                remove(tree)
        tell(f"{name} layer: {packed.size / 1e6:.1f} MB, {time.monotonic() - began:.1f} s")
        prune(images, f"{name}-*")
    return Layer(**json.loads(told.read_text()) | {"file": folder / "layer.tar.gz"})


def base(images: Path, tell: Tell) -> Layer:
    """Return the layer with Debian's packages. To have newer ones, remove it from the cache."""
    sources = HERE / "debian.sources"

    def fill(tree: Path) -> None:
        shown = f"--include={','.join(PACKAGES)}"
        # A machine of the same suite knows best where its packages come from.
        machines = Path("/etc/apt/sources.list.d/debian.sources")
        same = machines.is_file() and f"Suites: {SUITE}" in machines.read_text()
        run(
            "fetching Debian's packages",
            [
                *["mmdebstrap", "--quiet", "--variant=extract", shown],
                '--aptopt=Acquire::Retries "3"',
                *[SUITE, tree, machines if same else sources],
            ],
            tell,
            deadline=DEADLINE,
            environment={"SOURCE_DATE_EPOCH": "0"},
        )
        finish(tree)
        compile_all(tree / f"usr/lib/python{PYTHON}", f"/usr/lib/python{PYTHON}", tree, tell)

    made_from = [sources.read_bytes(), *map(str.encode, PACKAGES)]
    return layer(images, BASE, ".", made_from, fill, tell)


def finish(root: Path) -> None:
    """Do what the packages' own scripts would have done, and leave out what no service reads."""
    for name in LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    for document in (root / "usr/share/doc").rglob("*"):
        if document.is_file() and document.name != "copyright":
            document.unlink()
    authorities = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.write_text("".join(each.read_text().rstrip() + "\n" for each in authorities))
    (root / "etc/passwd").write_text(USERS)
    (root / "etc/group").write_text(GROUPS)


def installed(images: Path, python: Path, tell: Tell) -> Layer:
    """Return the layer with what the lock names, for the image's Python and not for ours."""

    def fill(tree: Path) -> None:
        uv = Path(sys.executable).with_name("uv")
        if not uv.is_file():
            raise Problem(f"{uv} is not here: start this by make, which sets up .venv")
        machine = platform.machine()
        # pip would read the lock's markers for the Python that it runs on.
        run(
            "installing the lock",
            [
                *[uv, "pip", "install", "--quiet", "--no-config", "--target", tree, "--no-deps"],
                *["--require-hashes", "--only-binary=:all:", "--link-mode=copy"],
                *["--python-version", PYTHON, "--python-platform", f"{machine}-manylinux_2_36"],
                *["--requirements", REQUIREMENTS],
            ],
            tell,
            deadline=DEADLINE,
        )
        shutil.rmtree(tree / "bin", ignore_errors=True)
        (tree / ".lock").unlink(missing_ok=True)
        compile_all(tree, f"/{SITE}", python, tell)

    made_from = [REQUIREMENTS.read_bytes(), python.parent.name.encode()]
    return layer(images, "installed", SITE, made_from, fill, tell)


def own(images: Path, python: Path, tell: Tell) -> Layer:
    """Return the layer with the checkout's packages as they are now."""
    files = {  # read once: what is keyed is what is packed, though someone is editing
        file.relative_to(package.parent): file.read_bytes()
        for package in OWN
        for file in sorted(package.rglob("*"))
        if kept(file)
    }

    def fill(tree: Path) -> None:
        for file, content in files.items():
            target = tree / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        compile_all(tree, f"/{SITE}", python, tell)

    made_from = [part for file, content in files.items() for part in (bytes(file), content)]
    made_from.append(python.parent.name.encode())
    return layer(images, "own", SITE, made_from, fill, tell)


def kept(file: Path) -> bool:
    """Whether a file of the checkout belongs in the image."""
    return file.is_file() and file.suffix != ".pyc" and not file.name.startswith(".")


def compile_all(tree: Path, at: str, root: Path, tell: Tell) -> None:
    """Compile a folder that will lie at `at`, by the base layer's Python, unpacked in `root`."""
    loader = next(iter(sorted(root.glob("lib*/ld-linux-*.so.*"))))
    libraries = ":".join(str(each) for each in sorted(root.glob("**/lib/*-linux-gnu")))
    run(
        "compiling",
        [
            *[loader, "--library-path", libraries, root / f"usr/bin/python{PYTHON}"],
            *["-S", "-m", "compileall", "-q", "-s", tree, "-p", at],
            *["--invalidation-mode", "unchecked-hash", tree],
        ],
        tell,
        deadline=DEADLINE,
        environment={"PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0", "PYTHONPATH": ""},
    )


def sandbox(images: Path, tell: Tell) -> Layer:
    """Return the layer of the image that holds a pod's namespaces: one static program."""
    source = HERE / "pause.c"

    def fill(tree: Path) -> None:
        flags = ["-static", "-Os", "-s", "-Wl,--build-id=none"]
        run("pause", ["gcc", *flags, "-o", tree / "pause", source], tell, deadline=60.0)

    return layer(images, "sandbox", ".", [source.read_bytes()], fill, tell)
