"""The cache of parts: keyed by content, whole parts or none, one builder at a time."""

import threading
from pathlib import Path

import pytest

from local.parts.cache import keyed, locked, making
from local.problem import Problem


def quiet(_: str) -> None:
    """Hears a line of progress."""


def test_what_a_part_is_made_from_names_its_folder() -> None:
    names = {
        keyed("etcd", b"go.mod", b"flags"),
        keyed("etcd", b"go.mod", b"other flags"),
        keyed("etcd", b"other", b"flags"),
        keyed("etcd", b"go.modf", b"lags"),
        keyed("cni", b"go.mod", b"flags"),
    }
    assert len(names) == 5
    assert keyed("etcd", b"go.mod", b"flags") in names


def test_a_part_cut_short_is_not_there_and_the_next_try_starts_clean(tmp_path: Path) -> None:
    target = tmp_path / "etcd-1"

    def cut_short() -> None:
        with locked(tmp_path, quiet, 0), making(target) as folder:
            (folder / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_short()
    assert not target.exists()

    with locked(tmp_path, quiet, 0), making(target) as folder:
        (folder / "etcd").touch()
    assert [file.name for file in target.iterdir()] == ["etcd"]


def test_what_a_killed_build_left_is_gone_once_the_next_has_the_lock(tmp_path: Path) -> None:
    (tmp_path / ".making-etcd-1").mkdir()
    (tmp_path / ".making-etcd-1" / "half").touch()
    (tmp_path / ".making-image.tar").touch()
    with locked(tmp_path, quiet, 0):
        assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_a_part_with_something_missing_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "cni-1"
    target.mkdir()
    (target / "bridge").touch()
    with making(target) as folder:
        (folder / "loopback").touch()
    assert [file.name for file in target.iterdir()] == ["loopback"]


def test_two_builds_take_turns_and_the_second_says_that_it_waits(tmp_path: Path) -> None:
    waits, order = threading.Event(), []

    def second() -> None:
        with locked(tmp_path, lambda line: waits.set(), 60):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path, quiet, 0):
        thread.start()
        assert waits.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_a_lock_held_for_too_long_is_a_problem_that_names_it(tmp_path: Path) -> None:
    def wait() -> None:
        with locked(tmp_path, quiet, 0):
            pytest.fail("two held it")

    with locked(tmp_path, quiet, 0), pytest.raises(Problem, match=str(tmp_path)):
        wait()
