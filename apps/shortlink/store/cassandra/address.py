"""Where a Cassandra store is: `cassandra://DC=HOST[,DC=HOST...]/KEYSPACE`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shortlink.store.port import StoreUnsuitable

SCHEME = "cassandra://"

_DATACENTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
# Longer or quoted names are Cassandra's own business; ours is put into statements as it is.
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")


@dataclass(frozen=True, slots=True)
class Address:
    """`datacenters`: the hosts to begin with in each, in the order in which they were named."""

    datacenters: Mapping[str, tuple[str, ...]]
    keyspace: str


def parse_address(text: str) -> Address:
    """The address that `text` spells. A data centre with several hosts is named once for each.

    Raises StoreUnsuitable, which never repeats `text`: somebody may have put a password in it.
    """
    places, slash, keyspace = text.removeprefix(SCHEME).partition("/")
    if not text.startswith(SCHEME) or not slash or not _KEYSPACE.fullmatch(keyspace):
        raise _malformed("it ends in /KEYSPACE, of a-z, 0-9 and _, beginning with a letter")
    hosts: dict[str, tuple[str, ...]] = {}
    for place in places.split(","):
        datacenter, _, host = place.partition("=")
        if not _DATACENTER.fullmatch(datacenter) or not _HOST.fullmatch(host):
            raise _malformed("each place is DC=HOST, and all are reached at port 9042")
        hosts[datacenter] = (*hosts.get(datacenter, ()), host)
    return Address(hosts, keyspace)


def _malformed(rule: str) -> StoreUnsuitable:
    return StoreUnsuitable(
        f"the address is not {SCHEME}DC=HOST[,DC=HOST...]/KEYSPACE: {rule}. For example"
        f" {SCHEME}us-east-1=10.77.1.1,eu-west-1=10.77.2.1/links"
    )
