"""The services as pods run them: real processes over one store, set by their environment."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.drills.demo_process import NoAnswer, Reply, ask, free_ports, wait_for

LINKS = "/api/v1/links"
VISITORS = 4
ENOUGH = 50
"""Answers of each phase of a load before the next begins."""


class Service:
    """`shortlink NAME`, listening at `port`."""

    def __init__(self, name: str, place: Path, environ: dict[str, str]) -> None:
        self.port, ops = free_ports(2)
        self.output = place / f"{name}-{self.port}.txt"
        options = ["--ops-port", str(ops)] if name == "redirect" else []
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shortlink", name, "--port", str(self.port), *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=place,
            )

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        with suppress(NoAnswer):
            return self.ask("/readyz").status == 200
        return False

    def ask(self, path: str) -> Reply:
        return ask(self.port, "GET", path)

    def series(self) -> str:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]


class Site:
    """A store in `place`, the key of an owner, and the services that were started."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.services: list[Service] = []
        self.environ = {
            **{name: value for name, value in os.environ.items() if "SHORTLINK" not in name},
            "SHORTLINK_STORE": f"sqlite:///{place / 'links.db'}",
            "SHORTLINK_REGION": "us-east-1",
            "SHORTLINK_BASE_URL": "https://s.example",
            "SHORTLINK_KEYS_FILE": str(place / "keys.json"),
            "SHORTLINK_DRAIN": "1",
        }
        words = [sys.executable, "-m", "shortlink", "key", "ann", "--data", str(place)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        self.key = done.stdout.strip()

    def start(self, *names: str, **changes: str) -> list[Service]:
        started = [Service(name, self.place, self.environ | changes) for name in names]
        self.services += started
        for service in started:
            wait_for(service.is_ready, "the service to be ready")
        return started


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for service in site.services:
        service.process.kill()
        service.process.wait(30)


def api(site: Site, service: Service, method: str, path: str = "", body: Any = None) -> Reply:
    return ask(service.port, method, f"{LINKS}{path}", body, site.key)


def test_a_link_lives_through_the_services_and_each_tells_of_it(site: Site) -> None:
    service, redirect = site.start("api", "redirect")
    made = api(site, service, "POST", "", {"long_url": "https://example.com/x"})
    assert made.status == 201
    code = made.body["code"]
    assert made.body["short_url"] == f"https://s.example/{code}"
    assert redirect.ask(f"/{code}").location == "https://example.com/x"
    loop = api(site, service, "POST", "", {"long_url": f"https://s.example/{code}"})
    assert loop.status == 400
    assert api(site, service, "DELETE", f"/{code}").status == 204
    wait_for(lambda: redirect.ask(f"/{code}").status == 410, "the deletion")
    assert "process_cpu_seconds_total" in service.series()
    for one in site.services:
        one.process.terminate()
    assert [one.process.wait(30) for one in site.services] == [0, 0]
    for one, name in zip(site.services, ("api", "redirect"), strict=True):
        assert {(line["service"], line["region"]) for line in one.logged()} == {(name, "us-east-1")}
        assert site.key not in one.output.read_text()


class Load:
    """Visitors with connections that they keep; new ones go to `port`, as a cluster says."""

    def __init__(self, port: int, path: str, key: str) -> None:
        self.port = port
        self.answers: Counter[tuple[int, int]] = Counter()
        self.closed: Counter[int] = Counter()
        self.failed: list[str] = []
        self._path = path
        self._headers = {"Authorization": f"Bearer {key}"}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._visit) for _ in range(VISITORS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def answered(self, port: int) -> Callable[[], bool]:
        return lambda: sum(n for (at, _), n in self.answers.items() if at == port) >= ENOUGH

    def _visit(self) -> None:
        while not self._over.is_set():
            port = self.port
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                while not self._over.is_set():
                    connection.request("GET", self._path, headers=self._headers)
                    response = connection.getresponse()
                    response.read()
                    with self._lock:
                        self.answers[port, response.status] += 1
                        self.closed[port] += response.will_close
                    if response.will_close:
                        break
            except (OSError, HTTPException) as error:
                self.failed.append(f"{port}: {error!r}")
            finally:
                connection.close()


@pytest.mark.parametrize(
    ("name", "path", "status"), [("redirect", "/spring", 302), ("api", f"{LINKS}/spring", 200)]
)
def test_F12_a_service_that_is_replaced_under_load_loses_no_request(
    site: Site, name: str, path: str, status: int
) -> None:
    writer, old, new = site.start("api", name, name, SHORTLINK_DRAIN="5")
    body = {"long_url": "https://example.com/x", "custom_alias": "spring"}
    assert api(site, writer, "POST", "", body).status == 201
    with Load(old.port, path, site.key) as load:
        wait_for(load.answered(old.port), "the load")
        old.process.terminate()
        # A cluster hears of it by the probe, and new connections arrive until it has.
        wait_for(lambda: old.ask("/readyz").status == 503, "the probe to be told")
        load.port = new.port
        wait_for(lambda: load.closed[old.port] >= VISITORS, "the connections to be let go")
        assert old.ask("/healthz").status == 200
        assert old.process.wait(30) == 0
        wait_for(load.answered(new.port), "the load to move")
    assert load.failed == []
    assert set(load.answers) == {(old.port, status), (new.port, status)}
    assert load.closed[new.port] == 0


@pytest.mark.parametrize("name", ["redirect", "api"])
def test_a_second_signal_ends_a_service_at_once(site: Site, name: str) -> None:
    (service,) = site.start(name, SHORTLINK_DRAIN="300")
    service.process.terminate()
    wait_for(lambda: service.ask("/readyz").status == 503, "the drain")
    service.process.terminate()
    assert service.process.wait(30) == 128 + signal.SIGTERM


def test_T1_a_wrong_setting_is_one_line_and_2(site: Site) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shortlink", "redirect"],
        env=site.environ | {"SHORTLINK_STORE": "mysql://root:hunter2@db/links"},
        cwd=site.place,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("shortlink: SHORTLINK_STORE is not the address of a store; set it to ")
    assert "hunter2" not in line
