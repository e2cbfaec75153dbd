"""Both images from their layers."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local.image import layers
from local.image.pack import Layer, manifest, write
from local.parts import find
from local.parts.cache import Tell, locked
from local.problem import Problem

USER = "65532:65532"
WAIT = 1800.0  # seconds for another build to end


@dataclass(frozen=True)
class Image:
    """An OCI archive, and the name that it is imported under."""

    archive: Path
    reference: str


@dataclass(frozen=True)
class Images:
    """What the regions run."""

    services: Image
    pause: Image


def build(tell: Tell = print) -> Images:
    """Build what is not in the cache yet. Raises Problem."""
    images = find().cache / "images"
    machine = platform.machine()
    if machine not in layers.MACHINES:
        raise Problem(f"no image is built for {machine}, only for {', '.join(layers.MACHINES)}")
    with locked(images, tell, WAIT):
        base = layers.base(images, tell)
        root = base.file.parent / "tree"
        stack = [base, layers.installed(images, root, tell), layers.own(images, root, tell)]
        run = {
            "User": USER,
            "WorkingDir": "/",
            "Entrypoint": [f"python{layers.PYTHON}", "-m", "shortlink"],
            "Env": [
                "PATH=/usr/bin:/bin",
                "LANG=C.UTF-8",
                "PYTHONUNBUFFERED=1",
                "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
            ],
        }
        services = archived(images, "shortlink", None, stack, run)
        held = {"User": USER, "Entrypoint": ["/pause"]}
        pause = archived(images, "pause", "1", [layers.sandbox(images, tell)], held)
    return Images(services, pause)


def archived(
    images: Path, name: str, tag: str | None, stack: list[Layer], run: Mapping[str, object]
) -> Image:
    """Return the image of some layers, written if it is not in the cache; tagged by its digest."""
    image = manifest(stack, layers.MACHINES[platform.machine()], run)
    short = image.digest[:16]
    reference = f"registry.local/{name}:{tag or short}"
    archive = images / f"{name}-{short}.tar"
    if not archive.is_file():
        write(image, reference, archive)
        layers.prune(images, f"{name}-*.tar")
    return Image(archive, reference)
