"""The engine's environment: its state, its secrets and its plugins stay in one folder."""

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from local.parts import Parts
from local.problem import Problem
from local.regions.layout import CHECKOUT

PROVIDER = "pulumi-resource-kubernetes"
DEADLINE = 300.0  # seconds for one call
_GRACE = 30.0  # seconds to write the state after an interrupt


@dataclass(frozen=True)
class Engine:
    """The `pulumi` program, the folder that it works in, and its environment."""

    program: Path
    folder: Path
    environment: Mapping[str, str]

    def command(self, stack: str, *words: str) -> list[str]:
        """The command line of `pulumi WORDS` for `stack`."""
        first, *rest = words
        return [str(self.program), "-C", str(self.folder), first, "--stack", stack, *rest]

    def run(self, stack: str, *words: str, given: str = "") -> str:
        """Run it with `given` as its input; its output. Raises Problem with its own words."""
        command = self.command(stack, *words, "--non-interactive", "--color=never")
        told = shlex.join(["pulumi", *words])
        with (
            # The Kubernetes provider leaves a kubeconfig there each time, its key in clear.
            tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as temporary,
            subprocess.Popen(
                command,
                env={**self.environment, "TMPDIR": temporary},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process,
        ):
            try:
                output, _ = process.communicate(given, timeout=DEADLINE)
            except subprocess.TimeoutExpired:
                output = _interrupt(process)
                raise Problem(
                    f"{stack}: `{told}` took more than {DEADLINE:g} s: {output}"
                ) from None
        if process.returncode != 0:
            why = output.partition("Diagnostics:")[2] or output
            raise Problem(f"{stack}: `{told}` failed: {why.strip()}")
        return output

    def has(self, stack: str) -> bool:
        """Whether the stack was made."""
        return self._state(stack).exists()

    def mend(self, stack: str) -> None:
        """Remove what a killed run left: its lock, and a state that it had half written.

        Without a state, the next `up` takes over what it finds in the cluster.
        """
        held = False
        folder = self.folder / f"state/.pulumi/locks/organization/shortlink/{stack}"
        for lock in folder.glob("*.json"):
            if _held(lock):
                held = True
            else:
                lock.unlink(missing_ok=True)
                lock.with_name(f"{lock.name}.attrs").unlink(missing_ok=True)
        if not held and self.has(stack) and not _is_json(self._state(stack)):
            self._state(stack).unlink()

    def _state(self, stack: str) -> Path:
        return self.folder / f"state/.pulumi/stacks/shortlink/{stack}.json"


def _held(lock: Path) -> bool:
    try:
        os.kill(json.loads(lock.read_text())["pid"], 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, KeyError):
        pass  # gone, or not ours, or just being written
    return True


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def open_engine(parts: Parts, folder: Path) -> Engine:
    """Lay out `folder`, once, for the engine to work in.

    The project in it is the checkout's own, by links, so that the files of its stacks'
    configuration land beside the state that they belong to.
    """
    state, plugins = folder / "state", folder / "home/plugins"
    state.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in ("Pulumi.yaml", "stacks", ".venv"):
        _place(folder / name, CHECKOUT / name)
    kubernetes = plugins / f"resource-kubernetes-v{version('pulumi-kubernetes')}" / PROVIDER
    _place(kubernetes, parts.program(PROVIDER))
    # An installation of Pulumi brings its own, which is found before this one.
    python = plugins / f"language-python-v{version('pulumi')}" / "pulumi-language-python"
    host = [sys.executable, str(Path(__file__).with_name("language.py"))]
    _place(python, f'#!/bin/sh\nexec {shlex.join(host)} "$@"\n')
    passphrase = folder / "passphrase"
    if not passphrase.exists():
        with open(os.open(passphrase, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
    environment = {
        **os.environ,
        "PULUMI_HOME": str(folder / "home"),
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "TMPDIR": str(folder),  # what is left there goes with the platform
        # What a drill changed by hand is taken back, and a lost state is made up again.
        "PULUMI_K8S_ENABLE_PATCH_FORCE": "true",
    }
    environment.pop("PULUMI_CONFIG_PASSPHRASE", None)  # it would win
    return Engine(parts.program("pulumi"), folder, environment)


def _place(path: Path, content: Path | str) -> None:
    """Make a link to, or a program of, `content`, unless it is there: it may be in use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        if not path.is_symlink() or path.readlink() != content:
            path.unlink(missing_ok=True)
            path.symlink_to(content)
    elif not path.exists() or path.read_text(encoding="utf-8") != content:
        path.write_text(content, encoding="utf-8")
        path.chmod(0o755)


def _interrupt(process: subprocess.Popen[str]) -> str:
    """End it, with time to write down what it did; what it said."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=_GRACE)[0]
    except subprocess.TimeoutExpired:
        # Providers don't notice that their engine is gone.
        engine = psutil.Process(process.pid)
        for each in [*engine.children(recursive=True), engine]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        return process.communicate()[0]
