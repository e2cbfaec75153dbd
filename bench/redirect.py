"""The redirect server against nginx `return 302`, one core each, in turns (R4).

What counts is the server's processor time for a request: on a shared machine the rate also
says what the neighbours did. Traffic stays on 127.0.0.1.
"""

import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from sqlalchemy import create_engine, insert

from shortlink.cache.memory import CAPACITY, MemoryCache
from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.codes import SPACE, encode
from shortlink.links.model import Link, State
from shortlink.redirect.responses import Response, render
from shortlink.store import schema
from shortlink.store.sql import open_sql_store

GOAL = 0.80
LINKS = 100_000
SCENARIOS = ((500, CAPACITY), (5_000, CAPACITY), (LINKS, LINKS))
"""Codes asked for, and entries of the cache. Every entry is read again after 5 s."""

ROUNDS = 6
SECONDS = 3
CONNECTIONS = 64
SERVER_CORE, CLIENT_CORE = "0", "1"

HERE = Path(__file__).parent

_NGINX = """
worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log crit; daemon off;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000;
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{ return 302 https://www.example.com/articles/2026/some-story-number-1; }}
  }}
}}
"""


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    codes: Path
    process: psutil.Process
    ops_port: int | None = None


@dataclass(frozen=True)
class Run:
    """One turn of wrk: requests per second, the server's processor time for one in
    microseconds, the share of its core that it used, store reads per request, p99 in ms.
    """

    rate: float
    cost: float
    used: float
    reads: float
    p99: float


def main() -> int:
    """Run, print the table, keep the figures. 2: something it needs is not here."""
    missing = [tool for tool in ("nginx", "wrk", "taskset") if shutil.which(tool) is None]
    if missing:
        print(f"needs {', '.join(missing)}: apt-get install nginx-light wrk util-linux")
        return 2
    if (os.cpu_count() or 1) < 2:
        print("needs two cores: one for the server, one for its visitors")
        return 2
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        servers = _servers(Path(name), stack)
        runs: dict[str, list[Run]] = {server.name: [] for server in servers}
        for server in servers:
            _wrk(server, 1)
        for round_ in range(ROUNDS):
            for server in servers if round_ % 2 else reversed(servers):
                runs[server.name].append(_wrk(server, SECONDS))
    memory = _bytes_per_link()
    _report(runs, memory)
    return 0


