"""Running other people's programs: with a deadline, a word now and then, and their last words."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from local.parts.cache import Tell
from local.problem import Problem

EVERY = 30.0  # seconds between two signs of life
LAST_WORDS = 15  # lines


def run(
    what: str,
    command: Sequence[object],
    tell: Tell,
    *,
    deadline: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command to its end, saying every half minute that it still runs.

    Raises Problem with its last lines when it fails or takes longer than `deadline` seconds.
    However this function ends, the command's whole process group has ended.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = False
        try:
            while not late:
                try:
                    process.wait(min(EVERY, deadline))
                    break
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - began
                    tell(f"{what}: still at it, {seconds:.0f} s")
                    late = seconds >= deadline
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if late or process.returncode:
            said.seek(0)
            ending = f"took over {deadline:.0f} s" if late else f"ended with {process.returncode}"
            words = "".join(said.readlines()[-LAST_WORDS:])
            raise Problem(
                f"{what}: `{Path(str(command[0])).name}` {ending}; its last words:\n{words}"
            )
