"""How a Cassandra store is named, and that a wrong name is refused without being repeated."""

import pytest

from shortlink.clock import SYSTEM_CLOCK
from shortlink.store.cassandra.address import Address, parse_address
from shortlink.store.opening import open_store, prepare
from shortlink.store.port import StoreUnsuitable

THREE = "cassandra://us-east-1=10.77.1.1,eu-west-1=10.77.2.1,ap-southeast-1=10.77.3.1/links"


def test_an_address_names_data_centres_and_a_keyspace() -> None:
    assert parse_address(THREE) == Address(
        {
            "us-east-1": ("10.77.1.1",),
            "eu-west-1": ("10.77.2.1",),
            "ap-southeast-1": ("10.77.3.1",),
        },
        "links",
    )


def test_a_data_centre_is_named_once_for_each_of_its_hosts() -> None:
    assert parse_address("cassandra://a=h1,a=h2,b=h3/k").datacenters == {
        "a": ("h1", "h2"),
        "b": ("h3",),
    }


@pytest.mark.parametrize(
    "text",
    [
        "cassandra://",
        "cassandra://a=b",
        "cassandra://a=b/",
        "cassandra:///links",
        "cassandra://h1,h2/links",
        "cassandra://a=b/links;DROP",
        "cassandra://a=b/Links",
        "cassandra://user:secret@a=b/links",
        "cassandra://a=user:secret@h/links",
        "cassandra://a=b:9043/links",
    ],
)
def test_a_malformed_address_is_refused_and_not_repeated_A2(text: str) -> None:
    with pytest.raises(StoreUnsuitable, match="DC=HOST") as refused:
        parse_address(text)
    assert "secret" not in str(refused.value)


async def test_an_address_of_no_store_we_know_is_refused() -> None:
    for call in (
        open_store("mysql://root:secret@db/links", None, SYSTEM_CLOCK),
        prepare("mysql://root:secret@db/links", None, SYSTEM_CLOCK, None),
    ):
        with pytest.raises(StoreUnsuitable, match="cassandra://") as refused:
            await call
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("region", [None, "", "mars-1"])
async def test_a_region_that_is_no_data_centre_is_refused(region: str | None) -> None:
    with pytest.raises(StoreUnsuitable, match="SHORTLINK_REGION"):
        await open_store(THREE, region, SYSTEM_CLOCK)
