"""The `shortlink` command's refusals: one line that says what is wrong and where (T1)."""

import asyncio
import fcntl
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shortlink import cli
from shortlink.demo import command
from shortlink.problem import DATABASE, LOCK
from shortlink.store.sql import open_sql_store
from tests.drills.demo_process import free_ports

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def shortlink(data: Path, plain: Run) -> Run:
    """`plain` on the data folder."""
    return lambda *words: plain(*words, "--data", str(data))


@pytest.fixture
def service(plain: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`plain` with the variables that a service needs."""
    for name, value in SERVED.items():
        monkeypatch.setenv(name, value)
    Path("keys.json").write_text('{"keys": []}')
    Path("keys.json").chmod(0o600)
    Path("config").write_text(KUBECONFIG)
    return plain


@pytest.fixture
def plain(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `shortlink WORDS`; its exit status, and what it printed to both outputs."""

    def silent(*_: Any, **__: Any) -> None:
        """Leaves the logs of this process as they are."""

    monkeypatch.setattr(cli, "log_to", silent)
    monkeypatch.setattr(command, "log_to", silent)
    monkeypatch.chdir(data.parent)
    for name in [name for name in os.environ if name.startswith("SHORTLINK_")]:
        monkeypatch.delenv(name)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["shortlink", *words])
        status: str | int | None = 0
        try:
            cli.main()
        except SystemExit as ended:
            status = ended.code
        captured = capsys.readouterr()
        if isinstance(status, str):  # as the interpreter does
            return 1, captured.out, f"{captured.err}{status}\n"
        return status or 0, captured.out, captured.err

    return run


@pytest.fixture
def database(data: Path) -> Path:
    """An empty store."""
    data.mkdir(exist_ok=True)
    asyncio.run(open_sql_store(data / DATABASE).close())
    return data / DATABASE


@pytest.fixture
def ports() -> list[str]:
    options = ("--port", "--api-port", "--ops-port")
    return [
        word
        for option, port in zip(options, free_ports(3), strict=True)
        for word in (option, str(port))
    ]


def refused(ended: tuple[int, str, str], *names: str) -> None:
    """It ended with 1 and a single line in which all of `names` are."""
    status, out, err = ended
    assert (status, out) == (1, "")
    (line,) = err.strip().splitlines()
    assert line.startswith("shortlink: ")
    assert [name for name in names if name not in line] == []


@pytest.mark.parametrize(
    "port", ["99999", "65536", "0", "-1", "http", "", "8080.0", "٣", "9" * 5000]
)
@pytest.mark.parametrize("option", ["--port", "--api-port", "--ops-port"])
def test_what_is_no_port_is_named(shortlink: Run, option: str, port: str) -> None:
    code, out, err = shortlink("demo", f"{option}={port}")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"shortlink demo: error: argument {option}: ")
    assert "is not a port: 1 to 65535" in err.splitlines()[-1]


@pytest.mark.parametrize(
    "same", [("--port", "--api-port"), ("--api-port", "--ops-port"), ("--port", "--ops-port")]
)
def test_equal_ports_are_refused_before_anything_is_made(
    shortlink: Run, data: Path, ports: list[str], same: tuple[str, str]
) -> None:
    words = [*ports, same[0], "9999", same[1], "9999"]
    refused(shortlink("demo", *words), "--port", "--api-port", "--ops-port", "differ")
    assert not data.exists()


def test_data_that_is_a_file_is_named(shortlink: Run, data: Path, ports: list[str]) -> None:
    data.write_text("x")
    refused(shortlink("demo", *ports), str(data), "--data")
    refused(shortlink("key", "ann"), str(data), "--data")
    refused(shortlink("why", "promo"), str(data), "--data")
    refused(shortlink("redirect"), str(data), "--data")
    assert data.read_text() == "x"


