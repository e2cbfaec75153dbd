"""Owners, sweepers, visitors, slow reads, crashes and time in any order (L1 to L5, K1 to K4, N1).

Two processes redirect. `near` also makes changes, and its cache is told of them; `far` only
sees the store, as do those who make changes `elsewhere`. Anything may pause at any store call
while others go on, or die there. HYPOTHESIS_PROFILE=long tries many more histories, other ones
each time, and makes one that fails as short as it can.
"""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import structlog
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shortlink.links.lifecycle import (
    KEEP,
    Actor,
    Command,
    Delete,
    Disable,
    Edit,
    Enable,
    Restore,
)
from shortlink.links.model import Link, State
from shortlink.links.policy import DAY, HOUR, SECOND, STALE_BOUND, YEAR, Policy
from shortlink.links.refusal import Refused
from shortlink.management import CodesExhausted, Management
from shortlink.redirect.responses import Response
from shortlink.redirect.service import RedirectService
from shortlink_operator.relay import Relay
from shortlink_operator.sweep import Sweeper
from tests.fakes import Crash, MemoryStore
from tests.property.acts import INTERRUPTIONS, Act, Interruption, SlowStore
from tests.property.ledger import LIVE, READ_DEADLINE, Deed, Ledger, Visit
from tests.samples import a_create
from tests.world import World

OWNERS = [Actor("ann"), Actor("bob"), Actor("cat")]
ROOT = Actor("root", admin=True)
ALIASES = ["abc", "abd"]
DRAWN = ["0000000", "0000001", "0000002"]

BRIEF = Policy(default_ttl=40 * SECOND, grace=STALE_BOUND, quarantine=0, expiring_ahead=5 * SECOND)
POLICIES = [
    BRIEF,
    replace(BRIEF, quarantine=20 * SECOND),
    replace(BRIEF, quarantine=20 * SECOND, reclaim=False),
    Policy(),
]
SPANS = [
    1,
    500,
    999,
    1000,
    1001,
    1999,
    2001,
    3000,
    4999,
    5000,
    5001,
    10_000,
    20_000,
    HOUR,
    DAY,
    YEAR,
]
LIVES = [1, 500, 1500, 3000, 6 * SECOND, 30 * SECOND, 2 * DAY, None]

REDIRECTING = ["near", "far"]
CHANGING = ["near", "elsewhere"]


KINDS = st.sampled_from(
    ["edit", "extend", "extend", "delete", "delete", "restore", "restore", "disable", "enable"]
)


