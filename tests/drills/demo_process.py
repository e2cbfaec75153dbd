"""Starts, asks and kills a real `shortlink demo` process; for end-to-end tests and drills."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any, Self

START_SECONDS = 30.0
ASK_SECONDS = 10.0


class NoAnswer(Exception):
    """The process was gone before it answered: the outcome of a write is unknown."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer: status, Location if any, and the body parsed as JSON or else None."""

    status: int
    location: str | None
    body: Any


def free_ports(count: int) -> list[int]:
    """Ports that nothing listened on a moment ago."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class DemoProcess:
    """`shortlink demo` on the folders `place`/links and `place`/data."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "links"
        self.data = place / "data"
        self.port, self.api_port, self.ops_port = free_ports(3)
        self._output: Path = place / "output.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def command(self, *words: str) -> list[str]:
        """The command line of `shortlink WORDS` on this data folder."""
        return [sys.executable, "-m", "shortlink", *words, "--data", str(self.data)]

    def start(self) -> float:
        """Start it and wait until both services are ready; the seconds that this took."""
        began = time.monotonic()
        ports = zip(
            ("--port", "--api-port", "--ops-port"),
            (self.port, self.api_port, self.ops_port),
            strict=True,
        )
        options = [text for option, port in ports for text in (option, str(port))]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command("demo", "--folder", str(self.folder), *options),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_for(self._ready, f"the demo to be ready; it printed:\n{self.printed()[-2000:]}")
        return time.monotonic() - began

    def printed(self) -> str:
        """All that it has printed."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(ASK_SECONDS)
            self._process = None

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(START_SECONDS)
        self._process = None
        return status

    def new_key(self, owner: str, *, admin: bool = False) -> str:
        """An API key, made with the CLI before the demo starts."""
        words = ["key", owner, *(["--admin"] if admin else [])]
        return subprocess.run(
            self.command(*words), check=True, capture_output=True, text=True
        ).stdout.strip()

    def visit(self, code: str, method: str = "GET") -> Reply:
        """Ask the redirect service."""
        return ask(self.port, method, f"/{code}")

    def api(
        self, key: str, method: str, path: str = "", body: dict[str, Any] | None = None
    ) -> Reply:
        """Ask the API about links."""
        return ask(self.api_port, method, f"/api/v1/links{path}", body, key)

    def write_manifest(self, name: str, spec: dict[str, Any], namespace: str = "team") -> Path:
        """Write a ShortLink's manifest as an editor does: to another name, then renamed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{namespace}-{name}.yaml"
        manifest = {
            "apiVersion": "shortlink.platform/v1alpha1",
            "kind": "ShortLink",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        draft = path.with_name(f".{path.name}.tmp")
        draft.write_text(json.dumps(manifest), encoding="utf-8")
        os.replace(draft, path)
        return path

    def _ready(self) -> bool:
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            raise AssertionError(f"the demo ended with {status}:\n{self.printed()[-2000:]}")
        with suppress(NoAnswer):
            ready = ask(self.port, "GET", "/readyz").status == 200
            return ready and ask(self.api_port, "GET", "/readyz").status == 200
        return False


def wait_for(condition: Any, what: str, seconds: float = START_SECONDS) -> float:
    """Poll until `condition()` is true; the seconds that it took. Fails after `seconds`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.005)
    return time.monotonic() - began


def ask(
    port: int,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    key: str | None = None,
) -> Reply:
    """One request on a connection of its own. Raises NoAnswer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data: bytes | IO[bytes] | Sequence[bytes] | None = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body).encode()
    connection = HTTPConnection("127.0.0.1", port, timeout=ASK_SECONDS)
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        raw = response.read()
        is_json = "json" in response.getheader("Content-Type", "")
        parsed = json.loads(raw) if is_json and raw else None
        return Reply(response.status, response.getheader("Location"), parsed)
    except (OSError, HTTPException) as error:
        raise NoAnswer(str(error)) from error
    finally:
        connection.close()
