"""The images that the local regions run, built from the checkout without a registry.

    images = build()
    images.services.archive    # OCI archive: `ctr -n k8s.io images import ARCHIVE`
    images.services.reference  # registry.local/shortlink:<16 hex digits of the image's digest>
    images.pause               # the same for the sandbox image, registry.local/pause:1

The same inputs give the same bytes and so the same reference. Layers and archives are kept in the
parts' cache, under images/: after a change of the checkout's own code only its layer is built.
"""

from local.image.images import Image, Images, build

__all__ = ["Image", "Images", "build"]
