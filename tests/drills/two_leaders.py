"""Drill (F9, G7): two operators, and the leader stopped and continued while objects change.

    python -m tests.drills.two_leaders --rounds 5 --seconds 40 --seed 7

A leader that is stopped (SIGSTOP) between any two of its steps goes on when another one leads,
and finishes what it had begun. Meanwhile objects are edited, deleted and applied again. A trigger
in the store keeps every write to a link. No link may go back to what its object was before, nor
come back without it; and each round ends with the links as their objects are.
"""

import argparse
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shortlink.links.model import LIVE, State
from shortlink_operator.kinds import API_VERSION
from tests.apiserver import scratch_cluster
from tests.drills.site import table, verdict
from tests.operator_rig import Objects, OperatorProcess, ready

NAMESPACE = "two-leaders"
OBJECTS = 40
PAUSE = 0.05
"""Seconds between two changes, at most."""
AT_ONCE = 8
HURRY = 0.4
"""Seconds that it takes to change all objects at once, in which the leader is stopped: so it is
in the midst of some.
"""
BUSY = 5.0
SETTLED_WITHIN = 90.0
SWEEP = 10
GONE = ""
"""Stands in a journal where others have the object's target."""

DELETIONS = {
    "apiVersion": API_VERSION,
    "kind": "LinkPolicy",
    "metadata": {"name": "default"},
    "spec": {"brake": {"percent": 100}},
}
"""All of them are let go."""

HISTORY = """
CREATE TABLE history (seq INTEGER PRIMARY KEY, code TEXT, version INTEGER, state TEXT, target TEXT);
CREATE TRIGGER born AFTER INSERT ON links BEGIN
  INSERT INTO history (code, version, state, target)
  VALUES (new.code, new.version, new.state, new.target);
END;
CREATE TRIGGER changed AFTER UPDATE ON links BEGIN
  INSERT INTO history (code, version, state, target)
  VALUES (new.code, new.version, new.state, new.target);
END;
"""


@dataclass(frozen=True, slots=True)
class Write:
    """What a link was written to be."""

    version: int
    state: State
    target: str


def wrong_writes(journal: Sequence[str], writes: Sequence[Write]) -> list[str]:
    """Writes that do not follow the object's journal: targets, all different, and GONE."""
    wrong, at = [], -1
    for write in writes:
        what = is_of(write)
        if at >= 0 and what == journal[at]:
            continue
        if what in journal[at + 1 :]:
            at = journal.index(what, at + 1)
        else:
            before = "nothing" if at < 0 else journal[at] or "deleted"
            wrong.append(f"version {write.version} is {write.state} {write.target}: was {before}")
    return wrong


def is_of(write: Write) -> str:
    """What an object is whose link was written so."""
    return write.target if write.state in LIVE else GONE


@dataclass
class Editor:
    """Changes objects, one at a time. `journals` has by key what each was asked to be."""

    objects: Objects
    rng: random.Random
    journals: dict[str, list[str]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """Make all objects, one half of them with an alias."""
        self.objects.namespace(NAMESPACE)
        for number in range(OBJECTS):
            self.journals[f"{NAMESPACE}/object-{number}"] = [GONE]
        for key in self.journals:
            self._create(key)

    def work(self, seconds: float) -> None:
        """Change things for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._change(self.rng.choice(list(self.journals)))
            time.sleep(self.rng.random() * PAUSE)

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """Change all objects at once, beside what is done meanwhile."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            changes = [threads.submit(self._change, key) for key in self.journals]
            yield
            for change in changes:
                change.result()

    def _change(self, key: str) -> None:
        if self.journals[key][-1] == GONE:
            if self.objects.get(key) is None:
                self._create(key)
        elif self.rng.random() < 0.2:
            self.journals[key].append(GONE)
            self.objects.delete(key)
            self.done["deleted"] += 1
        else:
            self.objects.edit(key, target=self._next(key))
            self.done["edited"] += 1

    def _create(self, key: str) -> None:
        number = int(key.rpartition("-")[2])
        alias = {"code": f"leaders{number}"} if number % 2 else {}
        self.objects.create(key, {"target": self._next(key), **alias})
        self.done["applied"] += 1

    def _next(self, key: str) -> str:
        journal = self.journals[key]
        journal.append(f"https://two.example/{key}/{len(journal)}")
        return journal[-1]


class Store:
    """The operators' store, read past them. `writes` are kept from its making on."""

    def __init__(self, database: Path) -> None:
        self._database = database
        with closing(self._open()) as connection:
            connection.executescript(HISTORY)

    def writes(self) -> Mapping[str, list[Write]]:
        """All writes to links, by code."""
        found: dict[str, list[Write]] = {}
        rows = "SELECT code, version, state, target FROM history ORDER BY seq"
        with closing(self._open()) as connection:
            for code, version, state, target in connection.execute(rows):
                found.setdefault(code, []).append(Write(version, State(state), target))
        return found

    def codes(self) -> Mapping[str, list[str]]:
        """The codes of the links of each object, by key."""
        found: dict[str, list[str]] = {}
        with closing(self._open()) as connection:
            for code, key in connection.execute("SELECT code, claim FROM links"):
                found.setdefault(key, []).append(code)
        return found

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._database, timeout=60)


