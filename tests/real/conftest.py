"""Tests on the local platform as it runs (`make up`): run by `make test-real`.

They are collected only when a path within this folder is named, so that `make test` needs
nothing but Python. One that breaks something mends it again.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from local.regions import faults
from tests.drills.site import Site, User, local_site

HERE = Path(__file__).parent


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


@pytest.fixture
async def users(site: Site) -> AsyncIterator[list[User]]:
    """A user in each region, in the order of the regions."""
    async with site.users() as everybody:
        yield everybody


@pytest.fixture
def mended(site: Site) -> Iterator[None]:
    """Whatever the test breaks is whole again after it."""
    yield
    faults.heal()
