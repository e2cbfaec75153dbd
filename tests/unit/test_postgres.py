"""What is PostgreSQL's own, as far as it needs no server; the rest is in tests/real."""

from pathlib import Path
from traceback import format_exception

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from shortlink.store.port import StoreError, StoreFull, StoreUnavailable, StoreUnsuitable
from shortlink.store.postgres import Postgres
from shortlink.store.sql import open_postgres_store

SECRET = "s3cret"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@db.example:54x32/links",
        f"postgresql://ann:x@{SECRET}@db.example/links",
        f"mysql://ann:{SECRET}@db.example/links",
        f"ann:{SECRET}@db.example/links",
        "",
    ],
)
def test_what_is_no_postgresql_url_is_refused_without_its_password_P1(url: str) -> None:
    with pytest.raises(StoreUnsuitable, match="write it as postgresql://user:") as refused:
        open_postgres_store(url)
    assert SECRET not in "".join(format_exception(refused.value))


def test_an_option_that_there_is_not_is_refused_without_its_value_P1(tmp_path: Path) -> None:
    with pytest.raises(StoreUnsuitable, match=r"links .*sslmood") as refused:
        open_postgres_store(f"postgresql://ann@/links?host={tmp_path}&sslmood={SECRET}")
    assert SECRET not in str(refused.value)


def test_a_server_that_is_not_there_is_unavailable_and_no_message_has_a_password_P1(
    tmp_path: Path,
) -> None:
    url = f"postgres://ann:{SECRET}@/links?host={tmp_path}&sslpassword={SECRET}"
    with pytest.raises(StoreUnavailable, match=r"postgresql://ann:\*\*\*@/links did not") as error:
        open_postgres_store(url)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("state", "kind", "says"),
    [
        ("53100", StoreFull, "free space on its disk"),
        ("57014", StoreUnavailable, "took too long"),
        ("55P03", StoreUnavailable, "took too long"),
        ("25006", StoreUnavailable, "can only be read .* name the primary"),
        ("57P03", StoreUnavailable, "did not answer .* check the server"),
        ("40P01", StoreUnavailable, "did not answer"),
    ],
)
def test_each_error_says_what_to_do(state: str, kind: type[StoreError], says: str) -> None:
    database = Postgres("postgresql://db.example/links", 1)
    raised = psycopg.errors.lookup(state)("no\n\tgood")
    explained = database.explain(DBAPIError("INSERT", (), raised))
    assert type(explained) is kind
    with pytest.raises(kind, match=says):
        raise explained
    database.dispose()


@pytest.mark.parametrize(
    ("state", "lost", "passing"),
    [
        ("40001", False, True),
        ("40P01", False, True),
        ("57P01", True, True),
        ("53100", False, False),
        ("57014", False, False),
    ],
)
def test_what_passes_by_itself_is_told_apart(state: str, lost: bool, passing: bool) -> None:
    database = Postgres("postgresql://db.example/links", 1)
    error = DBAPIError("INSERT", (), psycopg.errors.lookup(state)(), connection_invalidated=lost)
    assert database.passing(error) is passing
    database.dispose()
