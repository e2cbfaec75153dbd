"""The services' settings: what is wrong is told by variable, in one line, without secrets (T1)."""

from pathlib import Path

import pytest

from shortlink.settings import (
    WrongSetting,
    read_api_settings,
    read_operator_settings,
    read_settings,
)
from shortlink.store.cassandra.address import parse_address

CASSANDRA = "cassandra://us-east-1=10.77.1.1,us-east-1=10.77.1.2,eu-west-1=10.77.2.1/links"
GOOD = {
    "SHORTLINK_STORE": CASSANDRA,
    "SHORTLINK_CACHE": "rediss://user:hunter2@10.77.1.1:6379",
    "SHORTLINK_REGION": "us-east-1",
    "SHORTLINK_BASE_URL": "https://s.example/",
    "SHORTLINK_OWN_HOSTS": "www.s.example, 10.77.1.1:30080",
    "SHORTLINK_KEYS_FILE": "/etc/shortlink/keys.json",
    "SHORTLINK_DRAIN": "2.5",
    "SHORTLINK_AUDIT_LOG": "/audit.jsonl",
    "SHORTLINK_OPERATOR_NAME": "operator-0",
    "SHORTLINK_NAMESPACE": "shortlink",
    "SHORTLINK_SWEEP_SECONDS": "60",
}


def test_what_is_set_is_read() -> None:
    settings, api = read_settings(GOOD), read_api_settings(GOOD)
    assert (settings.store, settings.cache) == (CASSANDRA, GOOD["SHORTLINK_CACHE"])
    assert (settings.region, settings.drain) == ("us-east-1", 2.5)
    assert api.base_url == "https://s.example"
    assert api.own_hosts == {"s.example", "www.s.example", "10.77.1.1:30080"}
    assert api.keys_file == Path("/etc/shortlink/keys.json")


def test_what_may_be_left_out_has_its_default() -> None:
    settings = read_settings({"SHORTLINK_STORE": "sqlite:////data/links.db", "SHORTLINK_CACHE": ""})
    assert (settings.cache, settings.region, settings.drain) == (None, None, 5)
    api = read_api_settings(GOOD | {"SHORTLINK_OWN_HOSTS": ""})
    assert api.own_hosts == {"s.example"}


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SHORTLINK_STORE", None, "is not set; set it to sqlite:///PATH, postgresql://"),
        ("SHORTLINK_STORE", "", "is not set"),
        ("SHORTLINK_STORE", "mysql://root:hunter2@db/links", "set it to sqlite:///PATH"),
        ("SHORTLINK_STORE", "hunter2", "is not the address of a store"),
        ("SHORTLINK_STORE", "sqlite:///", "is not the address of a store"),
        ("SHORTLINK_STORE", "sqlite://links.db", "is not the address of a store"),
        ("SHORTLINK_REGION", None, "is not set, and Cassandra needs it"),
        ("SHORTLINK_REGION", "US East", "is 'US East'; set it to a name of a-z, 0-9 and hyphen"),
        ("SHORTLINK_CACHE", "10.77.1.1:6379", "set it to redis://HOST:PORT"),
        ("SHORTLINK_CACHE", "redis://:hunter2@", "set it to redis://HOST:PORT"),
        ("SHORTLINK_CACHE", "redis://:hunter2@host:65536", "set it to redis://HOST:PORT"),
        ("SHORTLINK_CACHE", "http://host:6379", "set it to redis://HOST:PORT"),
        ("SHORTLINK_DRAIN", "soon", "is 'soon'; set it to seconds, 0 to 300"),
        ("SHORTLINK_DRAIN", "-1", "set it to seconds"),
        ("SHORTLINK_DRAIN", "nan", "set it to seconds"),
        ("SHORTLINK_DRAIN", "inf", "set it to seconds"),
    ],
)
def test_what_is_wrong_for_every_service_is_named(
    variable: str, value: str | None, told: str
) -> None:
    environ = {name: kept for name, kept in (GOOD | {variable: value}).items() if kept is not None}
    with pytest.raises(WrongSetting) as wrong:
        read_settings(environ)
    assert str(wrong.value).startswith(f"{variable} ")
    assert told in str(wrong.value)
    assert "hunter2" not in str(wrong.value)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SHORTLINK_BASE_URL", "", "is not set; set it to what short links begin with"),
        ("SHORTLINK_BASE_URL", "s.example", "is not http:// or https:// and a host"),
        ("SHORTLINK_BASE_URL", "ftp://s.example", "is not http://"),
        ("SHORTLINK_BASE_URL", "https://s.example/x", "without path, user or query"),
        ("SHORTLINK_BASE_URL", "https://ann:hunter2@s.example", "without path, user or query"),
        ("SHORTLINK_BASE_URL", "https://S.example", "as browsers write it"),
        ("SHORTLINK_BASE_URL", "https://s.example:443", "as browsers write it"),
        ("SHORTLINK_OWN_HOSTS", "https://s.example", "can't be used: 'https://s.example' must be"),
        ("SHORTLINK_KEYS_FILE", "", "is not set; set it to the path of the file of API keys"),
    ],
)
def test_what_is_wrong_for_the_api_is_named(variable: str, value: str, told: str) -> None:
    with pytest.raises(WrongSetting) as wrong:
        read_api_settings(GOOD | {variable: value})
    assert str(wrong.value).startswith(f"{variable} ")
    assert told in str(wrong.value)
    assert "hunter2" not in str(wrong.value)


