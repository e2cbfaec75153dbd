"""Layers and archives: the same content gives the same bytes, whatever the machine."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from local.image.pack import Layer, manifest, pack, write


def tree(folder: Path, files: dict[str, str], umask: int = 0o022, time: int = 1_000_000) -> Path:
    """Make a folder of files in the given order; a name that ends in `.sh` can be run."""
    before = os.umask(umask)
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if name.endswith(".sh"):
                path.chmod(0o777 & ~umask)
            os.utime(path, (time, time))
    finally:
        os.umask(before)
    return folder


FILES = {"b/two": "2", "a.sh": "1", "b/one": "1"}


def entries(layer: Layer) -> list[tarfile.TarInfo]:
    with tarfile.open(layer.file) as tar:
        return tar.getmembers()


def test_order_times_and_umask_do_not_show(tmp_path: Path) -> None:
    first = tree(tmp_path / "x", FILES)
    (first / "link").symlink_to("b/one")
    backwards = dict(reversed(FILES.items()))
    second = tree(tmp_path / "y", backwards, umask=0o077, time=2_000_000)
    (second / "link").symlink_to("b/one")
    one, other = (pack(each, tmp_path / f"{each.name}.gz", "opt") for each in (first, second))
    assert (one.digest, one.size, one.diff_id) == (other.digest, other.size, other.diff_id)
    assert one.file.read_bytes() == other.file.read_bytes()


def test_content_names_and_the_right_to_run_do_show(tmp_path: Path) -> None:
    trees = [
        tree(tmp_path / "1", FILES),
        tree(tmp_path / "2", FILES | {"a.sh": "2"}),
        tree(tmp_path / "3", FILES | {"c": ""}),
        tree(tmp_path / "4", FILES),
        tree(tmp_path / "5", FILES),
    ]
    (trees[3] / "b/one").chmod(0o755)
    layers = [pack(each, tmp_path / f"{each.name}.gz") for each in trees]
    assert len({layer.digest for layer in layers}) == 4
    assert layers[0].digest == layers[4].digest


def test_a_layer_says_what_it_is(tmp_path: Path) -> None:
    source = tree(tmp_path / "x", FILES)
    (source / "tmp").mkdir()
    (source / "tmp").chmod(0o1777)
    os.mkfifo(source / "pipe")
    layer = pack(source, tmp_path / "x.gz", "opt")
    content = layer.file.read_bytes()
    assert layer.digest == hashlib.sha256(content).hexdigest()
    assert layer.size == len(content)
    assert layer.diff_id == hashlib.sha256(gzip.decompress(content)).hexdigest()
    assert content[4:8] == bytes(4)  # gzip's own time
    assert content[3] == 0  # and no name (RFC 1952)
    assert [(entry.name, entry.mode) for entry in entries(layer)] == [
        ("opt/a.sh", 0o755),
        ("opt/b", 0o755),
        ("opt/b/one", 0o644),
        ("opt/b/two", 0o644),
        ("opt/tmp", 0o1777),
    ]
    assert {(entry.uid, entry.gid, entry.uname, entry.mtime) for entry in entries(layer)} == {
        (0, 0, "", 0)
    }


@pytest.fixture
def archive(tmp_path: Path) -> dict[str, bytes]:
    """The files of an archive of two layers, checked to be the same bytes when written again."""
    layers = [
        pack(tree(tmp_path / name, {name: name}), tmp_path / f"{name}.gz") for name in ("x", "y")
    ]
    image = manifest(layers, "amd64", {"User": "65532:65532"})
    for name in ("1.tar", "2.tar"):
        write(image, "registry.local/shortlink:tag", tmp_path / name)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    assert not list(tmp_path.glob(".making-*"))
    with tarfile.open(tmp_path / "1.tar") as tar:
        return {
            entry.name: file.read() for entry in tar if (file := tar.extractfile(entry)) is not None
        }


def test_every_digest_in_an_archive_is_true(archive: dict[str, bytes]) -> None:
    index = json.loads(archive["index.json"])
    (entry,) = index["manifests"]
    found = json.loads(archive[f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}"])
    config = json.loads(archive[f"blobs/sha256/{found['config']['digest'][7:]}"])
    for described in (entry, found["config"], *found["layers"]):
        content = archive[f"blobs/sha256/{described['digest'][7:]}"]
        assert hashlib.sha256(content).hexdigest() == described["digest"][7:]
        assert len(content) == described["size"]
    plain = [
        gzip.decompress(archive[f"blobs/sha256/{layer['digest'][7:]}"]) for layer in found["layers"]
    ]
    assert config["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(each).hexdigest()}" for each in plain
    ]
    for each, name in zip(plain, ("x", "y"), strict=True):
        with tarfile.open(fileobj=io.BytesIO(each)) as tar:
            assert tar.getnames() == [name]
    assert config["config"] == {"User": "65532:65532"}


def test_an_archive_names_its_image_for_containerd(archive: dict[str, bytes]) -> None:
    (entry,) = json.loads(archive["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "registry.local/shortlink:tag"
    assert json.loads(archive["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
