"""`python -m local.image`: build the images, and say what they are called and where they are."""

import signal
import sys
import time

from local.image import build
from local.problem import Problem


def tell(line: str) -> None:
    """Print a line of progress at once."""
    print(f"image: {line}", flush=True)


def main() -> None:
    """Build; a Problem is one line on standard error and exit status 1."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what we started, like Ctrl-C
    began = time.monotonic()
    try:
        images = build(tell)
    except (Problem, OSError) as problem:
        sys.exit(f"image: {problem}")
    except KeyboardInterrupt:
        sys.exit("\nimage: stopped; the next run goes on with it")
    for image in (images.services, images.pause):
        tell(f"{image.reference}, {image.archive.stat().st_size / 1e6:.1f} MB, {image.archive}")
    tell(f"built in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
