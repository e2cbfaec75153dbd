"""How the stacks are deployed into the local regions; what would be run is written down."""

import json
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from local import stacks
from local.parts import Parts
from local.problem import Problem
from local.pulumi import engine as engines
from local.pulumi.engine import PROVIDER, Engine, open_engine
from local.regions.layout import CHECKOUT, REGIONS, Region


class Call(NamedTuple):
    """One call of pulumi."""

    stack: str
    words: tuple[str, ...]
    given: str = ""


@dataclass
class Bench:
    """Writes down what would be run. A call that has `wrong` in it fails."""

    folder: Path
    parts: Parts
    wrong: str = ""
    calls: list[Call] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=lambda: {each.name: 1 for each in REGIONS})

    def pulumi(self, stack: str, *words: str, given: str = "") -> str:
        self.calls.append(Call(stack, words, given))
        if self.wrong and self.wrong in " ".join((stack, *words)):
            raise Problem(f"{stack}: it went wrong")
        return ""

    def rolled_out(self, region: Region) -> None:
        if self.wrong == f"the rollout in {region.name}":
            raise Problem(f"{region.name} is not ready")

    def deploy(self, image: str = "shortlink:1", keys: str = "KEYS") -> list[str]:
        self.calls.clear()
        said: list[str] = []
        clusters = {}
        for region in REGIONS:
            clusters[region.name] = self.folder.parent / f"{region.name}.kubeconfig"
            clusters[region.name].write_text(f"KUBECONFIG of {region.name}")
        stacks.deploy(self.parts, self.folder, clusters, image, keys, said.append)
        return said

    def upped(self) -> list[str]:
        """The stacks that were brought up by the last deployment, in order."""
        return [call.stack for call in self.calls if call.words[0] == "up"]


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    programs = {name: tmp_path / name for name in ("pulumi", PROVIDER)}
    return Parts(programs, cni=tmp_path, cassandra=tmp_path, java=tmp_path, cache=tmp_path)


@pytest.fixture
def bench(tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "folder", parts)
    monkeypatch.setattr(
        Engine, "run", lambda engine, *words, **given: bench.pulumi(*words, **given)
    )
    monkeypatch.setattr(stacks, "await_deployments", bench.rolled_out)
    monkeypatch.setattr(stacks, "generations", lambda region: bench.generations[region.name])
    return bench


ALL = sorted(f"local-{region.name}-{layer}" for region in REGIONS for layer in ("platform", "apps"))


def test_every_region_gets_its_platform_and_then_its_apps_T1(bench: Bench) -> None:
    said = bench.deploy()

    order = bench.upped()
    assert sorted(order) == ALL
    for region in REGIONS:
        platform, apps = f"local-{region.name}-platform", f"local-{region.name}-apps"
        assert order.index(platform) < order.index(apps)
    assert len(said) == len(ALL)


def test_what_was_changed_by_hand_is_taken_back_and_nothing_else_is_touched_F12(
    bench: Bench,
) -> None:
    bench.deploy()
    bench.generations["eu-west-1"] += 1
    bench.deploy()
    assert bench.upped() == ["local-eu-west-1-apps"]
    bench.deploy()
    assert bench.upped() == []


def test_a_region_is_told_its_own_addresses_M1(bench: Bench) -> None:
    bench.deploy()

    plain = {
        call.stack: [word for word in call.words if "=" in word]
        for call in bench.calls
        if "set-all" in call.words
    }
    assert plain["local-eu-west-1-platform"] == [
        "store=cassandra://us-east-1=10.77.1.1,eu-west-1=10.77.2.1,ap-southeast-1=10.77.3.1/links",
        "cache=redis://10.77.2.1:6379",
        "base-url=http://10.77.2.1:30080",
        "own-hosts=10.77.1.1:30080,10.77.2.1:30080,10.77.3.1:30080",
    ]
    assert plain["local-eu-west-1-apps"] == [
        "image=shortlink:1",
        "redirect-node-port=30080",
        "api-node-port=30081",
    ]


def test_secrets_are_on_no_command_line_P1(bench: Bench) -> None:
    bench.deploy()

    assert not [
        word for call in bench.calls for word in call.words if "KEYS" in word or " of " in word
    ]
    given = [call.given for call in bench.calls if "--secret" in call.words]
    assert given.count("KEYS") == 3
    assert given.count("KUBECONFIG of us-east-1") == 2


def test_the_same_inputs_cost_nothing_T1(bench: Bench) -> None:
    bench.deploy()

    assert (bench.deploy(), bench.calls) == ([], [])


def test_a_new_image_deploys_the_apps_alone_F12(bench: Bench) -> None:
    bench.deploy()
    bench.deploy(image="shortlink:2")

    assert sorted(bench.upped()) == [stack for stack in ALL if stack.endswith("-apps")]


def test_new_keys_deploy_the_apps_too_for_they_hold_the_checksum_W5(bench: Bench) -> None:
    bench.deploy()
    bench.deploy(keys="OTHER KEYS")

    assert sorted(bench.upped()) == ALL


