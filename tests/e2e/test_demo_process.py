"""The demo as a newcomer runs it: a real process, a folder, curl."""

import os
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.drills.demo_process import DemoProcess, NoAnswer, Reply, ask, free_ports, wait_for

SPRING = {"target": "https://example.com/spring?a=%2B", "code": "spring"}


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[DemoProcess]:
    with DemoProcess(tmp_path) as process:
        yield process


def refusal(demo: DemoProcess, *words: str) -> str:
    """What `shortlink WORDS` says when it can't; it has to end with 1 and a single line."""
    done = subprocess.run(demo.command(*words), capture_output=True, text=True, timeout=30)
    assert done.returncode == 1, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def options(demo: DemoProcess) -> list[str]:
    ports = f"--port {demo.port} --api-port {demo.api_port} --ops-port {demo.ops_port}"
    return ["demo", "--folder", str(demo.folder), *ports.split()]


def test_a_manifest_dropped_edited_and_deleted_is_followed(demo: DemoProcess) -> None:
    demo.start()
    path = demo.write_manifest("spring", SPRING)
    wait_for(lambda: demo.visit("spring").status == 302, "the dropped manifest's link")
    assert demo.visit("spring").location == "https://example.com/spring?a=%2B"
    demo.write_manifest("spring", {**SPRING, "target": "https://example.com/summer"})
    wait_for(
        lambda: demo.visit("spring").location == "https://example.com/summer", "the edited target"
    )
    path.unlink()
    wait_for(lambda: demo.visit("spring").status == 410, "the deletion")


def test_a_manifest_removed_while_the_demo_was_down_is_tombstoned_at_start(
    demo: DemoProcess,
) -> None:
    demo.start()
    demo.write_manifest("stays", {"target": "https://example.com/stays", "code": "stays"})
    path = demo.write_manifest("goes", {"target": "https://example.com/goes", "code": "goes"})
    wait_for(lambda: demo.visit("goes").status == 302, "the link")
    assert demo.stop() == 0
    path.unlink()
    demo.start()
    wait_for(lambda: demo.visit("goes").status == 410, "the tombstone")
    assert demo.visit("stays").status == 302


def test_a_manifest_that_stops_parsing_keeps_its_link_and_the_others_go_on(
    demo: DemoProcess,
) -> None:
    demo.start()
    path = demo.write_manifest("spring", SPRING)
    wait_for(lambda: demo.visit("spring").status == 302, "the link")
    path.write_text("spec: [")
    demo.write_manifest("other", {"target": "https://example.com/other", "code": "other"})
    wait_for(lambda: demo.visit("other").status == 302, "the other manifest")
    assert demo.visit("spring").status == 302
    wait_for(lambda: f"/{path.name}: " in demo.printed(), "the message about the file")


def test_a_folder_that_vanishes_trips_the_brake_until_it_is_released(demo: DemoProcess) -> None:
    demo.start()
    for number in range(3):
        name = f"link{number}"
        demo.write_manifest(name, {"target": f"https://example.com/{number}", "code": name})
    wait_for(lambda: demo.visit("link2").status == 302, "the links")
    shutil.rmtree(demo.folder)
    held = "! 3 deletions in namespace team are held: "
    wait_for(lambda: held in demo.printed(), "the brake")
    assert [demo.visit(f"link{number}").status for number in range(3)] == [302, 302, 302]
    demo.folder.mkdir()
    (demo.folder / ".allow-mass-delete").write_text("team\n")
    wait_for(lambda: demo.visit("link2").status == 410, "the released deletions")
    assert not (demo.folder / ".allow-mass-delete").exists()


def test_the_api_key_is_printed_once_and_why_tells_all_of_a_code(demo: DemoProcess) -> None:
    demo.start()
    (key,) = [word for word in demo.printed().split() if word.startswith("sl_")]
    made = demo.api(key, "POST", "", {"long_url": "https://example.com/x", "custom_alias": "mine"})
    assert made.status == 201
    assert demo.visit("mine").status == 302
    told = subprocess.run(demo.command("why", "mine"), capture_output=True, text=True, check=True)
    for fact in ("generation 1, version 1, active", "302 to https://example.com/x", "status 302"):
        assert fact in told.stdout
    assert demo.stop() == 0
    before = demo.printed()
    demo.start()
    assert "sl_" not in demo.printed()[len(before) :]
    files = [file.read_bytes() for file in demo.data.iterdir() if file.is_file()]
    assert not any(key.encode() in content for content in files), "the key is kept in clear"


def test_a_port_in_use_is_named_with_its_holder(demo: DemoProcess) -> None:
    with socket.create_server(("127.0.0.1", demo.api_port)):
        told = refusal(demo, *options(demo))
    assert f"port {demo.api_port} is in use by" in told
    assert f"process {os.getpid()}" in told
    assert "--api-port" in told


def test_a_new_key_is_printed_by_the_first_start_that_works(demo: DemoProcess) -> None:
    with socket.create_server(("127.0.0.1", demo.api_port)):
        assert "sl_" not in refusal(demo, *options(demo))
    assert not (demo.data / "keys.json").exists()
    demo.start()
    (key,) = [word for word in demo.printed().split() if word.startswith("sl_")]
    made = demo.api(key, "POST", "", {"long_url": "https://example.com/x", "custom_alias": "mine"})
    assert made.status == 201


@contextmanager
def redirect(demo: DemoProcess) -> Iterator[int]:
    """`shortlink redirect` on the demo's data, and its port; it has to end well."""
    port, ops_port = free_ports(2)
    words = ["redirect", "--port", str(port), "--ops-port", str(ops_port)]
    process = subprocess.Popen(demo.command(*words), stderr=subprocess.DEVNULL)

    def ready() -> bool:
        assert process.poll() is None
        with suppress(NoAnswer):
            return ask(port, "GET", "/readyz").status == 200
        return False

    try:
        wait_for(ready, "the redirect process to be ready")
        yield port
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)


def test_L5_a_redirect_process_beside_the_demo_follows_a_deletion(
    demo: DemoProcess,
) -> None:
    demo.start()
    path = demo.write_manifest("spring", SPRING)
    wait_for(lambda: demo.visit("spring").status == 302, "the link")
    with redirect(demo) as port:

        def visit() -> Reply:
            return ask(port, "GET", "/spring")

        assert visit().location == "https://example.com/spring?a=%2B"
        path.unlink()
        wait_for(lambda: visit().status == 410, "the deletion")
        assert demo.visit("spring").status == 410


def test_a_database_of_a_newer_version_is_left_alone(demo: DemoProcess) -> None:
    demo.start()
    assert demo.stop() == 0
    database = demo.data / "links.db"
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO schema_version VALUES (9999)")
    connection.close()
    assert "9999" in refusal(demo, *options(demo))


def test_a_locked_database_is_named_at_start(demo: DemoProcess) -> None:
    demo.start()
    assert demo.stop() == 0
    connection = sqlite3.connect(demo.data / "links.db", isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        assert "links.db" in refusal(demo, *options(demo))
    finally:
        connection.close()
