"""Brings the regions up, and heals them: what runs well stays, all else is started anew."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from local import stacks
from local.image import build
from local.parts import Parts, find
from local.problem import Problem
from local.regions import cgroups, cluster, keys, network, node, owner, pki, rbac
from local.regions.down import down
from local.regions.inventory import components
from local.regions.layout import KUBECONFIG, REGIONS, STATE, Region
from local.regions.processes import Say


def up(say: Say) -> Parts:
    """Everything running and well, and the platform deployed. Hold the lock. Raises Problem."""
    parts = find()
    images = build(say)
    if _is_left_over():
        say("what is left of a platform that no longer runs is removed")
        down(say)
    owner.claim()
    archives = {image.reference: image.archive for image in (images.pause, images.services)}
    regions_up(parts, archives, say)
    clusters = {each.name: pki.folder(each) / f"{pki.DEPLOYER}.kubeconfig" for each in REGIONS}
    stacks.deploy(
        parts, stacks.FOLDER, clusters, images.services.reference, keys.hashed(STATE), say
    )
    services_up(say)
    return parts


def services_up(say: Say) -> None:
    """Wait until the deployed services of all regions answer. Raises Problem."""
    with _threads() as pool:
        _all([pool.submit(cluster.await_deployments, region) for region in REGIONS])
    say("the services answer in all regions")


def _is_left_over() -> bool:
    """Whether there is something that no living platform of this checkout holds."""
    if owner.owner() == owner.this():
        return False
    networks = {region.namespace for region in REGIONS} & set(network.namespaces())
    return bool(networks or cgroups.left() or any(region.folder.exists() for region in REGIONS))


def stopwatch() -> Say:
    """Prints lines with the seconds since this call before them."""
    began = time.monotonic()

    def say(line: str) -> None:
        # One write: several threads say something.
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {line}\n")
        sys.stdout.flush()

    return say


def regions_up(parts: Parts, archives: Mapping[str, Path], say: Say) -> None:
    """All regions running and well, in parallel. Raises Problem with all that went wrong.

    `archives` has the OCI archive of each image that the nodes must have, by its name.
    """
    network.lay()
    for region in REGIONS:
        pki.make(region, datetime.now(UTC))
    pki.write_private(KUBECONFIG, pki.kubeconfig([(r, pki.ADMIN, r.context) for r in REGIONS]))
    with _threads() as pool:
        work = []
        for region in REGIONS:
            found = components(region, parts)
            stores = [found.pop("cassandra"), found.pop("redis")]
            work += [pool.submit(store.ensure, say) for store in stores]
            work.append(pool.submit(_cluster_up, region, parts, archives, say, pool))
        _all(work)


def _cluster_up(
    region: Region,
    parts: Parts,
    archives: Mapping[str, Path],
    say: Say,
    pool: ThreadPoolExecutor,
) -> None:
    found = components(region, parts)
    containers = pool.submit(_containers_up, region, parts, archives, say)
    for name in ("etcd", "apiserver"):
        found[name].ensure(say)
    rbac.apply(region, parts)
    for name in ("controller-manager", "scheduler"):
        found[name].ensure(say)
    containers.result()
    for name in ("kubelet", "proxy"):
        found[name].ensure(say)
    cluster.await_node(region.node)
    say(f"{region.name} {region.node.name}: ready")


def _containers_up(region: Region, parts: Parts, archives: Mapping[str, Path], say: Say) -> None:
    node.make_groups(region.node)
    components(region, parts)["containerd"].ensure(say)
    for name, archive in archives.items():
        node.load_image(region.node, parts, name, archive)


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Threads that nobody waits for once the block is left, as Ctrl-C does."""
    # More than there are things to start: those that wait for others hold a thread meanwhile.
    pool = ThreadPoolExecutor(32)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _all(work: Iterable[Future[None]]) -> None:
    """Wait for all of it, then raise what went wrong, together."""
    wrong = [str(error) for done in work if (error := _error(done)) is not None]
    if wrong:
        raise Problem("\n".join(wrong))


def _error(done: Future[None]) -> Problem | None:
    try:
        done.result()
    except Problem as problem:
        return problem
    return None
