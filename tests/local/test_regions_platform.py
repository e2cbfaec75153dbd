"""Whether the platform may come up, whose it is, and how its state is told."""

import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local.problem import Problem
from local.regions import health, owner
from local.regions.cluster import deployment_state
from local.regions.owner import Owner
from local.regions.preflight import DISK, MEMORY, Machine, verdicts
from local.regions.processes import tail
from local.regions.status import Row, resident, table

HERE = Path("/home/one/shortlink")
OTHER = Owner(Path("/home/two/shortlink"), "boot-1")
GOOD = Machine(
    system="Linux",
    root=True,
    missing=(),
    memory=MEMORY,
    disk=DISK,
    routes=(("192.0.2.0/24", "eth0"), ("10.77.0.0/16", "shortlink0")),
    running=False,
    owner=None,
)


@pytest.mark.parametrize(
    "machine",
    [
        GOOD,
        replace(GOOD, running=True, memory=0, disk=0, owner=Owner(HERE, "boot-1")),
        replace(GOOD, owner=OTHER),  # what a dead platform left is no hindrance
    ],
    ids=["fresh", "ours is up already", "another's is dead"],
)
def test_a_machine_that_will_do(machine: Machine) -> None:
    assert verdicts(machine, HERE) == []


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (replace(GOOD, system="Darwin"), "needs Linux .* `make demo` runs everywhere"),
        (replace(GOOD, root=False), "needs root"),
        (replace(GOOD, missing=("nft",)), "not here: nft: run `make parts`"),
        (replace(GOOD, memory=MEMORY // 2), "3.5 GiB of memory are free, 7 are needed"),
        (replace(GOOD, disk=DISK // 2), "5.0 GB of disk are free, 10 are needed"),
        (replace(GOOD, routes=(("10.77.8.0/24", "docker0"),)), "docker0 uses 10.77.8.0/24"),
        (replace(GOOD, routes=(("10.0.0.0/8", "tun0"),)), "tun0 uses 10.0.0.0/8"),
        (
            replace(GOOD, running=True, owner=OTHER),
            "/home/two/shortlink runs: `make down` there first, or here if that checkout is gone",
        ),
    ],
    ids=["system", "root", "tool", "memory", "disk", "network", "wide network", "another's"],
)
def test_each_hindrance_is_said_with_what_to_do(machine: Machine, said: str) -> None:
    (verdict,) = verdicts(machine, HERE)
    assert re.search(said, verdict)


def test_all_hindrances_are_said_at_once() -> None:
    assert len(verdicts(replace(GOOD, missing=("ip",), memory=0, disk=0), HERE)) == 3


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "run"
    monkeypatch.setattr(owner, "HOME", home)
    monkeypatch.setattr(owner, "_LOCK", home / "lock")
    monkeypatch.setattr(owner, "_OWNER", home / "owner")
    return home


def test_a_second_one_is_refused_and_told_who_is_at_it(home: Path) -> None:
    refused = pytest.raises(Problem, match=f"process {os.getpid()} is changing")
    with owner.locked(), refused, owner.locked():
        pass


def test_the_lock_is_free_again_also_after_all_was_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner.locked():
        with pytest.raises(Problem, match="make up"):
            owner.check()
        owner.claim()
        assert owner.owner() == owner.this()
        owner.check()
        monkeypatch.setattr(owner, "CHECKOUT", Path("/another"))
        with pytest.raises(Problem, match="ask there"):
            owner.check()
        owner.release()
    assert not home.exists()
    with owner.locked():
        assert owner.owner() is None


def test_a_broken_note_of_the_owner_says_what_to_remove(home: Path) -> None:
    home.mkdir()
    (home / "owner").write_text("{")
    with pytest.raises(Problem, match=f"{home}/owner can't be read .*: remove it"):
        owner.owner()


def test_the_table_tells_what_is_wrong_and_the_memory_of_the_whole() -> None:
    text = table(
        [
            Row("us-east-1", "redis", "10.77.1.1:6379", 12, 12 << 20, None),
            Row("us-east-1", "cassandra", "10.77.1.1:9042", None, 0, "not running"),
        ]
    )
    assert text.splitlines() == [
        "REGION     COMPONENT  ADDRESS         PID  MEMORY  STATE",
        "us-east-1  redis      10.77.1.1:6379  12   12 MiB  well",
        "us-east-1  cassandra  10.77.1.1:9042               not running",
        "0.0 GiB of memory in all; 1 of 2 not well",
    ]


def test_a_process_that_has_ended_takes_no_memory() -> None:
    assert resident([os.getpid()]) > 0
    assert resident([2**22 + 1]) == 0  # more than the kernel's highest pid


def deployment(**status: int) -> dict[str, Any]:
    return {"metadata": {"generation": 2}, "spec": {"replicas": 3}, "status": status}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"observedGeneration": 2, "updatedReplicas": 3, "availableReplicas": 3}, None),
        ({"observedGeneration": 2, "updatedReplicas": 3}, "0 of 3 pods available, 3 new"),
        (
            {"observedGeneration": 2, "updatedReplicas": 1, "availableReplicas": 3},
            "3 of 3 pods available, 1 new",
        ),
        (
            {"observedGeneration": 1, "updatedReplicas": 3, "availableReplicas": 3},
            "its last change is not taken up yet",
        ),
        ({}, "its last change is not taken up yet"),
    ],
)
def test_a_deployment_is_well_when_its_newest_pods_are_there(
    status: dict[str, int], said: str | None
) -> None:
    assert deployment_state(deployment(**status)) == said


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def answer_once(server: socket.socket, answer: bytes) -> threading.Thread:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answer", "said"), [(b"+PONG\r\n", None), (b"-LOADING", "answers b'-LOAD'")]
)
def test_a_server_is_well_when_it_answers_as_it_should(
    listener: socket.socket, answer: bytes, said: str | None
) -> None:
    port = listener.getsockname()[1]
    thread = answer_once(listener, answer)
    told = health.talks("127.0.0.1", port, b"PING\r\n", b"+PONG")()
    thread.join()
    assert told == said if said is None else told is not None and told.endswith(said)


def test_a_server_that_is_not_there_is_not_well(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    told = health.talks("127.0.0.1", port, b"PING\r\n", b"+PONG")()
    assert told is not None
    assert "refused" in told
    assert "refused" in (health.http(f"http://127.0.0.1:{port}/readyz")() or "")


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"
    assert tail(log, 3) == "(there is none)"
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert tail(log, 2) == "line 998\nline 999"
