"""Structured logs: JSON lines."""

import logging
import sys
from pathlib import Path
from typing import TextIO

import structlog


class _Lines:
    """Writes lines to `file`. Where it can't, it counts them: a full disk or a closed pipe may
    end no work that only wanted to tell of itself.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lost = 0

    def _write(self, line: str) -> None:
        lost = f'{{"event": "log lines lost", "count": {self._lost}}}\n' if self._lost else ""
        try:
            self._file.write(f"{lost}{line}\n")
            self._file.flush()
            self._lost = 0
        except (OSError, ValueError):
            self._lost += 1

    debug = info = warning = error = critical = exception = _write


def log_to(path: Path | None, level: int = logging.INFO, **always: str | None) -> None:
    """Send what is of `level` and above to the end of `path`, or to standard error.

    Each line has what is known of `always`.

    Raises OSError when the file can't be opened.
    """
    known = {name: value for name, value in always.items() if value is not None}
    lines = _Lines(path.open("a", encoding="utf-8") if path else sys.stderr)
    structlog.configure(
        processors=[
            lambda _logger, _method, line: {**known, **line},
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