class Platform(RuleBasedStateMachine):
    """See the module."""

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: Policy) -> None:
        self.broken: AssertionError | None = None  # in a callback whose caller carries on
        self.logs = ExitStack()
        self.said = self.logs.enter_context(structlog.testing.capture_logs())
        self.loop = asyncio.new_event_loop()
        self.world = World(policy)
        self.ledger = Ledger(self.world.clock, policy)
        self.seen = 0
        self.acts: list[Act] = []
        self.published: list[str] = []
        self.stores: dict[str, SlowStore] = {}
        self.services: dict[str, RedirectService] = {}
        self.reads: list[tuple[int, asyncio.Future[None]]] = []
        self.targets = 0
        for process in REDIRECTING:
            self.stores[process] = SlowStore(self.world.kept)
            self.services[process] = RedirectService(
                self.stores[process], self.world.clock.clock, capacity=2, read_deadline=1e6
            )

    # Changes

    @rule(
        owner=st.sampled_from(OWNERS),
        life=st.sampled_from(LIVES) | st.just(KEEP),
        drawn=st.sampled_from(DRAWN),
        stop=INTERRUPTIONS,
    )
    def create_generated(
        self, owner: Actor, life: Any, drawn: str, stop: Interruption | None
    ) -> None:
        self.world.codes = [drawn, *DRAWN * 3]
        act = self.act("create", owner, "near", stop)
        wanted = a_create(by=owner, target=act.deed.target, token=act.deed.target, code="")
        wanted = replace(wanted, expires_at=self.expiry(life))
        self.start(act, self.management(act).create_generated(wanted))

    @rule(
        owner=st.sampled_from(OWNERS),
        alias=st.sampled_from(ALIASES),
        life=st.sampled_from(LIVES),
        take_back=st.booleans(),
        process=st.sampled_from(CHANGING),
        stop=INTERRUPTIONS,
    )
    def create_alias(
        self,
        owner: Actor,
        alias: str,
        life: Any,
        take_back: bool,
        process: str,
        stop: Interruption | None,
    ) -> None:
        act = self.act("create", owner, process, stop)
        act.deed.take_back = take_back
        wanted = a_create(
            by=owner,
            code=alias,
            target=act.deed.target,
            token=act.deed.target,
            expires_at=self.expiry(life),
            take_back=take_back,
        )
        self.start(act, self.management(act).create(wanted))

    @precondition(lambda self: self.world.kept.links)
    @rule(
        data=st.data(),
        kind=KINDS,
        by_owner=st.integers(0, 5).map(bool),
        life=st.sampled_from(LIVES) | st.just(KEEP),
        process=st.sampled_from(CHANGING),
        stop=INTERRUPTIONS,
    )
    def change(
        self,
        data: st.DataObject,
        kind: str,
        by_owner: bool,
        life: Any,
        process: str,
        stop: Interruption | None,
    ) -> None:
        code = data.draw(st.sampled_from(sorted(self.world.kept.links)))
        owner = Actor(self.world.link(code).owner) if by_owner else OWNERS[0]
        self.start_change(code, kind, owner, life, process, stop)

    @precondition(lambda self: self.world.kept.links)
    @rule(
        data=st.data(),
        first=KINDS,
        second=KINDS,
        lives=st.tuples(st.sampled_from(LIVES), st.sampled_from(LIVES)),
        processes=st.tuples(st.sampled_from(CHANGING), st.sampled_from(CHANGING)),
        span=st.sampled_from(SPANS[:10]),
    )
    def race(
        self,
        data: st.DataObject,
        first: str,
        second: str,
        lives: tuple[Any, Any],
        processes: tuple[str, str],
        span: int,
    ) -> None:
        """One has read the row, then another changes it, then the first goes on to write, while
        visitors come by."""
        code = data.draw(st.sampled_from(sorted(self.world.kept.links)))
        owner = Actor(self.world.link(code).owner)
        waiting = len(self.acts)
        self.visit_all(code)
        before_its_write = Interruption(2, after=False, dies=False)
        self.start_change(code, first, owner, lives[0], processes[0], before_its_write)
        self.advance(1)  # the same change at the same instant would be the same write
        self.start_change(code, second, owner, lives[1], processes[1], None)
        self.advance(span)
        for act in self.acts[waiting:]:
            self.release(act, dies=False)
        self.visit_all(code)

    def start_change(
        self,
        code: str,
        kind: str,
        owner: Actor,
        life: Any,
        process: str,
        stop: Interruption | None,
    ) -> None:
        act = self.act(kind, owner, process, stop)
        commands: dict[str, Command] = {
            "edit": Edit(by=owner, target=act.deed.target),
            "extend": Edit(by=owner, expires_at=self.expiry(life)),
            "delete": Delete(owner),
            "restore": Restore(by=owner, expires_at=self.expiry(life)),
            "disable": Disable(ROOT, "spam"),
            "enable": Enable(ROOT),
        }
        self.start(act, self.management(act).apply(code, commands[kind]))

    @rule(process=st.sampled_from(CHANGING), stop=INTERRUPTIONS)
    def sweep(self, process: str, stop: Interruption | None) -> None:
        act = self.act("sweep", Actor("sweeper"), process, stop)

        async def run() -> None:
            await Sweeper(self.management(act), settle=0).run()

        self.start(act, run())

    @precondition(lambda self: self.acts)
    @rule(data=st.data(), dies=st.booleans())
    def go_on(self, data: st.DataObject, dies: bool) -> None:
        """What was paused goes on, or dies."""
        act = data.draw(st.sampled_from(self.acts))
        self.release(act, dies)

    @rule(stop=INTERRUPTIONS)
    def publish(self, stop: Interruption | None) -> None:
        act = self.act("relay", Actor("relay"), "near", stop)

        async def sink(events: Any) -> None:
            self.published += [event.id for event in events]

        async def run() -> None:
            await Relay(MemoryStore(self.world.kept, act), sink).run()

        self.start(act, run())

    # Visitors

    @rule(
        code=st.sampled_from([*ALIASES, *DRAWN]),
        process=st.sampled_from(REDIRECTING),
        slow=st.none() | st.booleans(),
    )
    def visit(self, code: str, process: str, slow: bool | None) -> None:
        self.arrive(code, process, slow)

    def visit_all(self, code: str) -> None:
        for process in REDIRECTING:
            self.arrive(code, process, None)

    def arrive(self, code: str, process: str, slow: bool | None) -> None:
        store, service = self.stores[process], self.services[process]
        store.slow = slow
        came = self.world.clock.clock.steady()
        visit = Visit(code, process, came, self.ledger.turn)

        async def route() -> Response | None:
            return service.route(
                b"/" + code.encode(), False, lambda answer: self.answered(visit, answer, True)
            )

        response = self.loop.run_until_complete(route())
        if response is not None:
            self.answered(visit, response, False)
        self.spin()
        store.slow = None
        self.reads += [(came, future) for future in store.waiting]
        store.waiting.clear()

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def finish_read(self, data: st.DataObject) -> None:
        read = data.draw(st.sampled_from(self.reads))
        self.reads.remove(read)
        read[1].set_result(None)
        self.spin()

    # Time

    @rule(span=st.sampled_from(SPANS))
    def wait(self, span: int) -> None:
        self.advance(span)

    @precondition(lambda self: self.coming())
    @rule(early=st.sampled_from([1, 0, 0, -1]))
    def wait_until_something_is_due(self, early: int) -> None:
        self.advance(max(0, self.coming()[0] - early - self.world.clock.at))

    def advance(self, span: int) -> None:
        """Reads that run into their deadline on the way fail then."""
        until = self.world.clock.clock.steady() + span
        for read in sorted(self.reads, key=lambda read: read[0]):
            if read[0] + READ_DEADLINE <= until:
                now = self.world.clock.clock.steady()
                self.world.clock.advance(max(0, read[0] + READ_DEADLINE - now))
                self.reads.remove(read)
                read[1].set_exception(TimeoutError())
                self.spin()
        self.world.clock.advance(until - self.world.clock.clock.steady())

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.finish()
        finally:
            for service in self.services.values():
                self.loop.run_until_complete(service.close())
            self.loop.close()
            self.logs.close()

    def finish(self) -> None:
        """In the end everything comes to rest: nothing is forgotten, and every event is out."""
        for act in list(self.acts):
            self.release(act, dies=True)
        for _, future in self.reads:
            future.set_result(None)
        self.reads.clear()
        self.spin()
        self.sweep("near", None)
        living = [link for link in self.world.live() if link.expires_at is not None]
        for _ in range(10 * len(self.world.kept.links)):
            if not (coming := self.coming()):
                break
            self.advance(coming[0] - self.world.clock.at)
            self.sweep("near", None)
        times = Counter(event.id for event in self.world.kept.told)
        twice = [id_ for id_, count in times.items() if count > 1]
        assert all(id_.endswith(".expiring") for id_ in twice), f"kept twice: {twice}"
        for link in living:
            if link.state is State.ACTIVE:
                name = f"{link.code}.{link.generation}.{link.expires_at}.expiring"
                assert name in times, f"{link.code} was not announced"
        last = State.FREE if self.world.policy.reclaim else State.QUARANTINED
        for link in self.world.kept.links.values():
            assert link.state is last or (link.state in LIVE and link.expires_at is None)
        hinted = {code for _, code in self.world.kept.due}
        for link in self.world.kept.links.values():
            assert link.state is not State.QUARANTINED or link.code in hinted, "forgotten"
        assert not [one for one in self.said if one.get("exc_info")], "something failed unforeseen"
        self.publish(None)
        assert set(self.published) == times.keys()
        assert self.world.kept.pending == {}

    # How it is done

    def act(self, kind: str, owner: Actor, process: str, stop: Interruption | None) -> Act:
        self.targets += 1
        target = f"https://example.com/{self.targets}"
        now = self.world.clock.at
        deed = Deed(kind, owner.owner, process, now, target)
        return Act(deed, self.world.clock, self.look, stop)

    def management(self, act: Act) -> Management:
        listeners = [self.services["near"].changed] if act.deed.process == "near" else []
        return self.world.management(act, listeners)

    def expiry(self, life: Any) -> Any:
        return self.world.clock.at + life if isinstance(life, int) else life

    def start(self, act: Act, work: Coroutine[Any, Any, Link | None]) -> None:
        act.task = self.loop.create_task(work)
        self.run(act)

    def run(self, act: Act) -> None:
        """Until it pauses, ends or dies."""
        task = act.task
        assert task is not None

        async def turn() -> None:
            while not task.done() and act.held is None:  # noqa: ASYNC110 - turns, not time
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())
        if self.broken:
            raise self.broken
        if not task.done():
            self.acts.append(act)
            return
        error = task.exception()
        if error is None:
            link = task.result()
            if link is not None:
                self.ledger.acknowledged(link, act.deed.process)
        elif not isinstance(error, Refused | Crash | CodesExhausted):
            raise error

    def release(self, act: Act, dies: bool) -> None:
        assert act.held is not None
        held, act.held = act.held, None
        self.acts.remove(act)
        if dies:
            held.set_exception(Crash())
        else:
            held.set_result(None)
        self.run(act)

    def look(self, deed: Deed) -> None:
        """Report to the ledger what was written since."""
        events = self.world.kept.told[self.seen :]
        self.seen = len(self.world.kept.told)
        for code, link in self.world.kept.links.items():
            known = self.ledger.rows.get(code)
            if known is None or known[-1].link != link:
                with self.remembered():
                    self.ledger.written(link, [one for one in events if one.code == code], deed)

    def answered(self, visit: Visit, response: Response, waited: bool) -> None:
        location = re.search(rb"Location: (\S+)", response.head)
        edge = re.search(rb"s-maxage=(\d+)", response.head)
        with self.remembered():
            self.ledger.answered(
                visit,
                waited,
                response.status,
                location.group(1).decode() if location else "",
                int(edge.group(1)) * 1000 if edge else 0,
            )

    @contextmanager
    def remembered(self) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            self.broken = self.broken or error
            raise

    def coming(self) -> list[int]:
        """When something falls due that hasn't yet."""
        daily = not self.world.policy.reclaim
        return sorted(
            at
            for at, code in self.world.kept.due
            if at > self.world.clock.at
            and not (daily and self.world.link(code).state is State.QUARANTINED)
        )

    def spin(self, turns: int = 12) -> None:
        async def turn() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())
        if self.broken:
            raise self.broken


# In `make test` and against planted bugs the same histories each time; `make prove` runs others.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE")
HISTORIES = {"planted": 2_000, "long": 20_000}
PHASES = [Phase.generate, Phase.shrink] if PROFILE == "long" else [Phase.generate]


def test_L5_no_schedule_breaks_a_promise() -> None:
    run_state_machine_as_test(
        Platform,
        settings=settings(
            max_examples=HISTORIES.get(PROFILE or "", 200),
            stateful_step_count=60,
            derandomize=PROFILE != "long",
            phases=PHASES,
            report_multiple_bugs=False,
            deadline=None,
        ),
    )
