"""The keyspace and the tables of links and claims, as statements to run in this order."""

from collections.abc import Mapping, Sequence

TABLES: Sequence[str] = (
    # LOCAL_SERIAL in the data centre of the slot's owner, for ever. Its rows never change.
    """CREATE TABLE IF NOT EXISTS {keyspace}.births (
        code text PRIMARY KEY, link text, events list<text>)""",
    # SERIAL, for ever. `generation` and `version` are conditions; `events` wait to be published.
    """CREATE TABLE IF NOT EXISTS {keyspace}.links (
        code text PRIMARY KEY, generation bigint, version bigint, link text,
        events list<text>)""",
    # SERIAL, for ever. In buckets, so that claims are listed without a scan of the table.
    """CREATE TABLE IF NOT EXISTS {keyspace}.claims (
        bucket int, key text, code text, generation bigint, creation text,
        PRIMARY KEY (bucket, key))""",
    # SERIAL, for ever. What is chosen once for the whole installation.
    """CREATE TABLE IF NOT EXISTS {keyspace}.installation (name text PRIMARY KEY, value blob)""",
)
"""Run each with `{keyspace}` filled in. A table has one serial level: a commit reaches other data
centres as a plain write without its ballot, and a later change at another level can lose to it.
Nothing expires by itself: the lifecycle alone removes a link. These are version 1."""

MIGRATIONS: Sequence[str] = (
    # What a claim of version 1 has no value for is as by default.
    """ALTER TABLE {keyspace}.claims ADD IF NOT EXISTS (cluster text, uid text, retain boolean)""",
)
"""Step n brings version n to n + 1. Each may be run again, for it may have been cut off before its
version was put on record; and processes of version n go on meanwhile."""

VERSION = 1 + len(MIGRATIONS)
"""Of the tables as a whole; a process refuses a keyspace of a newer one."""


def keyspace_statement(keyspace: str, regions: Mapping[str, int]) -> str:
    """`regions` gives each data centre's replicas.

    Raises ValueError when the numbers differ, for only when they are equal is a majority of
    replicas a majority of data centres.
    """
    if not regions or len(set(regions.values())) != 1:
        raise ValueError(f"give every data centre the same number of replicas: {dict(regions)}")
    replicas = ", ".join(f"'{region}': {number}" for region, number in sorted(regions.items()))
    return (
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication ="
        f" {{'class': 'NetworkTopologyStrategy', {replicas}}}"
    )
