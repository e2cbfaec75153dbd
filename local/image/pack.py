"""Folders as image layers, layers as an OCI archive: the same content gives the same bytes.

Sources: the OCI image layout and image specification 1.1.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from local.parts.cache import MAKING

MTIME = 0
"""Every file's, in seconds since 1970: when something was built is no part of what it is."""
OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class Layer:
    """A packed layer: its file, that file's digest and size, and the digest of what is in it."""

    file: Path
    digest: str
    size: int
    diff_id: str


class Hashed(io.RawIOBase):
    """A stream that is told what goes through it."""

    def __init__(self, onward: BinaryIO | gzip.GzipFile) -> None:
        self.onward = onward
        self.sha256 = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        """It is only written to."""
        return True

    def write(self, data: Any) -> int:
        """Pass bytes on."""
        self.sha256.update(data)
        self.size += len(data)
        self.onward.write(data)
        return len(data)


def pack(tree: Path, target: Path, at: str = ".") -> Layer:
    """Pack a folder's content as a layer in which it lies in the folder `at`.

    Entries are sorted and belong to root; of their modes, only whether they can be run (and the
    sticky bit) is kept, so that no umask shows.
    """
    with target.open("wb") as file:
        packed = Hashed(file)
        with gzip.GzipFile(
            filename="", fileobj=packed, mode="wb", compresslevel=6, mtime=MTIME
        ) as squeezed:
            plain = Hashed(squeezed)
            with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for path in sorted(tree.rglob("*")):
                    if path.is_symlink() or path.is_dir() or path.is_file():  # no devices
                        info = tar.gettarinfo(path, str(Path(at, path.relative_to(tree))))
                        add(tar, info, path)
    return Layer(target, packed.sha256.hexdigest(), packed.size, plain.sha256.hexdigest())


def add(tar: tarfile.TarFile, info: tarfile.TarInfo, content: Path | bytes) -> None:
    """Add one entry with nothing of this machine in it."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = MTIME
    if info.issym():
        info.mode = 0o777
    else:
        runs = info.isdir() or info.mode & 0o100
        info.mode = 0o1777 if info.mode & 0o1000 else 0o755 if runs else 0o644
    if not info.isreg():
        tar.addfile(info)
    elif isinstance(content, bytes):
        tar.addfile(info, io.BytesIO(content))
    else:
        with content.open("rb") as file:
            tar.addfile(info, file)


@dataclass(frozen=True)
class Manifest:
    """An image without its layers' bytes."""

    layers: Sequence[Layer]
    config: bytes
    text: bytes

    @property
    def digest(self) -> str:
        """What the image is known by."""
        return hashlib.sha256(self.text).hexdigest()


def manifest(layers: Sequence[Layer], architecture: str, run: Mapping[str, object]) -> Manifest:
    """Describe an image: its layers, and how a container of it is run (the `config` object)."""
    config = dumped(
        {
            "architecture": architecture,
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each.diff_id}" for each in layers]},
        }
    )
    text = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": described(f"{OCI}.config.v1+json", config),
        "layers": [
            {
                "mediaType": f"{OCI}.layer.v1.tar+gzip",
                "digest": f"sha256:{each.digest}",
                "size": each.size,
            }
            for each in layers
        ],
    }
    return Manifest(layers, config, dumped(text))


def write(image: Manifest, reference: str, target: Path) -> None:
    """Write an archive that `ctr images import` takes and names `reference`; whole or not."""
    names = {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
    }
    entry = described(f"{OCI}.manifest.v1+json", image.text) | {"annotations": names}
    small = {
        "oci-layout": dumped({"imageLayoutVersion": "1.0.0"}),
        "index.json": dumped(
            {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [entry]}
        ),
        blob(image.digest): image.text,
        blob(hashlib.sha256(image.config).hexdigest()): image.config,
    }
    half = target.with_name(f"{MAKING}{target.name}")
    with tarfile.open(half, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in small.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            add(tar, info, content)
        for layer in image.layers:
            info = tarfile.TarInfo(blob(layer.digest))
            info.size = layer.size
            add(tar, info, layer.file)
    half.rename(target)


def blob(digest: str) -> str:
    """Name the file of a digest in an image layout."""
    return f"blobs/sha256/{digest}"


def described(media_type: str, content: bytes) -> dict[str, object]:
    """Return the descriptor of some bytes."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def dumped(value: object) -> bytes:
    """Write JSON, one way only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