def test_what_is_set_for_the_operator_is_read() -> None:
    own = read_operator_settings(GOOD, "host")
    assert (own.region, own.name, own.namespace) == ("us-east-1", "operator-0", "shortlink")
    assert (own.base_url, own.sweep) == ("https://s.example", 60)
    assert own.own_hosts == {"s.example", "www.s.example", "10.77.1.1:30080"}
    assert own.audit_log == Path("/audit.jsonl")


def test_an_operator_is_known_by_its_host_and_sweeps_every_five_minutes_by_default() -> None:
    unset = ("OPERATOR_NAME", "NAMESPACE", "SWEEP_SECONDS")
    own = read_operator_settings(GOOD | {f"SHORTLINK_{name}": "" for name in unset}, "host")
    assert (own.name, own.namespace, own.sweep) == ("host", None, 300)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SHORTLINK_REGION", "", "is not set; set it to the name of the region"),
        ("SHORTLINK_BASE_URL", "", "is not set"),
        ("SHORTLINK_OWN_HOSTS", "https://s.example", "can't be used"),
        ("SHORTLINK_NAMESPACE", "Short_Links", "is 'Short_Links'; set it to the namespace"),
        ("SHORTLINK_NAMESPACE", "-a", "set it to the namespace"),
        ("SHORTLINK_SWEEP_SECONDS", "4.9", "is '4.9'; set it to seconds, 5 to 3600"),
        ("SHORTLINK_SWEEP_SECONDS", "3601", "set it to seconds, 5 to 3600"),
        ("SHORTLINK_SWEEP_SECONDS", "often", "set it to seconds, 5 to 3600"),
        ("SHORTLINK_AUDIT_LOG", "/none/audit.jsonl", "there is no /none; make it"),
    ],
)
def test_what_is_wrong_for_the_operator_is_named(variable: str, value: str, told: str) -> None:
    with pytest.raises(WrongSetting) as wrong:
        read_operator_settings(GOOD | {variable: value}, "host")
    assert str(wrong.value).startswith(f"{variable} ")
    assert told in str(wrong.value)


def test_addresses_are_not_shown() -> None:
    """P1: they may have passwords in them."""
    assert "hunter2" not in repr(read_settings(GOOD))
    assert "10.77" not in repr(read_settings(GOOD))


def test_settings_and_the_store_spell_several_hosts_in_one_way() -> None:
    assert parse_address(read_settings(GOOD).store).datacenters == {
        "us-east-1": ("10.77.1.1", "10.77.1.2"),
        "eu-west-1": ("10.77.2.1",),
    }
