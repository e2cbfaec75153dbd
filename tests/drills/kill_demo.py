"""Drill (L5): kill -9 of the demo at random moments under writes, started again, and counted.

    python -m tests.drills.kill_demo --kills 200 --seed 7

Writers create, edit, delete and restore links through the API, race each other for aliases, and
keep manifests in the folder. What was acknowledged has to be there after each kill; a write that
was not answered may have happened or not, but nothing in between.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.drills.demo_process import DemoProcess, NoAnswer, Reply, wait_for

OWNERS = ("ann", "bob", "cem")
_DELETED = None


@dataclass(slots=True)
class Held:
    """What one writer knows of a link: `may` holds every (target or deleted) it may be in."""

    code: str
    may: set[str | None]


@dataclass(slots=True)
class Record:
    """What all writers were told, and what was found wrong."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    winners: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def tell(self, what: str) -> None:
        """Note a broken promise."""
        with self.lock:
            self.wrong.append(what)

    def count(self, what: str) -> None:
        """Count an event of the drill."""
        with self.lock:
            self.counts[what] += 1


class Writer:
    """One owner, writing until the process dies."""

    def __init__(
        self, demo: DemoProcess, owner: str, key: str, record: Record, rng: random.Random
    ) -> None:
        self.owner = owner
        self.links: list[Held] = []
        self._demo, self._key, self._record, self._rng = demo, key, record, rng
        self._serial = 0
        self._before_deletion: dict[str, set[str]] = {}

    def run(self, stop: threading.Event) -> None:
        """Write until told to stop, or until there is no answer."""
        try:
            while not stop.is_set():
                self._one()
        except NoAnswer:
            self._record.count("writes cut off")
        except Exception as error:  # a writer that ends unseen would prove nothing
            self._record.tell(f"{self.owner}: {error!r}")

    def _one(self) -> None:
        choice = self._rng.random()
        if choice < 0.35 or not self.links:
            self._create()
        elif choice < 0.5:
            self._race()
        else:
            link = self._rng.choice(self.links)
            if len(link.may) == 1:
                self._change(link)

    def _target(self) -> str:
        self._serial += 1
        return f"https://{self.owner}.example/{self._rng.getrandbits(40):x}/{self._serial}"

    def _create(self) -> None:
        target = self._target()
        reply = self._demo.api(self._key, "POST", "", {"long_url": target})
        if self._expect(reply, 201, "create"):
            self.links.append(Held(reply.body["code"], {target}))

    def _race(self) -> None:
        alias = f"race{self._rng.randrange(10_000)}"
        target = self._target()
        reply = self._demo.api(self._key, "POST", "", {"long_url": target, "custom_alias": alias})
        if reply.status == 409:
            self._record.count("alias taken")
        elif self._expect(reply, 201, "alias"):
            with self._record.lock:
                other = self._record.winners.setdefault(alias, self.owner)
            if other != self.owner:
                self._record.tell(f"{alias} acknowledged to {other} and to {self.owner}")
            self.links.append(Held(alias, {target}))

    def _change(self, link: Held) -> None:
        (now,) = link.may
        if now is _DELETED:
            # The reply tells what came back; until then it is either.
            link.may = {_DELETED, *self._before_deletion[link.code]}
            reply = self._demo.api(self._key, "POST", f"/{link.code}/restore", {})
            if self._expect(reply, 200, "restore"):
                link.may = {reply.body["long_url"]}
        elif self._rng.random() < 0.5:
            target = self._target()
            link.may = {now, target}
            reply = self._demo.api(self._key, "PATCH", f"/{link.code}", {"long_url": target})
            if self._expect(reply, 200, "edit"):
                link.may = {target}
        else:
            self._before_deletion[link.code] = {now}
            link.may = {now, _DELETED}
            if self._expect(self._demo.api(self._key, "DELETE", f"/{link.code}"), 204, "delete"):
                link.may = {_DELETED}
                if (reply := self._demo.visit(link.code)).status != 410:
                    self._record.tell(f"{link.code} answered {reply} after its deletion")

    def _expect(self, reply: Reply, status: int, what: str) -> bool:
        self._record.count(what if reply.status == status else f"{what}: {reply.status}")
        if reply.status != status:
            self._record.tell(f"{self.owner}: {what} answered {reply}")
        return reply.status == status

    def verify(self) -> None:
        """After a restart: each link is in one of the states it may be in, and stays there."""
        for link in self.links:
            reply = self._demo.visit(link.code)
            found = reply.location if reply.status == 302 else _DELETED
            if reply.status not in (302, 410) or found not in link.may:
                self._record.tell(
                    f"{link.code} of {self.owner}: {reply}, but it may be"
                    f" {sorted(map(str, link.may))}"
                )
            if found is _DELETED and len(link.may) > 1:
                self._before_deletion.setdefault(link.code, {t for t in link.may if t is not None})
            link.may = {found}
            self._record.count("links verified")


class Manifests:
    """Objects in the folder, written before a kill; each has one link of its own after it."""

    def __init__(self, demo: DemoProcess, record: Record, rng: random.Random) -> None:
        self.targets: dict[str, str] = {}
        self.codes: dict[str, str] = {}
        self._demo, self._record, self._rng = demo, record, rng

    def write(self) -> None:
        """Add an object or edit one."""
        name = f"m{self._rng.randrange(60)}"
        target = f"https://objects.example/{name}/{self._rng.getrandbits(32):x}"
        self.targets[name] = target
        self._demo.write_manifest(name, {"target": target, "code": f"obj{name}"})

    def verify(self) -> None:
        """The last written target is served in the end, at the same code."""
        for name, target in self.targets.items():
            wait_for(
                lambda name=name, target=target: self._demo.visit(f"obj{name}").location == target,
                f"object {name} to lead to {target}; now {self._demo.visit(f'obj{name}')}",
            )
            self._record.count("objects verified")


def drill(kills: int, seed: int, place: Path) -> Record:
    """`kills` rounds on one database; the record of all."""
    rng = random.Random(seed)
    record = Record()
    with DemoProcess(place) as demo:
        keys = {owner: demo.new_key(owner) for owner in OWNERS}
        writers = [
            Writer(demo, owner, key, record, random.Random(rng.getrandbits(64)))
            for owner, key in keys.items()
        ]
        manifests = Manifests(demo, record, rng)
        demo.start()
        for round_ in range(kills):
            stop = threading.Event()
            threads = [threading.Thread(target=writer.run, args=(stop,)) for writer in writers]
            for thread in threads:
                thread.start()
            manifests.write()
            time.sleep(rng.uniform(0.005, 0.4))
            demo.kill()
            stop.set()
            for thread in threads:
                thread.join()
            demo.start()
            for writer in writers:
                writer.verify()
                del writer.links[: max(0, len(writer.links) - 100)]
            manifests.verify()
            record.count("kills")
            if (round_ + 1) % 10 == 0:
                print(f"{round_ + 1} kills, {len(record.wrong)} wrong", file=sys.stderr)
    return record


def main() -> None:
    """Run the drill, print its counts as JSON, and exit 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="shortlink-kill-"))
    record = drill(args.kills, args.seed, place)
    print(json.dumps({"seed": args.seed, **record.counts, "wrong": record.wrong}))
    if record.wrong:
        sys.exit(f"kept for a look: {place}")
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
