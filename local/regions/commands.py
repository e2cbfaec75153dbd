"""Runs the machine's own tools."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from local.problem import Problem

Arguments = Sequence[str | Path]


def run(*command: str | Path, seconds: float = 30.0, given: str | None = None) -> str:
    """A command's output. Raises Problem with its own words when it fails or takes too long."""
    done = attempt(*command, seconds=seconds, given=given)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise Problem(f"`{_short(command)}` failed ({done.returncode}): {said}")
    return done.stdout


def attempt(
    *command: str | Path, seconds: float = 30.0, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that may fail. Raises Problem when it isn't here or takes too long."""
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError as missing:
        raise Problem(f"{command[0]} is not here: {missing}") from missing
    except subprocess.TimeoutExpired as late:
        raise Problem(f"`{_short(command)}` took more than {seconds:g} s") from late


def _short(command: Arguments) -> str:
    text = " ".join(map(str, command))
    return text if len(text) < 200 else f"{text[:200]} ..."