class Pair:
    """The two operators."""

    def __init__(self, objects: Objects, place: Path, kubeconfig: Path) -> None:
        self._objects = objects
        self.operators = {
            name: OperatorProcess(
                place, kubeconfig, SHORTLINK_OPERATOR_NAME=name, SHORTLINK_SWEEP_SECONDS=str(SWEEP)
            )
            for name in ("one", "two")
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Both ready, and killed at the end."""
        try:
            for each in self.operators.values():
                each.start()
            for each in self.operators.values():
                each.wait_ready()
            yield
        finally:
            for each in self.operators.values():
                each.kill()

    @property
    def leader(self) -> str:
        """Whose the Lease is, or nothing."""
        for path in self._objects.leases():
            holder = self._objects.ask("GET", path)["spec"].get("holderIdentity") or ""
            return str(holder).rpartition("-")[0]
        return ""

    def await_leader(self, seconds: float, but: str = "") -> str:
        """Wait for one that is not `but`; its name, or nothing."""
        end = time.monotonic() + seconds
        while (name := self.leader) in ("", but):
            if time.monotonic() > end:
                return ""
            time.sleep(0.2)
        return name


@dataclass
class Rig:
    """The drill's parts, and what it found broken."""

    editor: Editor
    pair: Pair
    store: Store
    broken: list[str] = field(default_factory=list)

    def run(self, number: int, seconds: float) -> tuple[object, ...]:
        """One round; a row for the table."""
        editor, pair = self.editor, self.pair
        done, before = editor.done.copy(), sum(map(len, self.store.writes().values()))
        editor.work(editor.rng.uniform(1, BUSY))
        stopped = pair.await_leader(SETTLED_WITHIN)
        with editor.hurrying():
            time.sleep(editor.rng.uniform(0, HURRY))
            pair.operators[stopped].pause()
        began = time.monotonic()
        taken = None
        while time.monotonic() < began + seconds:
            editor.work(1)
            if taken is None and pair.leader not in ("", stopped):
                taken = time.monotonic() - began
        pair.operators[stopped].go_on()
        editor.work(BUSY)
        self.broken += [f"round {number}: {what}" for what in self.settle()]
        if taken is None:
            self.broken.append(f"round {number}: nobody took over from {stopped}")
        made = editor.done - done
        return (
            number,
            stopped,
            *(made[what] for what in ("applied", "edited", "deleted")),
            sum(map(len, self.store.writes().values())) - before,
            "" if taken is None else f"{taken:.0f}",
        )

    def settle(self) -> list[str]:
        """Wait until links are as objects are; what is not, and what was written wrongly."""
        end = time.monotonic() + SETTLED_WITHIN
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.2)
        return left + self._wrong()

    def _left(self) -> list[str]:
        left, codes, writes = [], self.store.codes(), self.store.writes()
        for key, journal in self.editor.journals.items():
            found, wanted = self.editor.objects.get(key), journal[-1]
            if (found is None) != (wanted == GONE):
                left.append(f"{key} is {found}, and should be {wanted or 'gone'}")
            elif found is not None and (ready(found) or {}).get("status") != "True":
                left.append(f"{key} is not ready: {found.get('status')}")
            lasts = [writes[code][-1] for code in codes.get(key, [])]
            if [is_of(last) for last in lasts] != [wanted]:
                left.append(f"{key} has {lasts}, and should have {wanted or 'nothing'}")
        return left

    def _wrong(self) -> list[str]:
        writes = self.store.writes()
        return [
            f"{key}: {what}"
            for key, codes in self.store.codes().items()
            for code in codes
            for what in wrong_writes(self.editor.journals[key], writes[code])
        ]


def drill(rounds: int, seconds: float, seed: int, place: Path) -> int:
    """All rounds, then a look whether all stays as it is; print, judge."""
    with scratch_cluster() as cluster:
        cluster.apply_crds()
        objects = Objects(cluster)
        objects.ask("POST", f"/apis/{API_VERSION}/linkpolicies", json=DELETIONS)
        pair = Pair(objects, place, cluster.kubeconfig)
        with pair.running():
            rig = Rig(Editor(objects, random.Random(seed)), pair, Store(place / "links.db"))
            rig.editor.begin()
            rows = [rig.run(number + 1, seconds) for number in range(rounds)]
            time.sleep(2 * SWEEP)
            rig.broken += [f"later: {what}" for what in rig.settle()]
            for name, each in pair.operators.items():
                if each.says("/healthz") != 200:
                    rig.broken.append(f"operator {name} is not well at the end")
        objects.close()
    print(f"seed {seed}; {OBJECTS} objects; the leader stopped for {seconds:.0f} s in each round")
    head = ("round", "stopped", "applied", "edited", "deleted", "writes to links", "taken over s")
    print(table(head, rows))
    return verdict(rig.broken, "no link went back or came back, and all end as their objects are")


def main() -> None:
    """Run the drill; exit 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=40, help="for which a leader is stopped")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shortlink-leaders-") as name:
        status = drill(args.rounds, args.seconds, args.seed, Path(name))
    sys.exit(status)


if __name__ == "__main__":
    main()
