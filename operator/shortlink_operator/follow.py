"""Objects from a folder of manifests: the embedded platform's API server (DESIGN 8)."""

from pathlib import Path

import structlog

from shortlink.clock import Clock
from shortlink.links.policy import SECOND
from shortlink_operator.apply import Reconciler
from shortlink_operator.folder import ManifestFolder, Scan
from shortlink_operator.plan import Desired

log = structlog.get_logger()

RELEASE_FILE = ".allow-mass-delete"
"""A file of this name in the folder lets held deletions go, once: a namespace on each line."""

_FULL_PASS = 10 * SECOND


class Follower:
    """Reconciles what `folder` holds; `run` is called again and again."""

    def __init__(self, folder: ManifestFolder, reconciler: Reconciler, clock: Clock) -> None:
        self.scan: Scan | None = None
        self._folder = folder
        self._reconciler = reconciler
        self._clock = clock
        self._passed_at: int | None = None

    async def run(self) -> None:
        """One look at the folder, and a pass when something changed or 10 s have gone by.

        An object counts as gone only when two looks in a row miss it, for editors write files
        by removing, emptying and renaming them. Raises StoreError; the next run goes on.
        """
        last, scan = self.scan, self._folder.scan()
        self.scan = scan
        released = self._released()
        unreadable = {key for one in scan.unreadable for key in one.keys or ()}
        vanished = frozenset(last.objects if last else ()) - scan.objects.keys()
        now = self._clock.steady()
        due = self._passed_at is None or now - self._passed_at >= _FULL_PASS
        if scan == last and not released and not due:
            return
        self._passed_at = None  # until this pass has ended well
        await self._reconciler.run(
            Desired(
                objects=scan.objects,
                kept=vanished | unreadable,
                unsure=any(one.keys is None for one in scan.unreadable),
                missing=scan.missing,
                released=released,
            )
        )
        self._passed_at = None if vanished else now
        if released and not vanished:
            self._release_file.unlink(missing_ok=True)
            log.warning("mass_delete_released", namespaces=sorted(released))

    @property
    def _release_file(self) -> Path:
        return self._folder.path / RELEASE_FILE

    def _released(self) -> frozenset[str]:
        try:
            return frozenset(self._release_file.read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return frozenset()
