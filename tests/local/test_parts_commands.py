"""Running other programs: their failure is told with their last words, and they end with us."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from local.parts import __main__ as command
from local.parts import commands
from local.parts.commands import run
from local.problem import Problem


def quiet(_: str) -> None:
    """Hears a line of progress."""


def test_a_failure_is_told_with_the_last_words() -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18; do echo line $i; done; exit 3"
    with pytest.raises(Problem) as told:
        run("building etcd", ["sh", "-c", script], quiet, deadline=60)
    said = str(told.value)
    assert said.startswith("building etcd: `sh` ended with 3")
    assert "line 18" in said
    assert "line 3\n" not in said


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(Problem, match=r"building etcd: `sleep` took over"):
        run("building etcd", ["sleep", "300"], quiet, deadline=0.1)


def test_stopped_by_the_user_all_that_was_started_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "EVERY", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ours = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def interrupt(_: str) -> None:
        with suppress(BlockingIOError):
            if os.read(ours, 1):
                raise KeyboardInterrupt

    script = f"exec 3>{pipe}; sleep 300 & echo >&3; wait"
    with pytest.raises(KeyboardInterrupt):
        run("building etcd", ["sh", "-c", script], interrupt, deadline=60)
    os.set_blocking(ours, True)
    assert os.read(ours, 1) == b""  # nobody holds its other end any more
    os.close(ours)


def test_the_environment_is_added_to_ours(tmp_path: Path) -> None:
    told = tmp_path / "told"
    run(
        "x",
        ["sh", "-c", f'echo "$CGO_ENABLED${{PATH:+ path}}" > {told}'],
        quiet,
        deadline=60,
        environment={"CGO_ENABLED": "0"},
    )
    assert told.read_text() == "0 path\n"


def test_a_problem_is_one_line_and_a_failing_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise Problem("no room")

    monkeypatch.setattr(command, "ensure", refuse)
    monkeypatch.setattr("sys.argv", ["parts"])
    with pytest.raises(SystemExit, match=r"^parts: no room$"):
        command.main()
