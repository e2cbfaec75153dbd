"""Logs: work that only wanted to tell of itself goes on when nobody can be told (O4)."""

import errno
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest
import structlog

from shortlink.logs import log_to


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes what a process would keep open, and leaves structlog as other tests expect it."""
    opened: list[IO[Any]] = []
    open_ = Path.open

    def remembered(path: Path, *args: Any, **options: Any) -> IO[Any]:
        opened.append(open_(path, *args, **options))
        return opened[-1]

    monkeypatch.setattr(Path, "open", remembered)
    yield
    for file in opened:
        with suppress(OSError):
            file.close()
    structlog.reset_defaults()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def say_all() -> None:
    log = structlog.get_logger()
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(log, level)(f"{level} told", number=1)


@pytest.mark.parametrize(
    ("level", "told"),
    [
        (logging.DEBUG, ["debug", "info", "warning", "error", "critical"]),
        (logging.INFO, ["info", "warning", "error", "critical"]),
        (logging.WARNING, ["warning", "error", "critical"]),
        (logging.CRITICAL, ["critical"]),
    ],
)
def test_what_is_of_the_level_and_above_is_a_json_line(
    tmp_path: Path, level: int, told: list[str]
) -> None:
    path = tmp_path / "x.log"
    path.write_text('{"event": "older"}\n')
    log_to(path, level)
    say_all()
    older, *rest = lines(path)
    assert older == {"event": "older"}
    assert [line["level"] for line in rest] == told
    assert all(line["event"] == f"{line['level']} told" for line in rest)
    assert all(line["number"] == 1 and line["timestamp"].endswith("Z") for line in rest)


def test_info_is_told_unless_said_otherwise(tmp_path: Path) -> None:
    log_to(tmp_path / "x.log")
    say_all()
    assert lines(tmp_path / "x.log")[0]["level"] == "info"


def test_an_exception_is_told_with_its_traceback_in_one_line(tmp_path: Path) -> None:
    log_to(tmp_path / "x.log")
    try:
        raise ValueError("bad\nvalue \udcff é")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = lines(tmp_path / "x.log")
    assert "Traceback" in line["exception"]
    assert "ValueError: bad\nvalue" in line["exception"]


def test_without_a_path_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    log_to(None)
    structlog.get_logger().info("told")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "told"


def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        log_to(tmp_path / "no" / "x.log")
    with pytest.raises(OSError, match="Is a directory"):
        log_to(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no disk that is always full")
def test_a_full_disk_stops_nobody() -> None:
    log_to(Path("/dev/full"))
    for _ in range(3):
        say_all()


def test_a_pipe_that_nobody_reads_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    file = os.fdopen(write, "w")
    monkeypatch.setattr(sys, "stderr", file)
    log_to(None)
    for _ in range(3):
        say_all()
    monkeypatch.undo()
    with pytest.raises(BrokenPipeError):
        file.close()


def test_a_closed_file_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    file = open(os.devnull, "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", file)
    log_to(None)
    file.close()
    say_all()


class Disk:
    """A text file whose disk is full for a while."""

    def __init__(self) -> None:
        self.full = False
        self.text = ""

    def write(self, text: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.text += text

    def flush(self) -> None:
        pass


def test_lines_that_were_lost_are_told_of_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    monkeypatch.setattr(sys, "stderr", disk)
    log_to(None)
    log = structlog.get_logger()
    for event, full in [("a", False), ("b", True), ("c", True), ("d", False), ("e", False)]:
        disk.full = full
        log.info(event)
    told = [json.loads(line) for line in disk.text.splitlines()]
    assert [line["event"] for line in told] == ["a", "log lines lost", "d", "e"]
    assert told[1]["count"] == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no disk that is always full")
def test_what_a_real_file_could_not_take_is_told_or_there_and_every_line_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor that leads to a full disk, and then to one with room again."""
    path = tmp_path / "x.log"
    file = path.open("a", encoding="utf-8")
    monkeypatch.setattr(sys, "stderr", file)
    log_to(None)
    log = structlog.get_logger()
    log.info("first")
    room, full = os.dup(file.fileno()), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file.fileno())
    for n in range(500):
        log.info(f"lost {n}")
    os.dup2(room, file.fileno())
    log.info("last")
    monkeypatch.undo()
    file.close()
    os.close(room)
    os.close(full)
    told = [line["event"] for line in lines(path)]
    assert told[0] == "first"
    assert told[-1] == "last"
    assert "log lines lost" in told
