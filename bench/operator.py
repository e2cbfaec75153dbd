"""The operator against a bare list-and-watch loop that makes the same calls, on one API server.

    python -m bench.operator --objects 2000 10000 --idle 300

Each run has a fresh API server and a SQLite store; objects are made by POST, 16 at once. What
counts is processor time for an object: the rate is the API server's. The store's share, which
both have, is measured without an API server and taken off both.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench.redirect import _cpu_model
from local import parts
from local.problem import Problem
from shortlink_operator.kinds import API_VERSION
from tests.apiserver import ScratchCluster, scratch_cluster
from tests.operator_rig import Objects, environ, manifest, read_series, ready, trust

RATIO, WRITES, RESTART, MEMORY = 2.5, 2.0, 8.0, 200.0
"""Goals: processor time of the floor's, writes of an object; aims: seconds, MiB."""

SIZES = (2_000, 10_000)
IDLE = 300
NAMESPACES = 20
AT_ONCE = 16
DEADLINE = 1_200.0
SETTLE = 5.0
"""Seconds in which what the last write set off is over."""

WARM = "bench-0/warm"
BUSY = {"408", "429", "500", "503", "504"}
LINKS = f"/apis/{API_VERSION}/shortlinks"
CONTENDERS = ("floor", "operator")

Counts = Counter[tuple[str, str, str]]
"""Requests that the API server answered, by verb, resource and status."""


@dataclass(frozen=True, slots=True)
class Run:
    """Times in seconds; `cpu` is the process's, and `store` its store calls' share, for one
    object in ms. `restart`: until a new object was ready. `busy`: answers of BUSY.
    """

    who: str
    objects: int
    cpu: float
    store: float
    all_ready: float
    writes: float
    busy: int
    peak_mib: float
    restart: float
    restart_mib: float
    idle_writes: dict[str, int]


