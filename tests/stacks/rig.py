"""Runs the Pulumi program against a recorder: what it asks for, not what an engine makes of it."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pulumi
from pulumi.runtime import MockCallArgs, MockResourceArgs, Mocks
from pulumi.runtime.rpc import _special_secret_sig, _special_sig_key
from pulumi.runtime.stack import Stack

from stacks.layers.apps import deploy_apps
from stacks.layers.platform import deploy_platform
from stacks.names import Stack as StackName

KUBECONFIG = "apiVersion: v1\nkind: Config\ncurrent-context: lab\n"
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
KEYS = f'{{"keys": [{{"owner": "lab", "admin": true, "sha256": "{DIGEST}"}}]}}'

PLATFORM = {
    "kubeconfig": KUBECONFIG,
    "api-keys": KEYS,
    "store": "cassandra://eu-west-1=10.0.0.1,us-east-1=10.0.0.2/links",
    "cache": "redis://10.0.0.3:6380",
    "base-url": "https://go.example",
}
APPS = {"kubeconfig": KUBECONFIG, "image": "registry.example:5000/shortlink:1"}
SECRET = ("kubeconfig", "api-keys")

OUTPUTS = {
    "namespace": "shortlink",
    "settings": "settings",
    "connections": "connections",
    "api_keys": "api-keys",
    "checksum": "c1",
}
"""What a platform stack leaves."""


@dataclass
class Recorder(Mocks):
    """Keeps what was asked for, and what the stack leaves."""

    asked: list[MockResourceArgs] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        self.asked.append(args)
        if args.typ == "pulumi:pulumi:StackReference":
            return args.name, {"name": args.name, "outputs": OUTPUTS}
        return args.name, args.inputs

    def call(self, args: MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"no provider is asked for anything, but {args.token} was")

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        """The objects of a kind, by name, in clear."""
        return {
            asked.name: in_clear(asked.inputs)
            for asked in self.asked
            if asked.typ.rpartition(":")[2] == kind
        }

    def one(self, kind: str) -> MockResourceArgs:
        """The only one of its kind, as it was asked for."""
        (found,) = [asked for asked in self.asked if asked.typ == kind]
        return found


def deploy(
    stack: str,
    settings: Mapping[str, str],
    secret: Iterable[str] = SECRET,
) -> Recorder:
    """Run the layer of `stack`. Raises what the program raises."""
    recorder = Recorder()
    pulumi.runtime.set_all_config(
        {f"shortlink:{key}": value for key, value in settings.items()},
        [f"shortlink:{key}" for key in secret],
    )
    parsed = StackName.parse(stack)
    layer = {"platform": deploy_platform, "apps": deploy_apps}[parsed.layer]

    def program() -> pulumi.Output[None]:
        layer(parsed)
        root = pulumi.runtime.get_root_resource()
        assert isinstance(root, Stack)
        return pulumi.Output.all(**root.outputs).apply(recorder.exported.update)

    with _closed_loops():
        pulumi.runtime.set_mocks(recorder, project="shortlink", stack=stack)
        pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    return recorder


@contextmanager
def _closed_loops() -> Iterator[None]:
    """Close the event loops that Pulumi's mocks make, one a thread, and leave open."""
    loops: list[asyncio.AbstractEventLoop] = []
    make = asyncio.new_event_loop

    def remembered() -> asyncio.AbstractEventLoop:
        loops.append(make())
        return loops[-1]

    with patch("asyncio.new_event_loop", remembered):
        asyncio.set_event_loop(remembered())
        try:
            yield
        finally:
            loops[0].run_until_complete(loops[0].shutdown_default_executor())
            asyncio.set_event_loop(None)
            for loop in loops:
                loop.close()


def in_clear(value: Any) -> Any:
    """`value` without the marks of secrets."""
    if is_secret(value):
        return in_clear(value["value"])
    if isinstance(value, dict):
        return {key: in_clear(each) for key, each in value.items()}
    if isinstance(value, list):
        return [in_clear(each) for each in value]
    return value


def is_secret(value: Any) -> bool:
    """Whether the engine would encrypt it."""
    return isinstance(value, dict) and value.get(_special_sig_key) == _special_secret_sig
