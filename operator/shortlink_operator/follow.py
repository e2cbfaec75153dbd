"""Objects from a folder of manifests: the embedded platform's API server."""

import asyncio

import structlog

from shortlink.clock import Clock
from shortlink.links.policy import SECOND
from shortlink_operator.apply import Reconciler
from shortlink_operator.desired import Desired
from shortlink_operator.folder import ManifestFolder, Scan, read_regular
from shortlink_operator.plan import HELD

log = structlog.get_logger()

RELEASE_FILE = ".allow-mass-delete"
"""A file of this name in the folder lets held deletions go, once: a namespace on each line.

It is removed when it did; names of which nothing is held wait with it."""

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
        by removing, emptying and renaming them; so the first look of a process changes nothing.
        Raises StoreError; and OSError, once the pass has ended, when a release can't be read
        or removed and so lets nothing go. The next run goes on.
        """
        last = self.scan
        self.scan = scan = await asyncio.to_thread(self._folder.scan)
        for one in set(scan.unreadable) - set(last.unreadable if last else ()):
            log.warning("manifest unreadable", where=one.where, message=one.message)
        if last is None:
            return
        unreadable = {key for one in scan.unreadable for key in one.keys or ()}
        unsure = any(one.keys is None for one in scan.unreadable)
        vanished = last.objects.keys() - scan.objects.keys()
        released, trouble = frozenset[str](), None
        if not unsure and not vanished:
            try:
                released = self._release()
            except OSError as error:
                trouble = error
        now = self._clock.steady()
        due = self._passed_at is None or now - self._passed_at >= _FULL_PASS
        if scan != last or released or due:
            self._passed_at = None  # until this pass has ended well
            await self._reconciler.run(
                Desired(
                    objects=scan.objects,
                    kept=frozenset(vanished | unreadable),
                    unsure=unsure,
                    missing=scan.missing,
                    released=released,
                )
            )
            self._passed_at = None if vanished else now
        if trouble is not None:
            raise trouble

    def _held(self) -> frozenset[str]:
        """The namespaces of which deletions are held."""
        outcomes = self._reconciler.outcomes.items()
        return frozenset(key.partition("/")[0] for key, one in outcomes if one.reason == HELD)

    def _release(self) -> frozenset[str]:
        """The namespaces that a person lets go, if anything of one is held: it works once."""
        path = self._folder.path / RELEASE_FILE
        try:
            text = read_regular(str(path))[0]
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()
        named = frozenset(text.decode(errors="replace").split())
        if released := named & self._held():
            # Before it works: what can't be removed would let go of whatever goes later, too.
            path.unlink()
            log.warning("mass deletion released", namespaces=sorted(released))
        return released
