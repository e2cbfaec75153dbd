"""The Python language host: what the engine asks of Pulumi's own, on the wheel's own protocol.

The engine runs it, as a file, with its address as the last argument; it prints its port first of
all. https://github.com/pulumi/pulumi/blob/master/proto/pulumi/language.proto
"""

import asyncio
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import sysconfig
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pulumi
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

RUN = "--run"

TOLD = 32
"""The exit code of a program that has told the user what is wrong, as in Pulumi's own host."""

_MOST = 1 << 30
"""Bytes of a message; the whole configuration of a program is one."""


class Language(language_pb2_grpc.LanguageRuntimeServicer):
    """Runs programs, each in a process of its own, for the engine at an address."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._programs: set[subprocess.Popen[bytes]] = set()

    def Handshake(self, request: Any, context: Any) -> Any:
        """Nothing has to be agreed on."""
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        """The wheel's version is ours."""
        return plugin_pb2.PluginInfo(version=version("pulumi"))

    def GetRequiredPackages(self, request: Any, context: Any) -> Any:
        """The providers that the installed packages name, in the versions that they name."""
        wanted = []
        for file in Path(sysconfig.get_path("purelib")).glob("*/pulumi-plugin.json"):
            plugin = json.loads(file.read_text(encoding="utf-8"))
            if plugin.get("resource"):
                wanted.append(
                    plugin_pb2.PackageDependency(
                        name=plugin["name"], kind="resource", version=f"v{plugin['version']}"
                    )
                )
        return language_pb2.GetRequiredPackagesResponse(packages=wanted)

    def Run(self, request: Any, context: Any) -> Any:
        """Run a program to its end."""
        program = subprocess.Popen(
            [sys.executable, "-u", __file__, RUN, self._engine],
            stdin=subprocess.PIPE,
            cwd=request.info.program_directory,
        )
        self._programs.add(program)
        program.communicate(request.SerializeToString())
        self._programs.discard(program)
        if program.returncode in (0, TOLD):
            return language_pb2.RunResponse(bail=program.returncode == TOLD)
        return language_pb2.RunResponse(error=f"the program ended with {program.returncode}")

    def stop(self) -> None:
        """End all programs."""
        for program in list(self._programs):
            program.terminate()


def serve(engine: str) -> None:
    """Serve until the engine sends SIGINT or SIGTERM, or is gone."""
    stop, parent = threading.Event(), os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    language = Language(engine)
    options = [("grpc.max_receive_message_length", _MOST)]
    server = grpc.server(ThreadPoolExecutor(), options=options)
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(language, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    while not stop.wait(1.0) and os.getppid() == parent:
        pass
    language.stop()
    server.stop(None).wait()


def run(engine: str, request: Any) -> int:
    """Run the program of a RunRequest; its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it, without a traceback
    pulumi.runtime.set_all_config(dict(request.config), list(request.configSecretKeys))
    pulumi.runtime.configure(
        pulumi.runtime.Settings(
            project=request.project,
            stack=request.stack,
            monitor=request.monitor_address,
            engine=engine,
            parallel=request.parallel,
            dry_run=request.dryRun,
            organization=request.organization,
            root_directory=request.info.root_directory,
        )
    )
    # What depends on a resource that fails is never awaited, and asyncio would tell of it.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    sys.path.pop(0)  # the folder of this file, which is no part of the program

    def program() -> None:
        runpy.run_path(request.info.entry_point, run_name="__main__")

    try:
        asyncio.run(pulumi.runtime.run_in_stack(program))
    except pulumi.RunError as refusal:
        pulumi.log.error(str(refusal))
        return TOLD
    except Exception:
        pulumi.log.error(traceback.format_exc())
        return TOLD
    return 0


if __name__ == "__main__":
    if RUN in sys.argv:
        sys.exit(run(sys.argv[-1], language_pb2.RunRequest.FromString(sys.stdin.buffer.read())))
    serve(sys.argv[-1])
