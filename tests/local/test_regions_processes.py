"""When a component is left alone, started, replaced, or given up."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from local.problem import Problem
from local.regions import cgroups, layout, processes
from local.regions.layout import REGIONS
from local.regions.processes import Component


@dataclass
class Machine:
    """Stands for the control group and the program: what runs, and what its health says."""

    running: bool = False
    answers: str | None = "refused"
    after_start: str | None = None
    ends_early: bool = False
    done: list[str] = field(default_factory=list)

    def start(self, component: Component) -> None:
        self.done.append("start")
        self.running = not self.ends_early
        self.answers = "refused" if self.ends_early else self.after_start
        component.log.parent.mkdir(parents=True, exist_ok=True)
        component.log.write_text("bind: address already in use\n")

    def kill(self, _: Path) -> None:
        self.done.append("kill")
        self.running = False

    def pids(self, _: Path) -> list[int]:
        return [1] * self.running


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(layout, "STATE", tmp_path)
    monkeypatch.setattr(processes, "HUNG_AFTER", 0.0)
    monkeypatch.setattr(cgroups, "group", tmp_path.joinpath)
    monkeypatch.setattr(cgroups, "pids", machine.pids)
    monkeypatch.setattr(cgroups, "kill", machine.kill)
    monkeypatch.setattr(Component, "start", lambda component: machine.start(component))
    return machine


def etcd(machine: Machine) -> Component:
    return Component(
        REGIONS[0], "etcd", ["etcd"], lambda: machine.answers, "127.0.0.1:2379", deadline=0.0
    )


def test_what_is_well_stays(machine: Machine) -> None:
    machine.running, machine.answers = True, None
    etcd(machine).ensure(pytest.fail)
    assert machine.done == []


def test_what_does_not_run_is_started(machine: Machine) -> None:
    said: list[str] = []
    etcd(machine).ensure(said.append)
    assert machine.done == ["start"]
    assert said == ["us-east-1 etcd: started"]


def test_what_runs_and_does_not_answer_is_replaced(machine: Machine) -> None:
    machine.running = True
    etcd(machine).ensure(lambda _: None)
    assert machine.done == ["kill", "start"]


def test_what_answers_from_outside_its_group_is_not_ours(machine: Machine) -> None:
    machine.answers = None
    etcd(machine).ensure(lambda _: None)
    assert machine.done == ["start"]


def test_an_early_end_is_told_with_the_end_of_its_log(machine: Machine) -> None:
    machine.ends_early = True
    with pytest.raises(Problem, match=r"etcd is not well: it ended; .*\n.*already in use"):
        etcd(machine).ensure(pytest.fail)


def test_one_that_never_gets_well_is_given_up_at_its_deadline(machine: Machine) -> None:
    machine.after_start = "answers 500"
    with pytest.raises(Problem, match="us-east-1 etcd is not well: after 0 s: answers 500"):
        etcd(machine).ensure(pytest.fail)


def test_the_state_of_what_does_not_run_is_not_asked_of_the_network(machine: Machine) -> None:
    machine.answers = None
    assert etcd(machine).state() == "not running"
