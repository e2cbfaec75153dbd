"""Tests on the local platform as it runs (`make up`), and on scratch clusters of the same parts:
run by `make test-real`.

They are collected only when a path within this folder is named, so that `make test` needs
nothing but Python. One that breaks something mends it again.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from local.regions import faults
from tests.apiserver import ScratchCluster, scratch_cluster
from tests.drills.site import Site, User, local_site, until

HERE = Path(__file__).parent

NOTICED = 90.0
"""Seconds in which every process notices, on a busy machine, that a store is back."""

CONNECTIONS = 10
"""So many that one of them reaches each of a service's two pods, but for a chance of 1 in 512."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether nobody asked for these tests."""
    named = (Path(argument.partition("::")[0]).absolute() for argument in config.args)
    return None if any(path.is_relative_to(HERE) for path in named) else True


@pytest.fixture(scope="session")
def site() -> Site:
    """The platform. Ends the whole run when it is not up."""
    try:
        return local_site()
    except SystemExit as unready:
        pytest.exit(str(unready), returncode=4)


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchCluster]:
    """A cluster for a module's tests, which use namespaces of their own in it."""
    with scratch_cluster() as cluster:
        yield cluster


@pytest.fixture
async def users(site: Site) -> AsyncIterator[list[User]]:
    """A user in each region, in the order of the regions."""
    async with site.users() as everybody:
        yield everybody


@pytest.fixture
def mended(site: Site) -> Iterator[None]:
    """Whatever the test breaks is whole again after it, and everybody has noticed."""
    yield
    faults.heal()
    asyncio.run(_whole(site))


async def _whole(site: Site) -> None:
    async with site.users() as everybody:
        for user in everybody:
            what = f"every API process of {user.region.name} to make links"
            await until(partial(_makes_links, user), what, seconds=NOTICED, every=0.5)


async def _makes_links(user: User) -> bool:
    for _ in range(CONNECTIONS):
        if (await user.create("https://real.example/whole", fresh=True)).status != 201:
            return False
    return True
