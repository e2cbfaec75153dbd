"""Drill (L5, T1): what can go wrong with a watch, and what the operator makes of it.

    python -m tests.drills.watch_faults --seconds 120

A proxy stands between the operator and a scratch cluster's API server. In each fault an object is
made, one edited, one deleted, and one deleted whose finalizer somebody took away. Once the fault
is over all is caught up with within one sweep. /healthz is asked all the time: it is red when the
watch tells nothing of what sweeps see, and never else.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from shortlink.links.model import State
from shortlink.store.sql import open_sql_store
from tests.apiserver import scratch_cluster
from tests.drills.site import table, verdict
from tests.operator_rig import Objects, OperatorProcess, ready
from tests.proxy import WATCH, Proxy

SWEEP = 20
CAUGHT_UP = SWEEP + 15.0
"""Seconds: a sweep, and the longest pause before a lost connection is tried again."""

GREEN_AGAIN = 2 * SWEEP + 15.0
"""Seconds until a watch that was deaf has told of everything, and a sweep has seen that."""

SHORT = 10.0
LOOK = 0.25
OLD, NEW = "https://old.example/", "https://new.example/"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to the proxy, for how many seconds; `deaf`: only the watch is hit."""

    name: str
    begin: Callable[[Proxy], None]
    seconds: float
    deaf: bool = False


def faults(long: float) -> Sequence[Fault]:
    """All of them; `long` is the duration of those that last."""

    def answers(status: int, matching: str, *, in_stream: bool = False) -> Callable[[Proxy], None]:
        def begin(proxy: Proxy) -> None:
            proxy.answer(status, matching, in_stream=in_stream)
            proxy.cut()

        return begin

    return (
        Fault("all connections cut", Proxy.cut, 0),
        Fault("watches cut in the middle of a line", Proxy.halve, SHORT),
        Fault("410 as a watch is asked for", answers(410, WATCH), SHORT),
        Fault("410 within the watch", answers(410, WATCH, in_stream=True), SHORT),
        Fault("connections refused", Proxy.refuse, SHORT),
        Fault("black hole", Proxy.swallow, long),
        Fault("500 to everything", answers(500, "."), long),
        Fault("403 to everything", answers(403, "."), long),
        Fault("500 to watches", answers(500, WATCH), long, deaf=True),
        Fault("403 to watches", answers(403, WATCH), long, deaf=True),
    )


