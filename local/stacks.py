"""Deploys the platform into the local regions; `python -m local.stacks STACK WORDS` is `pulumi`.

For example `python -m local.stacks local-us-east-1-apps preview --diff`.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from local.parts import Parts, find
from local.problem import Problem
from local.pulumi.engine import Engine, open_engine
from local.regions.cluster import await_deployments, generations
from local.regions.layout import CHECKOUT, NODE_PORTS, REGIONS, STATE, Region
from local.regions.processes import Say

FOLDER = STATE / "pulumi"


@dataclass(frozen=True)
class Inputs:
    """A stack's configuration: `plain` is shown by `pulumi config`, `secret` is encrypted."""

    stack: str
    plain: Mapping[str, str]
    secret: Mapping[str, str]

    def digest(self, below: str) -> str:
        """Changes with configuration and program, and with the digest of the layer `below`."""
        content: list[object] = [below, self.plain, self.secret]
        kinds = (CHECKOUT / "operator" / "crds").glob("*.yaml")
        program = (CHECKOUT / "stacks").rglob("*.py")
        for path in sorted([CHECKOUT / "Pulumi.yaml", *kinds, *program]):
            content.append({str(path): path.read_text(encoding="utf-8")})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def deploy(
    parts: Parts,
    folder: Path,
    clusters: Mapping[str, Path],
    image: str,
    keys: str,
    say: Say,
) -> None:
    """Deploy both layers into each of `clusters` (by region: a kubeconfig), all at once.

    `folder` keeps Pulumi's state, `keys` is the content of the file of hashed API keys. A stack
    whose inputs are those of its last deployment is left alone, unless its Deployments were
    changed by hand since. Raises Problem for the first
    region that fails, once all have ended.
    """
    engine = open_engine(parts, folder)

    def region_up(region: Region) -> None:
        text = clusters[region.name].read_text(encoding="utf-8")
        digest = ""
        for inputs in (platform_inputs(region, text, keys), apps_inputs(region, text, image)):
            began = time.monotonic()
            marker = folder / f"deployed-{inputs.stack}"
            digest = inputs.digest(below=digest)
            is_apps = inputs.stack.endswith("-apps")
            if marker.exists() and marker.read_text() == _state(region, digest, is_apps):
                continue
            marker.unlink(missing_ok=True)
            _up(engine, inputs)
            if is_apps:
                # The API server itself is asked, for the provider may be early to call it done.
                await_deployments(region)
            marker.write_text(_state(region, digest, is_apps))
            say(f"{inputs.stack}: deployed, {time.monotonic() - began:.0f} s")

    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(region_up, region) for region in REGIONS if region.name in clusters]
    for end in ends:
        end.result()


def _state(region: Region, digest: str, is_apps: bool) -> str:
    return f"{digest} {generations(region)}" if is_apps else digest


def store_address(keyspace: str = "links") -> str:
    """The regions' Cassandra, as SHORTLINK_STORE names it."""
    hosts = ",".join(f"{each.name}={each.address}" for each in REGIONS)
    return f"cassandra://{hosts}/{keyspace}"


def platform_inputs(region: Region, kubeconfig: str, keys: str) -> Inputs:
    """What the platform stack of a region is told."""
    plain = {
        "store": store_address(),
        "cache": f"redis://{region.address}:6379",
        "base-url": f"http://{region.address}:{NODE_PORTS['redirect']}",
        "own-hosts": ",".join(f"{each.address}:{NODE_PORTS['redirect']}" for each in REGIONS),
    }
    secret = {"kubeconfig": kubeconfig, "api-keys": keys}
    return Inputs(f"local-{region.name}-platform", plain, secret)


def apps_inputs(region: Region, kubeconfig: str, image: str) -> Inputs:
    """What the apps stack of a region is told."""
    ports = {f"{service}-node-port": str(port) for service, port in NODE_PORTS.items()}
    plain = {"image": image, **ports}
    return Inputs(f"local-{region.name}-apps", plain, {"kubeconfig": kubeconfig})


def _up(engine: Engine, inputs: Inputs) -> None:
    stack = inputs.stack
    engine.mend(stack)
    if not engine.has(stack):
        engine.run(stack, "stack", "init", "--no-select")
    pairs = [word for pair in inputs.plain.items() for word in ("--plaintext", "=".join(pair))]
    engine.run(stack, "config", "set-all", *pairs)
    for key, value in inputs.secret.items():
        engine.run(stack, "config", "set", "--secret", key, given=value)
    # A cluster that was wiped, or changed by hand, is not what the state says.
    engine.run(stack, "up", "--yes", "--skip-preview", "--refresh")


def main() -> None:
    """Run `pulumi` for a local stack, in this process's place."""
    if len(sys.argv) < 3:
        sys.exit("use: python -m local.stacks local-REGION-(platform|apps) preview|up|destroy|...")
    try:
        engine = open_engine(find(), FOLDER)
    except Problem as problem:
        sys.exit(f"stacks: {problem}")
    stack, *words = sys.argv[1:]
    engine.mend(stack)
    (FOLDER / f"deployed-{stack}").unlink(missing_ok=True)  # by hand, it may be anything now
    command = engine.command(stack, *words)
    os.execve(command[0], command, engine.environment)  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    main()
