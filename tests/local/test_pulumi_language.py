"""The Python language host, as the engine sees it: a process, asked over its protocol."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import (
    engine_pb2,
    engine_pb2_grpc,
    language_pb2,
    language_pb2_grpc,
    resource_pb2,
    resource_pb2_grpc,
)

from local.pulumi import language
from local.regions.layout import CHECKOUT

KUBECONFIG = "apiVersion: v1\nkind: Config\ncurrent-context: lab\n"


class Engine(engine_pb2_grpc.EngineServicer, resource_pb2_grpc.ResourceMonitorServicer):
    """As much of an engine as a program needs; keeps what it is warned of and asked for."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.made: list[str] = []

    def Log(self, request: Any, context: Any) -> Any:
        if request.severity >= engine_pb2.WARNING:
            self.told.append(request.message)
        return empty_pb2.Empty()

    def SupportsFeature(self, request: Any, context: Any) -> Any:
        return resource_pb2.SupportsFeatureResponse(hasSupport=request.id == "secrets")

    def RegisterResource(self, request: Any, context: Any) -> Any:
        self.made.append(request.type)
        urn = f"urn:pulumi:{request.name}::shortlink::{request.type}::{request.name}"
        return resource_pb2.RegisterResourceResponse(urn=urn, id="id", object=request.object)

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()

    def SignalAndWaitForShutdown(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()


class Host:
    """A language host, its engine, and a client of the host."""

    def __init__(self, process: subprocess.Popen[str], engine: Engine, address: str) -> None:
        self.process, self.engine, self._address = process, engine, address
        assert process.stdout is not None
        self.channel = grpc.insecure_channel(f"127.0.0.1:{process.stdout.readline().strip()}")
        self.ask = language_pb2_grpc.LanguageRuntimeStub(self.channel)

    def run(self, folder: Path, stack: str, config: dict[str, str] | None = None) -> Any:
        info = language_pb2.ProgramInfo(
            root_directory=str(folder), program_directory=str(folder), entry_point="."
        )
        request = language_pb2.RunRequest(
            project="shortlink",
            stack=stack,
            info=info,
            config=config or {},
            configSecretKeys=["shortlink:kubeconfig", "shortlink:api-keys"],
            monitor_address=self._address,
            parallel=4,
        )
        return self.ask.Run(request, timeout=50)


@pytest.fixture(scope="module")
def shared() -> Iterator[Host]:
    with started() as host:
        yield host


@pytest.fixture
def host(shared: Host) -> Host:
    shared.engine.told.clear()
    shared.engine.made.clear()
    return shared


@contextmanager
def started() -> Iterator[Host]:
    engine = Engine()
    with serving(engine) as address:
        command = [sys.executable, language.__file__, "--ignored", address]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            host = Host(process, engine, address)
            try:
                yield host
            finally:
                host.channel.close()
                process.terminate()
                process.wait(20)


@contextmanager
def serving(engine: Engine) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor())
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(engine, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(20)


def program(folder: Path, text: str) -> Path:
    (folder / "__main__.py").write_text(text)
    return folder


def test_it_names_the_providers_that_the_packages_want_T5(host: Host) -> None:
    packages = host.ask.GetRequiredPackages(language_pb2.GetRequiredPackagesRequest()).packages

    wanted = {(each.name, each.kind, each.version) for each in packages}
    assert ("kubernetes", "resource", f"v{version('pulumi-kubernetes')}") in wanted


def test_it_says_which_version_it_is_T5(host: Host) -> None:
    host.ask.Handshake(language_pb2.LanguageHandshakeRequest())

    assert host.ask.GetPluginInfo(empty_pb2.Empty()).version == version("pulumi")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_quietly_when_the_engine_is_done_T1(number: int) -> None:
    with started() as host:
        host.process.send_signal(number)
        said = host.process.communicate(timeout=20)

    assert (host.process.returncode, said) == (0, ("", ""))


def test_it_ends_when_the_engine_was_killed_F9() -> None:
    command = [sys.executable, language.__file__, "nowhere"]
    engine = ["sh", "-c", f"{shlex.join(command)} & wait"]
    with subprocess.Popen(engine, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0

        process.kill()

        said, _ = process.communicate(timeout=20)  # which ends with its last writer

    assert said == ""


def test_a_program_runs_T1(host: Host, tmp_path: Path) -> None:
    done = host.run(program(tmp_path, "import pulumi\npulumi.export('a', 1)\n"), "any")

    assert (done.error, done.bail) == ("", False)
    assert host.engine.made == ["pulumi:pulumi:Stack"]


def test_a_program_that_refuses_is_not_called_a_crash_T1(host: Host, tmp_path: Path) -> None:
    text = "import pulumi\nraise pulumi.RunError('not so')\n"

    done = host.run(program(tmp_path, text), "any")

    assert (done.error, done.bail, host.engine.told) == ("", True, ["not so"])


def test_a_program_that_fails_shows_where_T1(host: Host, tmp_path: Path) -> None:
    done = host.run(program(tmp_path, "1 / 0\n"), "any")

    assert done.bail
    assert "ZeroDivisionError" in host.engine.told[0]
    assert "__main__.py" in host.engine.told[0]


def test_a_program_that_is_killed_is_an_error_T1(host: Host, tmp_path: Path) -> None:
    done = host.run(program(tmp_path, "import os\nos._exit(9)\n"), "any")

    assert "ended with 9" in done.error


def test_our_own_program_refuses_a_wrong_name_T1(host: Host) -> None:
    done = host.run(CHECKOUT / "stacks", "dev")

    assert done.bail
    assert "(local|own)-REGION-(platform|apps)" in host.engine.told[0]


def test_our_own_program_runs_as_the_engine_runs_it_T1(host: Host) -> None:
    config = {
        "kubeconfig": KUBECONFIG,
        "api-keys": '{"keys": []}',
        "store": "cassandra://lab=10.0.0.1/links",
        "base-url": "https://go.example",
    }

    done = host.run(
        CHECKOUT / "stacks",
        "own-lab-platform",
        {f"shortlink:{key}": value for key, value in config.items()},
    )

    assert (done.error, done.bail, host.engine.told) == ("", False, [])
    assert "kubernetes:core/v1:Namespace" in host.engine.made