@pytest.mark.parametrize(
    ("content", "told"), [('{"pid": 77}', "(process 77)"), ("", "a demo"), ("{}", "a demo")]
)
def test_a_second_demo_is_refused_also_while_the_first_begins_or_ends(
    shortlink: Run, data: Path, ports: list[str], content: str, told: str
) -> None:
    data.mkdir()
    with (data / LOCK).open("w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(content)
        lock.flush()
        refused(shortlink("demo", *ports), told, f"already runs on {data}/", "--data")


def test_a_folder_of_manifests_that_can_not_be_made_is_named(
    shortlink: Run, data: Path, ports: list[str]
) -> None:
    (data.parent / "file").touch()
    folder = str(data.parent / "file" / "links")
    refused(shortlink("demo", *ports, "--folder", folder), folder)


KEYS_BROKEN = [
    (b"", "the file"),
    (b"hello", "the file"),
    (b"\xff\xfe", "the file"),
    (b"[]", "the file"),
    (b'{"keys": 3}', "keys"),
    (b'{"keys": [{"owner": "ann"}]}', "keys.0.admin"),
    (b'{"keys": [{"owner": "ann", "admin": false, "sha256": "xyz"}]}', "keys.0.sha256"),
    (b'{"keys": [{"owner": "A", "admin": false, "sha256": ""}]}', "keys.0.owner"),
    (b"[" * 100_000, "the file"),
]


@pytest.mark.parametrize(("content", "where"), KEYS_BROKEN)
@pytest.mark.parametrize("words", ["demo", "key ann"])
def test_a_damaged_file_of_keys_is_named_and_left_alone(
    shortlink: Run, data: Path, ports: list[str], content: bytes, where: str, words: str
) -> None:
    data.mkdir()
    path = data / "keys.json"
    path.write_bytes(content)
    path.chmod(0o600)
    refused(
        shortlink(*words.split(), *(ports if words == "demo" else ())), f"{path}: ", f" {where}: "
    )
    assert path.read_bytes() == content


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o602])
def test_a_file_of_keys_that_others_may_use_is_named_with_the_way_out(
    shortlink: Run, data: Path, ports: list[str], mode: int
) -> None:
    data.mkdir()
    path = data / "keys.json"
    path.write_text('{"keys": []}')
    path.chmod(mode)
    refused(shortlink("demo", *ports), str(path), f"{mode:04o}", f"chmod 600 {path}")
    refused(shortlink("key", "ann"), f"chmod 600 {path}")


def test_a_file_of_keys_that_can_not_be_written_prints_no_key(shortlink: Run, data: Path) -> None:
    (data / ".keys.json.new").mkdir(parents=True)  # where it is written first
    refused(shortlink("key", "ann"), "keys.json")
    assert not (data / "keys.json").exists()


@pytest.mark.parametrize("owner", ["", "Ann", "ann bob", "a" * 64, "ann\n", "é", "../x", "ann/x"])
def test_a_bad_owner_gets_no_key(shortlink: Run, data: Path, owner: str) -> None:
    refused(shortlink("key", owner), repr(owner), "1 to 63 of a-z, 0-9 and hyphen")
    assert not (data / "keys.json").exists()


def test_a_key_is_printed_alone_and_kept_by_its_digest(shortlink: Run, data: Path) -> None:
    made = [shortlink("key", "ann"), shortlink("key", "root", "--admin")]
    assert [(code, out.count("\n")) for code, out, _ in made] == [(0, 1), (0, 1)]
    kept = json.loads((data / "keys.json").read_text())["keys"]
    assert [(key["owner"], key["admin"]) for key in kept] == [("ann", False), ("root", True)]
    assert (data / "keys.json").stat().st_mode & 0o777 == 0o600
    assert not any(out.strip() in (data / "keys.json").read_text() for _, out, _ in made)


@pytest.mark.parametrize("words", ["redirect", "why promo"])
def test_without_a_database_none_is_made(shortlink: Run, data: Path, words: str) -> None:
    refused(shortlink(*words.split()), f"there is no {data / DATABASE}", "--data")
    assert not data.exists()


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("option", ["--port", "--ops-port"])
def test_redirect_on_a_port_in_use_names_it(
    shortlink: Run, ports: list[str], used_port: int, option: str
) -> None:
    words = [*ports[:2], *ports[4:], option, str(used_port)]
    refused(shortlink("redirect", *words), f"{used_port}", "--port", "--ops-port", "in use")


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("host", ["no.such.host.invalid", "256.0.0.1", "a" * 64])
def test_redirect_on_a_host_that_is_not_here_is_told(
    shortlink: Run, ports: list[str], host: str
) -> None:
    refused(shortlink("redirect", *ports[:2], *ports[4:], "--host", host), "--host")


def test_a_new_key_is_neither_printed_nor_kept_when_a_port_is_in_use(
    shortlink: Run, data: Path, ports: list[str], used_port: int
) -> None:
    refused(shortlink("demo", *ports, "--api-port", str(used_port)), f"{used_port}", "--api-port")
    assert not (data / "keys.json").exists()


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("ops", ["nonsense", "", ":", "host:", "host:x", "8082:", "host:-1"])
def test_why_with_what_is_no_ops_listener_is_refused(shortlink: Run, ops: str) -> None:
    refused(shortlink("why", "promo", f"--ops={ops}"), f"--ops {ops!r} is not HOST:PORT")


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("ops", ["127.0.0.1:99999", "no.such.host.invalid:80", ":1", "a b:80"])
def test_why_of_an_ops_listener_that_can_not_be_reached_tells_the_rest(
    shortlink: Run, ops: str
) -> None:
    code, out, err = shortlink("why", "promo", "--ops", ops)
    assert (code, err) == (0, "")
    assert "never used" in out
    assert "did not answer" in out


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("lock", ["", "{", "[]", "{}", "3", "null"])
def test_why_beside_a_damaged_lock_file_tells_the_rest(
    shortlink: Run, data: Path, lock: str
) -> None:
    (data / LOCK).write_text(lock)
    code, out, err = shortlink("why", "promo")
    assert (code, err) == (0, "")
    assert "no redirect process is known here" in out