def _servers(folder: Path, stack: ExitStack) -> list[Server]:
    store, links = folder / "links.db", list(_links(LINKS))
    _fill(store, links)
    conf, port = folder / "nginx.conf", _free_port()
    conf.write_text(_NGINX.format(folder=folder, port=port))
    nginx = stack.enter_context(_running("nginx", "-p", str(folder), "-c", str(conf), port=port))
    servers: list[Server] = []
    for count, capacity in SCENARIOS:
        codes = folder / f"{count}.codes"
        codes.write_text("".join(f"{link.code}\n" for link in links[:: LINKS // count]))
        if not servers:
            servers.append(Server("nginx return 302", port, codes, nginx))
        ours, ops_port = _free_port(), _free_port()
        arguments = [str(store), str(ours), str(ops_port), str(capacity)]
        process = stack.enter_context(
            _running(sys.executable, "-m", "bench.redirect_server", *arguments, port=ours)
        )
        servers.append(Server(f"shortlink, {count:,} codes", ours, codes, process, ops_port))
    return servers


def _links(count: int) -> Iterator[Link]:
    now = SYSTEM_CLOCK.wall()
    for number in range(count):
        yield Link(
            code=encode(number * 35_216_146 % SPACE),
            generation=1,
            version=1,
            state=State.ACTIVE,
            owner="bench",
            target=f"https://www.example.com/articles/2026/some-story-number-{number}",
            permanent=False,
            custom=False,
            created_at=now,
            changed_at=now,
            expires_at=now + 3_600_000,
            token=f"token-{number}",
        )


def _fill(path: Path, links: list[Link]) -> None:
    open_sql_store(path)  # makes the tables
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(insert(schema.links), [schema.link_row(link) for link in links])
    engine.dispose()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _running(*command: str, port: int) -> Iterator[psutil.Process]:
    process = subprocess.Popen(["taskset", "-c", SERVER_CORE, *command])
    try:
        _await_port(port, process)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} did not listen on port {port} within 20 s")


def _wrk(server: Server, seconds: int) -> Run:
    reads, cpu, began = _reads(server), _cpu(server.process), time.monotonic()
    out = subprocess.run(
        f"taskset -c {CLIENT_CORE} wrk -t1 -c{CONNECTIONS} -d{seconds}s --latency"
        f" -s {HERE / 'redirect.lua'} http://127.0.0.1:{server.port}".split(),
        env={**os.environ, "CODES": str(server.codes)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    elapsed, used = time.monotonic() - began, _cpu(server.process) - cpu
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(f"{server.name} failed requests:\n{out}")
    requests = int(_found(r"(\d+) requests in", out))
    return Run(
        rate=float(_found(r"Requests/sec:\s+([\d.]+)", out)),
        cost=used / requests * 1e6,
        used=used / elapsed,
        reads=(_reads(server) - reads) / requests,
        p99=_milliseconds(_found(r"99%\s+([\d.]+[mu]?s)", out)),
    )


def _found(pattern: str, out: str) -> str:
    found = re.search(pattern, out)
    if found is None:
        raise RuntimeError(f"no {pattern!r} in wrk's answer:\n{out}")
    return found.group(1)


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([mu]?s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000}[unit]


def _cpu(process: psutil.Process) -> float:
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _reads(server: Server) -> float:
    if server.ops_port is None:
        return 0
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ops_port}/metrics") as response:
        text = response.read().decode()
    return float(_found(r"\nshortlink_redirect_store_reads_total ([\d.e+]+)", text))


def _bytes_per_link() -> float:
    """Memory that a cached link takes, its share of the table included."""
    tracemalloc.start()
    cache: MemoryCache[Response] = MemoryCache(SYSTEM_CLOCK, render, CAPACITY)
    before, _ = tracemalloc.get_traced_memory()
    for link in _links(CAPACITY):
        cache.put(link, link.code, SYSTEM_CLOCK.steady())
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / len(cache.entries)


def _report(runs: dict[str, list[Run]], memory: float) -> None:
    base = next(iter(runs.values()))
    print(
        f"\n{'':40} {'CPU us/request':>20} {'of nginx':>9} {'req/s':>8} {'core':>5}"
        f" {'p99 ms':>7} {'reads':>7}"
    )
    ratios = {}
    for name, turns in runs.items():
        costs = [run.cost for run in turns]
        ratios[name] = statistics.median(run.cost for run in base) / statistics.median(costs)
        print(
            f"{name:40} {statistics.median(costs):6.2f} ({min(costs):.2f}-{max(costs):.2f})".ljust(
                61
            )
            + f" {ratios[name]:9.2f} {statistics.median(run.rate for run in turns):8,.0f}"
            f" {statistics.median(run.used for run in turns):5.2f}"
            f" {statistics.median(run.p99 for run in turns):7.2f}"
            f" {statistics.mean(run.reads for run in turns):7.2%}"
        )
    print(
        f"\nof nginx: nginx's processor time for a request over ours (goal: {GOAL:.2f} for the hot"
        f" set).\nreads: store reads for a request. {ROUNDS} turns of {SECONDS} s each,"
        f" {CONNECTIONS} connections.\nA cached link takes {memory:.0f} bytes."
    )
    path = HERE / "results" / "redirect.json"
    path.parent.mkdir(exist_ok=True)
    record = {
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "python": sys.version},
        "nginx": subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr.strip(),
        "ratios": ratios,
        "bytes_per_link": memory,
        "runs": {name: [asdict(run) for run in turns] for name, turns in runs.items()},
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"Figures: {path.relative_to(HERE.parent)}")


def _cpu_model() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1) if found else platform.processor()
