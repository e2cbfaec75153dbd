"""The keyspace and tables (store/cassandra/schema.py)."""

import re

import pytest

from shortlink.store.cassandra.schema import MIGRATIONS, TABLES, keyspace_statement


def test_every_data_centre_gets_as_many_replicas() -> None:
    assert keyspace_statement("links", {"us-east-1": 3, "eu-west-1": 3}) == (
        "CREATE KEYSPACE IF NOT EXISTS links WITH replication = {'class':"
        " 'NetworkTopologyStrategy', 'eu-west-1': 3, 'us-east-1': 3}"
    )


@pytest.mark.parametrize("regions", [{}, {"us-east-1": 3, "eu-west-1": 1}])
def test_unequal_replicas_are_refused(regions: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="same number"):
        keyspace_statement("links", regions)


def test_tables_are_named_with_their_keyspace_and_may_be_made_again() -> None:
    for statement in TABLES:
        assert re.match(r"CREATE TABLE IF NOT EXISTS \{keyspace\}\.\w+ \(", statement)


def test_steps_name_the_keyspace_too_and_may_be_run_again_S6() -> None:
    for statement in MIGRATIONS:
        assert re.match(r"ALTER TABLE \{keyspace\}\.\w+ ADD IF NOT EXISTS \(", statement)


def test_nothing_expires_by_itself_L4() -> None:
    assert not [statement for statement in TABLES if "time_to_live" in statement]