def requests(cluster: ScratchCluster) -> Counts:
    """What the API server has answered since its start, Leases apart."""
    counts: Counts = Counter()
    for name, value in read_series(cluster.kubectl("get", "--raw", "/metrics")).items():
        if name.startswith("apiserver_request_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
            what = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            if labels["resource"] != "leases":
                counts[labels["verb"], what, labels["code"]] += int(value)
    return counts


def writes(counts: Counts) -> dict[str, int]:
    """Those that change something, by what they are."""
    verbs = ("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")
    found: Counter[str] = Counter()
    for (verb, what, code), count in counts.items():
        if verb in verbs and count and not what.endswith("accessreviews"):
            found[f"{verb} {what} {code}"] += count
    return dict(found)


class Contender:
    """A process that looks after the objects of a cluster."""

    def __init__(
        self, who: str, place: Path, cluster: ScratchCluster, words: Sequence[str]
    ) -> None:
        database = str(place / "links.db")
        options = {
            "floor": ["bench.operator_floor", database, str(cluster.kubeconfig)],
            "operator": [
                *("shortlink", "operator", "--kubeconfig", str(cluster.kubeconfig)),
                *("--host", "127.0.0.1", "--port", "18082"),
            ],
        }
        self.output = place / "output.txt"
        self._command = [sys.executable, *words, "-m", *options[who]]
        self._environ = environ(place)
        self._process: psutil.Popen | None = None

    def start(self) -> None:
        with self.output.open("ab") as output:
            self._process = psutil.Popen(
                self._command, stdout=output, stderr=subprocess.STDOUT, env=self._environ
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def cpu(self) -> float:
        """Processor seconds so far. Raises RuntimeError when it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"it ended:\n{self.output.read_text()[-3000:]}")
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def peak_mib(self) -> float:
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


@contextmanager
def contending(
    who: str, place: Path, cluster: ScratchCluster, words: Sequence[str]
) -> Iterator[Contender]:
    contender = Contender(who, place, cluster, words)
    contender.start()
    try:
        yield contender
    finally:
        contender.stop()


async def make(cluster: ScratchCluster, count: int) -> None:
    """POST so many objects, AT_ONCE at a time."""
    numbers = iter(range(count))
    connector = aiohttp.TCPConnector(ssl=trust(cluster))
    async with aiohttp.ClientSession(cluster.url, connector=connector) as session:

        async def worker() -> None:
            for number in numbers:
                namespace = f"bench-{number % NAMESPACES}"
                target = f"https://www.example.com/articles/2026/some-story-number-{number}"
                document = manifest(f"{namespace}/story-{number}", {"target": target})
                path = f"/apis/{API_VERSION}/namespaces/{namespace}/shortlinks"
                async with session.post(path, json=document) as answer:
                    if answer.status != 201:
                        raise RuntimeError(f"a POST was answered {await answer.text()}")

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


def unready(objects: Objects) -> list[dict[str, Any]]:
    """The objects that are not Ready."""
    return [
        item
        for number in range(NAMESPACES)
        for item in objects.all(f"bench-{number}")
        if (ready(item) or {}).get("status") != "True"
    ]


def await_all(cluster: ScratchCluster, objects: Objects, contender: Contender, count: int) -> None:
    """Wait until all are Ready, asking for counters first, for lists cost the API server much."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        contender.cpu()
        if requests(cluster)["PATCH", "shortlinks/status", "200"] > count and not unready(objects):
            return
        time.sleep(2)
    left = unready(objects)
    raise RuntimeError(f"{len(left)} of {count} are not ready after {DEADLINE} s: {left[:1]}")


def run(who: str, count: int, idle: float, words: Sequence[str]) -> Run:
    """One contender on a cluster of its own."""
    with scratch_cluster() as cluster, tempfile.TemporaryDirectory() as name:
        cluster.apply_crds()
        objects = Objects(cluster)
        for space in ("shortlink", *(f"bench-{number}" for number in range(NAMESPACES))):
            objects.namespace(space)
        with contending(who, Path(name), cluster, words) as contender:
            objects.create(WARM, {"target": "https://www.example.com/warm"})
            objects.ready(WARM)
            time.sleep(SETTLE)
            before, cpu, began = requests(cluster), contender.cpu(), time.monotonic()
            asyncio.run(make(cluster, count))
            await_all(cluster, objects, contender, count)
            took = time.monotonic() - began
            time.sleep(SETTLE)
            cpu = contender.cpu() - cpu
            answered = requests(cluster) - before
            made, peak = sum(writes(answered).values()) - count, contender.peak_mib()

            contender.stop()
            contender.start()
            began = time.monotonic()
            objects.create("bench-0/new", {"target": "https://www.example.com/new"})
            objects.ready("bench-0/new")
            restart = time.monotonic() - began
            time.sleep(3 * SETTLE)
            before = requests(cluster)
            time.sleep(idle)
            contender.cpu()
            idle_writes = writes(requests(cluster) - before)
            restart_mib = contender.peak_mib()
        objects.close()
        return Run(
            who=who,
            objects=count,
            cpu=cpu / count * 1_000,
            store=store_share(Path(name), count),
            all_ready=took,
            writes=made / count,
            busy=sum(n for (_, _, code), n in answered.items() if code in BUSY),
            peak_mib=peak,
            restart=restart,
            restart_mib=restart_mib,
            idle_writes=idle_writes,
        )


def store_share(place: Path, count: int) -> float:
    """Processor time of one object's store calls, in ms."""
    words = ["-m", "bench.operator_floor", str(place / "alone.db"), "--alone", str(count)]
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
    return float(done.stdout) / count * 1_000


def report(runs: Sequence[Run]) -> dict[int, float]:
    """Print the table; the ratios by size."""
    print(
        f"\n{'':18} {'CPU ms/object':>13} {'store':>6} {'ratio':>6} {'writes':>7} {'busy':>5}"
        f" {'all ready s':>11} {'peak MiB':>9} {'restart s':>9} {'its MiB':>8} {'idle writes':>11}"
    )
    floors = {each.objects: each for each in runs if each.who == "floor"}
    ratios = {}
    for each in runs:
        floor = floors[each.objects]
        ratio = (each.cpu - each.store) / (floor.cpu - floor.store)
        if each.who != "floor":
            ratios[each.objects] = ratio
        print(
            f"{f'{each.who}, {each.objects:,}':18} {each.cpu:13.2f} {each.store:6.2f} {ratio:6.2f}"
            f" {each.writes:7.3f} {each.busy:5} {each.all_ready:11.1f} {each.peak_mib:9.0f}"
            f" {each.restart:9.1f} {each.restart_mib:8.0f} {sum(each.idle_writes.values()):11}"
        )
        if each.idle_writes:
            print(f"{'':18} idle: {each.idle_writes}")
    print(
        f"\nratio: of processor times without the store's share (goal: at most {RATIO}).\nwrites:"
        f" requests of an object that change something, by the API server's counters (goal:"
        f" {WRITES:.0f}).\nbusy: answers {', '.join(sorted(BUSY))} (goal: 0). Aims: peak"
        f" {MEMORY:.0f} MiB, restart until a new object is ready {RESTART:.0f} s.\nidle writes:"
        f" besides those of Leases, in the idle time of each run (goal: 0)."
    )
    return ratios


def main(arguments: Sequence[str] = ()) -> int:
    """Run all, print the table, keep the figures. 1: a goal was missed; 2: parts are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=SIZES)
    parser.add_argument("--idle", type=float, default=IDLE, help="seconds")
    parser.add_argument("--only", choices=CONTENDERS, help="one of the two, as for a profile")
    parser.add_argument("--python", default="", help="options, as '-m cProfile -o FILE'")
    args = parser.parse_args(arguments)
    try:
        parts.find()
    except Problem as missing:
        print(missing)
        return 2
    runs = [
        run(who, count, args.idle if who == "operator" else 0, args.python.split())
        for count in args.objects
        for who in CONTENDERS
        if args.only in (None, who)
    ]
    if args.only:
        print(json.dumps([asdict(each) for each in runs], indent=1))
        return 0
    ratios = report(runs)
    ours = [each for each in runs if each.who == "operator"]
    path = Path(__file__).parent / "results" / "operator.json"
    path.parent.mkdir(exist_ok=True)
    record = {
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "python": sys.version},
        "kernel": platform.release(),
        "idle_seconds": args.idle,
        "ratios": ratios,
        "runs": [asdict(each) for each in runs],
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"Figures: {path.relative_to(Path(__file__).parents[1])}")
    missed = [
        *(f"ratio {ratio:.2f} at {size:,}" for size, ratio in ratios.items() if ratio > RATIO),
        *(f"{each.writes:.3f} writes an object" for each in ours if each.writes > WRITES),
        *(f"{each.busy} busy answers" for each in ours if each.busy),
        *(f"idle: {each.idle_writes}" for each in ours if each.idle_writes),
    ]
    print(f"MISSED: {'; '.join(missed)}" if missed else "All goals are met.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