def test_a_changed_kind_is_deployed_T2(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = tmp_path / "checkout/operator/crds/shortlinks.yaml"
    kind.parent.mkdir(parents=True)
    kind.write_text("kind: CustomResourceDefinition")
    (tmp_path / "checkout/Pulumi.yaml").write_text("name: shortlink")
    monkeypatch.setattr(stacks, "CHECKOUT", tmp_path / "checkout")
    bench.deploy()

    kind.write_text("kind: CustomResourceDefinition # newer")
    bench.deploy()

    assert sorted(bench.upped()) == ALL


def test_a_failed_region_is_tried_again_while_the_others_stand_F7(bench: Bench) -> None:
    bench.wrong = "local-eu-west-1-platform up"
    with pytest.raises(Problem, match="local-eu-west-1-platform: it went wrong"):
        bench.deploy()

    bench.wrong = ""
    bench.deploy()
    assert bench.upped() == ["local-eu-west-1-platform", "local-eu-west-1-apps"]


def test_a_rollout_that_does_not_end_is_no_deployment_F12(bench: Bench) -> None:
    bench.wrong = "the rollout in us-east-1"
    with pytest.raises(Problem, match="us-east-1 is not ready"):
        bench.deploy()

    bench.wrong = ""
    bench.deploy()
    assert bench.upped() == ["local-us-east-1-apps"]


def test_what_pulumi_finds_wrong_is_told_without_its_progress_T1(
    tmp_path: Path, parts: Parts
) -> None:
    stand_in(parts, 'echo progress; echo Diagnostics:; echo "  wrong"; exit 1')

    with pytest.raises(Problem, match=r"^local-x-apps: `pulumi preview` failed: wrong$"):
        open_engine(parts, tmp_path / "folder").run("local-x-apps", "preview")


def test_what_a_provider_leaves_behind_is_gone_with_the_call_P1(
    tmp_path: Path, parts: Parts
) -> None:
    stand_in(parts, 'echo "client key" > "$TMPDIR/kubeconfig1"; cat "$TMPDIR/kubeconfig1"')
    assert open_engine(parts, tmp_path / "folder").run("local-x-apps", "preview") == "client key\n"
    assert not list(tmp_path.rglob("kubeconfig1"))


def test_a_call_that_hangs_is_ended_and_told_T1(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "DEADLINE", 0.2)
    stand_in(parts, "exec sleep 1000")

    with pytest.raises(Problem, match="local-x-apps: `pulumi preview` took more than"):
        open_engine(parts, tmp_path / "folder").run("local-x-apps", "preview")


def test_a_call_that_will_not_end_is_killed_with_its_plugins_T1(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "DEADLINE", 0.1)
    monkeypatch.setattr(engines, "_GRACE", 0.1)
    plugin, interrupt = tmp_path / "plugin", engines._interrupt
    stand_in(parts, f"trap '' INT; setsid sleep 1000 & echo $! > {plugin}; wait")

    def once_started(process: subprocess.Popen[str]) -> str:
        while not plugin.exists() or not plugin.read_text():
            time.sleep(0.01)
        return interrupt(process)

    monkeypatch.setattr(engines, "_interrupt", once_started)
    with pytest.raises(Problem, match="took more than"):
        open_engine(parts, tmp_path / "folder").run("local-x-apps", "preview")

    with suppress(psutil.NoSuchProcess):  # init may not have reaped it yet
        left = psutil.Process(int(plugin.read_text()))
        while left.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


def stand_in(parts: Parts, script: str) -> None:
    parts.program("pulumi").write_text(f"#!/bin/sh\n{script}\n")
    parts.program("pulumi").chmod(0o755)


def test_the_engine_keeps_to_its_folder_and_downloads_nothing_P1(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "of another project")
    folder = tmp_path / "folder"

    engine = open_engine(parts, folder)

    passphrase = folder / "passphrase"
    told = {key: text for key, text in engine.environment.items() if key.startswith("PULUMI_")}
    assert engine.environment["TMPDIR"] == str(folder)
    assert told == {
        "PULUMI_HOME": str(folder / "home"),
        "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_K8S_ENABLE_PATCH_FORCE": "true",
    }
    assert passphrase.stat().st_mode & 0o777 == 0o600
    assert (folder / "Pulumi.yaml").resolve() == CHECKOUT / "Pulumi.yaml"
    before = passphrase.read_text()
    open_engine(parts, folder)
    assert passphrase.read_text() == before


def test_a_stack_is_named_where_no_value_can_be_taken_for_it_T1(
    tmp_path: Path, parts: Parts
) -> None:
    engine = open_engine(parts, tmp_path / "folder")

    command = engine.command("local-x-apps", "config", "set", "--", "key", "-1")

    assert command[3:] == ["config", "--stack", "local-x-apps", "set", "--", "key", "-1"]


def test_the_lock_of_a_dead_process_is_removed_and_no_other_F9(
    tmp_path: Path, parts: Parts
) -> None:
    engine = open_engine(parts, tmp_path / "folder")
    locks = engine.folder / "state/.pulumi/locks/organization/shortlink/local-x-apps"
    locks.mkdir(parents=True)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (locks / "dead.json").write_text(json.dumps({"pid": dead.pid}))
    (locks / "dead.json.attrs").write_text("{}")
    (locks / "alive.json").write_text(json.dumps({"pid": os.getpid()}))
    (locks / "torn.json").write_text("{")

    engine.mend("local-x-apps")

    assert {lock.name for lock in locks.iterdir()} == {"alive.json", "torn.json"}


@pytest.mark.parametrize(
    ("content", "lock", "left"),
    [("{}", None, True), ("", None, False), ('{"version": 3,', None, False), ("", "{}", True)],
)
def test_a_half_written_state_is_removed_unless_somebody_writes_it_F9(
    tmp_path: Path, parts: Parts, content: str, lock: str | None, left: bool
) -> None:
    engine = open_engine(parts, tmp_path / "folder")
    state = engine.folder / "state/.pulumi/stacks/shortlink/local-x-apps.json"
    state.parent.mkdir(parents=True)
    state.write_text(content)
    if lock:
        locks = engine.folder / "state/.pulumi/locks/organization/shortlink/local-x-apps"
        locks.mkdir(parents=True)
        (locks / "some.json").write_text(lock)

    engine.mend("local-x-apps")

    assert engine.has("local-x-apps") is left
