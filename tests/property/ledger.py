"""The platform's promises, stated anew: what may be written, and what may be answered when.

Nothing here uses `decide()`, `settled()` or `answer()`. The ledger sees each row as it is
written, by whom, and when that one last looked at the clock; and each answer that a visitor got.
"""

from dataclasses import dataclass, field

from shortlink.clock import HandClock
from shortlink.links.model import Event, Link, State
from shortlink.links.policy import Policy

BOUND = 5_000
"""No process serves a redirect for longer than this after it was replaced."""

NEGATIVE_BOUND = 1_000
"""Nor any other answer for longer than this (K3)."""

READ_DEADLINE = 2_000
"""Who joins a store read under way may be answered with what it found when it began."""

LIVE = (State.ACTIVE, State.DISABLED)


@dataclass
class Deed:
    """Something under way that may write rows: `kind`, by `owner`, in `process`.

    `decided`: what its clock showed when it last heard from the store, so at its decision.
    """

    kind: str
    owner: str
    process: str
    decided: int
    target: str = ""
    take_back: bool = False


@dataclass
class Visit:
    """Somebody asked `process` for `code` at `came` (steady), in the ledger's `turn`."""

    code: str
    process: str
    came: int
    turn: int


@dataclass
class Version:
    """A row as it was written at `at` (steady). `told`: at which turn a process acknowledged it."""

    link: Link
    at: int
    told: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Raises AssertionError as soon as a promise is broken."""

    def __init__(self, clock: HandClock, policy: Policy) -> None:
        self.rows: dict[str, list[Version]] = {}
        self.turn = 0  # one clock reading may see many acknowledgements and visitors
        self.tombstones: dict[str, int] = {}
        self.edges: dict[str, int] = {}  # until when the edge may keep a redirect of the code
        self._clock = clock
        self._policy = policy

    @property
    def steady(self) -> int:
        return self._clock.clock.steady()

    # What may be written

    def written(self, link: Link, events: list[Event], deed: Deed) -> None:
        """`link` has just been written, with `events`, by `deed`."""
        history = self.rows.setdefault(link.code, [])
        old = history[-1].link if history else None
        if old is None or link.generation != old.generation:
            self._issued(old, link, deed)
        else:
            assert link.version == old.version + 1, "a change got lost"
            assert (link.owner, link.token) == (old.owner, old.token), "a link changed hands"
            self._changed(old, link, deed)
        self._events(old, link, events)
        history.append(Version(link, self.steady))

    def _issued(self, old: Link | None, new: Link, deed: Deed) -> None:
        assert deed.kind == "create"
        assert (new.version, new.state, new.owner) == (1, State.ACTIVE, deed.owner)
        assert new.target == deed.target
        if old is None:
            assert new.generation == 1
            return
        assert new.generation == old.generation + 1
        assert new.custom, "a generated code was issued again"
        assert old.state is State.FREE, f"issued while {old.state}"
        owners = {version.link.owner for version in self.rows[new.code]}
        assert deed.owner not in owners or deed.take_back, "given back to a former owner unasked"
        assert self.steady >= self.edges.get(new.code, 0), "the edge still serves the last owner's"
        rest = max(self._policy.grace, self._policy.quarantine)
        assert deed.decided >= self.tombstones[new.code] + rest, "issued before its rest was over"

    def _changed(self, old: Link, new: Link, deed: Deed) -> None:
        now = deed.decided
        expired = old.state in LIVE and old.expires_at is not None and now >= old.expires_at
        if expired:
            self.tombstones[old.code] = old.expires_at or 0
        over = old.state is State.QUARANTINED or (
            (expired or old.state is State.TOMBSTONED)
            and now >= self.tombstones[old.code] + self._policy.grace
        )
        assert old.state is not State.FREE, "a freed code changed without being issued"
        if new.state in LIVE:
            assert new.expires_at is None or new.expires_at > now, "made live past its expiry"
            if old.state in LIVE and not expired:
                assert deed.kind in ("edit", "extend", "disable", "enable")
            else:
                assert deed.kind == "restore", f"{deed.kind} brought a dead link back"
                assert not over, "restored after the grace"
                assert (new.target, new.disabled) == (old.target, old.disabled)
        elif new.state is State.TOMBSTONED:
            assert not over or expired
            if old.state in LIVE and not expired:
                assert deed.kind == "delete", f"{deed.kind} killed a live link"
                self.tombstones[old.code] = now
            assert new.tombstoned_at == self.tombstones[old.code]
        elif new.state is State.QUARANTINED:
            assert deed.kind == "sweep"
            assert over, "quarantined during the grace"
        else:
            assert deed.kind == "sweep"
            assert old.state is State.QUARANTINED
            rest = max(self._policy.grace, self._policy.quarantine)
            assert now >= self.tombstones[old.code] + rest, "freed before its rest was over"
            assert self._policy.reclaim
        if deed.kind in ("edit", "extend", "delete", "restore"):
            assert deed.owner == old.owner, "changed by another"
        if deed.kind == "edit":
            assert new.target == deed.target
        elif new.target != old.target:
            raise AssertionError(f"{deed.kind} changed the target")

    def _events(self, old: Link | None, new: Link, events: list[Event]) -> None:
        """Who only has the events knows the state of the row (N1)."""
        reissued = old is None or old.generation != new.generation
        dead = False if old is None or reissued else old.state not in LIVE
        banned = False if old is None or reissued else old.disabled is not None
        state = None if old is None or reissued else old.state
        assert events, "a change without an event"
        for event in events:
            assert (event.code, *new.stamp) == (event.code, event.generation, event.version)
            match event.kind:
                case "tombstoned":
                    assert not dead
                    dead, state = True, State.TOMBSTONED
                case "restored":
                    assert dead
                    dead = False
                case "quarantined" | "freed":
                    assert dead
                    state = State(event.kind.replace("freed", "free"))
                case "disabled" | "enabled":
                    banned = event.kind == "disabled"
                case _:
                    assert not dead
        if not dead:
            state = State.DISABLED if banned else State.ACTIVE
        assert state is new.state, f"the events say {state}, the row {new.state}"

    # What may be answered

    def acknowledged(self, link: Link, process: str) -> None:
        """`process` has told a client that this is how the link is now."""
        for version in self.rows[link.code]:
            if version.link == link:
                version.told.setdefault(process, self.turn)
                self.turn += 1
                return
        raise AssertionError("acknowledged what was never written")

    def answered(self, visit: Visit, waited: bool, status: int, target: str, edge: int) -> None:
        """The visitor is answered now; `edge`: how many milliseconds a shared cache may keep it."""
        code = visit.code
        now = self._clock.at
        self.edges[code] = max(self.edges.get(code, 0), self.steady + edge)
        possible = self._possible(visit, waited)
        answers = [(_status(link, now), link.target if link else "") for link in possible]
        if status in (301, 302):
            assert (status, target) in answers, f"{target} served, possible: {answers}"
            assert any(
                link is not None
                and link.target == target
                and (link.expires_at is None or now + edge <= link.expires_at)
                for link in possible
            ), "the edge may keep it past its expiry"
        elif status == 503:
            assert waited, "an answer from memory needs no store"
        else:
            assert edge == 0
            assert status in [one for one, _ in answers], f"{status}, possible: {answers}"

    def _possible(self, visit: Visit, waited: bool) -> list[Link | None]:
        """What the row was, at any moment that an answer may still be about."""
        history: list[Version | None] = [None, *self.rows.get(visit.code, [])]
        possible: list[Link | None] = []
        for number, version in enumerate(history):
            link = version.link if version else None
            later = [one for one in history[number + 1 :] if one is not None]
            if later:
                replaced = later[0].at
                served = link is not None and link.state is State.ACTIVE
                bound = BOUND if served else READ_DEADLINE if waited else NEGATIVE_BOUND
                if visit.came >= replaced + bound:
                    continue
                if any(one.told.get(visit.process, visit.turn) < visit.turn for one in later):
                    continue
            possible.append(link)
        return possible


def _status(link: Link | None, now: int) -> int:
    if link is None:
        return 404
    if link.state not in LIVE or (link.expires_at is not None and now >= link.expires_at):
        return 410
    if link.state is State.DISABLED:
        return 451
    return 301 if link.permanent else 302