@pytest.mark.parametrize("code", ["no/slash", "ab", "a" * 21, "", "ü12"])
def test_why_names_what_is_no_code(shortlink: Run, code: str) -> None:
    refused(shortlink("why", code), repr(code), "is no code")


@pytest.mark.parametrize("words", ["", "nonsense", "why", "key", "demo --what"])
def test_a_command_line_that_is_wrong_ends_with_2(shortlink: Run, words: str) -> None:
    code, out, err = shortlink(*words.split())
    assert (code, out) == (2, "")
    assert "error: " in err.splitlines()[-1]


KUBECONFIG = """\
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""
SERVED = {
    "SHORTLINK_STORE": "sqlite:///links.db",
    "SHORTLINK_BASE_URL": "https://s.example",
    "SHORTLINK_KEYS_FILE": "keys.json",
    "SHORTLINK_AUDIT_LOG": "audit.jsonl",
    "SHORTLINK_REGION": "eu-west-1",
}


@pytest.mark.parametrize(
    ("words", "variable", "value"),
    [
        ("redirect", "SHORTLINK_STORE", ""),
        ("redirect", "SHORTLINK_STORE", "mysql://root:hunter2@db/links"),
        ("redirect", "SHORTLINK_STORE", "sqlite:///none/links.db"),
        ("redirect", "SHORTLINK_STORE", "cassandra://eu-west-1=hunter2"),
        ("redirect", "SHORTLINK_CACHE", "redis://:hunter2@"),
        ("redirect", "SHORTLINK_DRAIN", "soon"),
        ("api", "SHORTLINK_STORE", ""),
        ("api", "SHORTLINK_BASE_URL", ""),
        ("api", "SHORTLINK_KEYS_FILE", ""),
        ("api", "SHORTLINK_KEYS_FILE", "none.json"),
        ("operator", "SHORTLINK_STORE", ""),
        ("operator", "SHORTLINK_REGION", ""),
        ("operator", "SHORTLINK_BASE_URL", ""),
        ("operator", "SHORTLINK_NAMESPACE", "Short_Links"),
        ("operator", "SHORTLINK_SWEEP_SECONDS", "1"),
        ("operator", "SHORTLINK_AUDIT_LOG", "none/audit.jsonl"),
        ("operator", "SHORTLINK_AUDIT_LOG", "."),
        ("prepare", "SHORTLINK_STORE", ""),
        ("prepare", "SHORTLINK_STORE", "sqlite:///none/links.db"),
    ],
)
def test_T1_a_service_with_a_wrong_setting_ends_with_2_and_names_it(
    service: Run, monkeypatch: pytest.MonkeyPatch, words: str, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    status, out, err = service(words)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"shortlink: {variable} ")
    assert "hunter2" not in line


def test_T1_without_its_region_a_cassandra_store_is_not_opened(
    service: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORTLINK_STORE", "cassandra://eu-west-1=10.77.2.1/links")
    monkeypatch.setenv("SHORTLINK_REGION", "")
    status, _, err = service("redirect")
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith("shortlink: SHORTLINK_REGION is not set")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("redirect", "--port"),
        ("redirect", "--ops-port"),
        ("api", "--port"),
        ("operator --kubeconfig config", "--port"),
    ],
)
def test_T1_a_service_on_a_port_in_use_names_it(
    service: Run, used_port: int, words: str, option: str
) -> None:
    rest = {"redirect": {"--port": "--ops-port", "--ops-port": "--port"}}.get(words, {})
    others = [rest[option], str(free_ports(1)[0])] if rest else []
    ended = service(*words.split(), option, str(used_port), *others)
    refused(ended, str(used_port), option, "in use")


def test_T1_an_operator_that_can_not_log_in_names_the_way_out(
    service: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    refused(service("operator"), "--kubeconfig")
    refused(service("operator", "--kubeconfig", "none"), "none", "No such file")


def test_T1_a_store_is_prepared_and_said_so(service: Run, data: Path) -> None:
    status, out, err = service("prepare")
    assert (status, out.count("\n"), err) == (0, 1, "")
    assert (data.parent / "links.db").exists()
