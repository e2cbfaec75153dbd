"""What is built anew, and what comes from the cache."""

import os
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from local.image import images, layers
from local.image.pack import Layer
from local.parts.cache import locked
from local.problem import Problem


def quiet(_: str) -> None:
    """Hears a line of progress."""


def one(cache: Path, text: str, *made_from: bytes, name: str = "some") -> Layer:
    return layers.layer(cache, name, "opt", made_from, lambda tree: fill(tree, text), quiet)


def fill(tree: Path, text: str) -> None:
    (tree / "file").write_text(text)


def content(layer: Layer, name: str) -> str:
    with tarfile.open(layer.file) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read().decode()


def test_a_layer_is_made_once_from_the_same_inputs(tmp_path: Path) -> None:
    first = one(tmp_path, "first", b"input")
    assert one(tmp_path, "second", b"input") == first
    assert content(first, "opt/file") == "first"
    assert one(tmp_path, "second", b"other input") != first
    assert one(tmp_path / "elsewhere", "first", b"input").digest == first.digest


def test_a_layer_cut_short_is_made_anew(tmp_path: Path) -> None:
    def interrupt(tree: Path) -> None:
        fill(tree, "half")
        raise KeyboardInterrupt

    with locked(tmp_path, quiet, 0), pytest.raises(KeyboardInterrupt):
        layers.layer(tmp_path, "some", "opt", [b"input"], interrupt, quiet)
    with locked(tmp_path, quiet, 0):
        assert content(one(tmp_path, "whole", b"input"), "opt/file") == "whole"


def test_old_versions_do_not_pile_up(tmp_path: Path) -> None:
    made = [one(tmp_path, "text", bytes([number])) for number in range(layers.KEPT)]
    for age, layer in enumerate(made):
        os.utime(layer.file.parent, (age, age))
    kept = one(tmp_path, "text", b"last", name="other")
    one(tmp_path, "text", b"last")
    assert [layer.file.exists() for layer in made] == [False, *[True] * (layers.KEPT - 1)]
    assert kept.file.exists()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a package; nothing is compiled."""
    package = tmp_path / "checkout" / "apps" / "shortlink"
    (package / "links" / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "links" / "model.py").write_text("STATE = 1\n")
    (package / "links" / "__pycache__" / "model.cpython-311.pyc").write_text("stale")
    (package / "py.typed").write_text("")
    monkeypatch.setattr(layers, "OWN", [package])
    monkeypatch.setattr(layers, "compile_all", lambda *_: None)
    return package


def test_the_checkouts_packages_are_in_their_layer_as_they_are_now(
    checkout: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base-1" / "tree"
    first = layers.own(tmp_path / "images", base, quiet)
    with tarfile.open(first.file) as tar:
        files = {entry.name.removeprefix(f"{layers.SITE}/") for entry in tar if entry.isreg()}
    assert files == {"shortlink/__init__.py", "shortlink/links/model.py", "shortlink/py.typed"}
    assert layers.own(tmp_path / "images", base, quiet) == first

    (checkout / "links" / "__pycache__" / "model.cpython-312.pyc").write_text("newer")
    assert layers.own(tmp_path / "images", base, quiet) == first
    (checkout / "links" / "model.py").write_text("STATE = 2\n")
    assert layers.own(tmp_path / "images", base, quiet).digest != first.digest


def test_another_base_compiles_anew(checkout: Path, tmp_path: Path) -> None:
    made = {layers.own(tmp_path, tmp_path / name / "tree", quiet).file for name in ("b-1", "b-2")}
    assert checkout.exists()
    assert len(made) == 2


def test_an_image_is_named_by_what_is_in_it(tmp_path: Path) -> None:
    stack = [one(tmp_path, "a", b"a"), one(tmp_path, "b", b"b")]
    run: dict[str, Any] = {"User": images.USER}
    image = images.archived(tmp_path, "shortlink", None, stack, run)
    tag = image.reference.removeprefix("registry.local/shortlink:")
    assert len(tag) == 16
    assert int(tag, 16)
    assert image.archive.is_file()
    assert images.archived(tmp_path, "shortlink", None, stack, run) == image
    assert images.archived(tmp_path, "shortlink", None, stack[:1], run) != image
    assert images.archived(tmp_path, "shortlink", None, stack, {"User": "0"}) != image
    pause = images.archived(tmp_path, "pause", "1", stack, run)
    assert pause.reference == "registry.local/pause:1"


def test_the_image_has_no_kubernetes_package_which_kopf_would_import() -> None:
    """It would cost each operator 40 MiB (kopf/_core/intents/piggybacking.py)."""
    locked_names = re.findall(r"^([\w-]+)==", layers.REQUIREMENTS.read_text(), re.MULTILINE)
    assert {"kopf", "aiohttp"} <= set(locked_names)
    assert {"kubernetes", "kubernetes-asyncio", "pykube-ng"} & set(locked_names) == set()


def test_without_uv_the_lock_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with locked(tmp_path, quiet, 0), pytest.raises(Problem, match="start this by make"):
        layers.installed(tmp_path, tmp_path / "base" / "tree", quiet)


def test_what_the_packages_scripts_would_have_done_is_done(tmp_path: Path) -> None:
    for name in ("etc/ssl/certs", "usr/share/ca-certificates/a", "usr/share/doc/x", "var/log"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("b", "a"):
        (tmp_path / f"usr/share/ca-certificates/a/{name}.crt").write_text(f"{name}\n\n")
    for name in ("copyright", "NEWS.gz"):
        (tmp_path / "usr/share/doc/x" / name).write_text("")
    layers.finish(tmp_path)
    assert (tmp_path / "etc/ssl/certs/ca-certificates.crt").read_text() == "a\nb\n"
    assert "nonroot:x:65532:65532:" in (tmp_path / "etc/passwd").read_text()
    assert [file.name for file in (tmp_path / "usr/share/doc/x").iterdir()] == ["copyright"]
    assert not (tmp_path / "var/log").exists()