@dataclass
class Health:
    """The statuses of /healthz, each with the time of its answer; 0 when there was none."""

    operator: OperatorProcess
    seen: list[tuple[float, int]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="health", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def since(self, began: float) -> list[int]:
        return [status for at, status in self.seen if at >= began]

    def _watch(self) -> None:
        while not self._stop.wait(LOOK):
            status = self.operator.says("/healthz")
            self.seen.append((time.monotonic(), status))


@dataclass
class Rig:
    """An operator behind a proxy, and what is looked at past it."""

    objects: Objects
    proxy: Proxy
    health: Health
    state: Callable[[str], tuple[State, str]]
    """Of the link at a code: its state and target."""

    def run(self, number: int, fault: Fault, broken: list[str]) -> tuple[object, ...]:
        """One fault, from begin to caught up; a row for the table."""
        space = f"fault-{number}"
        keys = {name: f"{space}/{name}" for name in ("edited", "deleted", "forced", "left", "made")}
        self.objects.namespace(space)
        for name in ("edited", "deleted", "forced", "left"):
            self.objects.create(keys[name], {"target": OLD})
        codes = {
            name: self.objects.ready(keys[name])["status"]["code"]
            for name in keys
            if name != "made"
        }
        began = time.monotonic()
        fault.begin(self.proxy)
        self.objects.create(keys["made"], {"target": NEW})
        self.objects.edit(keys["edited"], target=NEW)
        self.objects.delete(keys["deleted"])
        self.objects.delete(keys["forced"], force=True)
        time.sleep(fault.seconds)
        during = self.health.since(began)
        self.proxy.mend()
        mended = time.monotonic()
        left = self._await_caught_up(keys, codes)
        took = time.monotonic() - mended
        broken += [f"{fault.name}: {what} after {took:.0f} s" for what in left]
        after = self._await_green(mended) if fault.deaf else self.health.since(mended)
        red, amiss = during.count(503), [s for s in (*during, *after) if s not in (200, 503)]
        if fault.deaf and not red:
            broken.append(f"{fault.name}: the operator was deaf, and said nothing")
        if not fault.deaf and 503 in (*during, *after):
            broken.append(f"{fault.name}: red though it was not deaf")
        if amiss:
            broken.append(f"{fault.name}: /healthz answered {sorted(set(amiss))}")
        if after and after[-1] != 200:
            broken.append(f"{fault.name}: still red {GREEN_AGAIN:.0f} s after it")
        return fault.name, f"{fault.seconds:.0f}", f"{took:.1f}", f"{red * LOOK:.0f}"

    def _await_caught_up(self, keys: dict[str, str], codes: dict[str, str]) -> list[str]:
        end = time.monotonic() + CAUGHT_UP
        while (left := self._behind(keys, codes)) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def _behind(self, keys: dict[str, str], codes: dict[str, str]) -> list[str]:
        """What is not yet as it has to be."""
        behind = []
        for name, target in (("made", NEW), ("edited", NEW), ("left", OLD)):
            item = self.objects.get(keys[name])
            condition = None if item is None else ready(item)
            if item is None or condition is None or condition["status"] != "True":
                behind.append(f"{name} is {condition or 'not handled'}")
            elif self.state(item["status"]["code"]) != (State.ACTIVE, target):
                behind.append(f"{name} has {self.state(item['status']['code'])}")
        for name in ("deleted", "forced"):
            if self.objects.get(keys[name]) is not None:
                behind.append(f"{name} is still there")
            elif (state := self.state(codes[name])[0]) is not State.TOMBSTONED:
                behind.append(f"the link of {name} is {state}")
        return behind

    def _await_green(self, mended: float) -> list[int]:
        end = mended + GREEN_AGAIN
        while self.health.seen[-1][1] != 200 and time.monotonic() < end:
            time.sleep(LOOK)
        return self.health.since(mended)


@contextmanager
def store_states(database: Path) -> Iterator[Callable[[str], tuple[State, str]]]:
    """Reads a link's state and target from the store."""
    store = open_sql_store(database, as_it_is=True)
    with asyncio.Runner() as runner:

        def state(code: str) -> tuple[State, str]:
            link = runner.run(store.get(code))
            assert link is not None
            return link.state, link.target

        yield state
        runner.run(store.close())


def drill(long: float, only: str, place: Path) -> int:
    """All faults in turn; print, judge."""
    broken: list[str] = []
    rows = []
    with scratch_cluster() as cluster:
        cluster.apply_crds()
        objects = Objects(cluster)
        with (
            Proxy(cluster) as proxy,
            OperatorProcess(
                place, proxy.kubeconfig, SHORTLINK_SWEEP_SECONDS=str(SWEEP)
            ) as operator,
        ):
            operator.start()
            operator.wait_ready()
            with Health(operator) as health, store_states(place / "links.db") as state:
                rig = Rig(objects, proxy, health, state)
                for number, fault in enumerate(faults(long)):
                    if only not in fault.name:
                        continue
                    try:
                        rows.append(rig.run(number, fault, broken))
                    except AssertionError as error:  # it does not even handle what is new
                        broken.append(f"{fault.name}, before it: {error}")
                        break
                    print(rows[-1], broken, file=sys.stderr)
        objects.close()
    print(table(("fault", "lasted s", "caught up after s", "red s"), rows))
    held = f"caught up within {CAUGHT_UP:.0f} s of each fault's end; red only when deaf"
    return verdict(broken, held)


def main() -> None:
    """Run the drill; exit 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of the faults that last")
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shortlink-faults-") as name:
        status = drill(args.seconds, args.only, Path(name))
    sys.exit(status)


if __name__ == "__main__":
    main()
