"""A PostgreSQL of a test's own, in a folder that goes with it.

with Server() as server:
    store = open_postgres_store(server.fresh_database())
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psycopg

DEADLINE = 60
"""Seconds to start or stop on a busy machine."""

_READY = "database system is ready to accept connections"


def _programs() -> Path:
    """Where `initdb` and `postgres` are: on PATH, or where Debian keeps them, newest first."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    raise FileNotFoundError(
        "no initdb here: install PostgreSQL (Debian: postgresql-15), or put it on PATH"
    )


class Server:
    """Begins when it is entered and is gone, with all its data, when it is left.

    It listens on a socket in its folder only. The databases' own order is English, unlike the
    store's, which is by bytes.
    """

    def __init__(self) -> None:
        self._programs = _programs()
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._process: subprocess.Popen[str] | None = None
        self._databases = 0
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to be
            nobody = pwd.getpwnam("nobody")
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def __enter__(self) -> Self:
        try:
            self._run(
                "initdb",
                *("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C.UTF-8"),
                *("--locale-provider", "icu", "--icu-locale", "en-US", "--no-sync"),
            )
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder)

    @property
    def process(self) -> int:
        """The main process's id, to stop it or let it go on."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str) -> str:
        """The address of `database`, which may not be there."""
        return f"postgresql://postgres@/{database}?host={quote(str(self._folder), safe='')}"

    def fresh_database(self) -> str:
        """The address of a new and empty database."""
        self._databases += 1
        name = f"test{self._databases}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """The rows of `statement`, if it has any."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # What it wrote outlives the process without fsync, and no test turns the power off.
        settings = [
            "listen_addresses=",
            f"unix_socket_directories={self._folder}",
            "fsync=off",
            # Nobody reads its log once it is ready, and where the pipe is full it stands still:
            # so no line for each statement that fails.
            "log_min_messages=log",
            "log_checkpoints=off",
        ]
        command = [str(self._programs / "postgres"), "-D", str(self._data)]
        command += [word for setting in settings for word in ("-c", setting)]
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=self._folder, **self._as
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if _READY in line:
                return
        self._process.wait(DEADLINE)
        raise RuntimeError("PostgreSQL did not start:\n" + "".join(said))

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT in order, SIGQUIT at once as in a crash. Not running: nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.communicate(timeout=DEADLINE)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, "-D", self._data, *arguments],
            check=True,
            capture_output=True,
            timeout=DEADLINE,
            cwd=self._folder,
            **self._as,
        )
