"""The stacks under the real engine and provider, on the clusters that they were deployed to."""

import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from local.parts import Parts, find
from local.problem import Problem
from local.pulumi.engine import Engine, open_engine
from local.regions.commands import run
from local.regions.layout import CHECKOUT, REGIONS, STATE
from local.stacks import FOLDER
from shortlink.api.keys import digest
from tests.apiserver import ScratchCluster, scratch_cluster
from tests.drills.site import Site

KEYS = '{"keys": [{"owner": "lab", "admin": true, "sha256": "' + "5e" * 32 + '"}]}'

STACKS = [f"local-{region.name}-{layer}" for region in REGIONS for layer in ("platform", "apps")]


@pytest.fixture(scope="module")
def parts(site: Site) -> Parts:
    return find()


@pytest.fixture
def deployed(parts: Parts) -> Engine:
    return open_engine(parts, FOLDER)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("stack", STACKS)
def test_a_second_preview_finds_nothing_to_change_T1(deployed: Engine, stack: str) -> None:
    deployed.run(stack, "preview", "--expect-no-changes")


def test_no_secret_lies_in_clear_in_state_or_settings_P1(deployed: Engine) -> None:
    secrets = set()
    for region in REGIONS:
        kubeconfig = yaml.safe_load((region.folder / "pki/deployer.kubeconfig").read_text())
        for user in kubeconfig["users"]:
            pem = base64.b64decode(user["user"]["client-key-data"]).decode()
            secrets |= {user["user"]["client-key-data"], pem.splitlines()[1]}
    secrets.add(digest((STATE / "api-key").read_text().strip()))
    secrets |= {base64.b64encode(secret.encode()).decode().rstrip("=")[:-2] for secret in secrets}

    kept = {
        path: path.read_text(errors="replace")
        for path in FOLDER.rglob("*")
        if path.is_file() and not path.is_relative_to(FOLDER / "home/plugins")
    }
    for stack in STACKS:
        assert any(f"{stack}.json" in path.name and "kubernetes" in kept[path] for path in kept)
        assert any(path.name == f"Pulumi.{stack}.yaml" and "secure:" in kept[path] for path in kept)
    assert [path for path, text in kept.items() if any(each in text for each in secrets)] == []


def test_the_state_is_the_users_alone_P1() -> None:
    assert FOLDER.stat().st_mode & 0o077 == 0


@pytest.mark.timeout(300)
def test_manifests_rendered_without_a_cluster_are_what_a_cluster_takes_T1(
    parts: Parts, tmp_path: Path
) -> None:
    engine, rendered = open_engine(parts, tmp_path / "pulumi"), tmp_path / "manifests"
    region = REGIONS[0]
    plain = {
        "platform": {
            "store": f"cassandra://{region.name}={region.address}/links",
            "base-url": "https://go.example",
        },
        "apps": {"image": "registry.example/shortlink:1"},
    }
    for layer, settings in plain.items():
        stack = f"own-{region.name}-{layer}"
        engine.run(stack, "stack", "init", "--no-select")
        for key, value in {**settings, "render": str(rendered)}.items():
            engine.run(stack, "config", "set", "--plaintext", key, value)
        if layer == "platform":
            engine.run(stack, "config", "set", "--secret", "api-keys", given=KEYS)
        engine.run(stack, "up", "--yes", "--skip-preview")

    said = run(
        parts.program("kubectl"),
        f"--kubeconfig={region.folder / 'pki/deployer.kubeconfig'}",
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server"),
        *("-f", rendered / "0-crd", "-f", rendered / "1-manifest"),
    )

    assert len(re.findall(r"serverside-applied", said)) == len(list(rendered.rglob("*.yaml"))) == 27
    (keys,) = rendered.rglob("*secret-shortlink-api-keys.yaml")
    content = yaml.safe_load(keys.read_text())["data"]["keys.json"]
    assert base64.b64decode(content).decode() == KEYS


LINK = {
    "apiVersion": "shortlink.platform/v1alpha1",
    "kind": "ShortLink",
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {"target": "https://real.example/"},
}


@pytest.mark.timeout(300)
def test_a_destroyed_platform_leaves_the_links_objects_for_the_next_T2_L3(
    parts: Parts, tmp_path: Path
) -> None:
    stack, kinds = "own-lab-platform", "shortlinks.shortlink.platform"
    with scratch_cluster() as cluster:
        first = platform_of(cluster, parts, tmp_path / "first", stack)
        first.run(stack, "up", "--yes", "--skip-preview")
        first.run(stack, "preview", "--expect-no-changes")
        cluster.kubectl("create", "-f", "-", given=json.dumps(LINK))

        before = cluster.kubectl("get", "shortlink", "one", "-o", "jsonpath={.metadata.uid}")

        first.run(stack, "destroy", "--yes", "--skip-preview")

        assert "namespace/shortlink\n" not in cluster.kubectl("get", "namespaces", "-o", "name")
        second = platform_of(cluster, parts, tmp_path / "second", stack)
        second.run(stack, "up", "--yes", "--skip-preview")
        # And what it took over is its own to change, as a release does.
        newer = (second.folder / "stacks").resolve().parent / "operator/crds/shortlinks.yaml"
        newer.write_text(newer.read_text().replace("    - sl\n", "    - newer\n"))
        second.run(stack, "up", "--yes", "--skip-preview")
        assert "newer" in cluster.kubectl("get", "crd", kinds, "-o", "jsonpath={.spec.names}")
        after = cluster.kubectl("get", "shortlink", "one", "-o", "jsonpath={.metadata.uid}")
        assert after == before


def platform_of(cluster: ScratchCluster, parts: Parts, folder: Path, stack: str) -> Engine:
    """An engine with a new platform stack for the cluster, and a program of its own to change.

    As in anybody's own cluster it forces nothing.
    """
    ours = open_engine(parts, folder / "pulumi")
    for part in ("stacks", "operator/crds"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / part, folder / part, ignore=ignored)
    (ours.folder / "stacks").unlink()
    (ours.folder / "stacks").symlink_to(folder / "stacks")
    forced = "PULUMI_K8S_ENABLE_PATCH_FORCE"
    environment = {key: text for key, text in ours.environment.items() if key != forced}
    engine = replace(ours, environment=environment)
    engine.run(stack, "stack", "init", "--no-select")
    settings = {"store": "cassandra://lab=10.0.0.1/links", "base-url": "https://go.example"}
    for key, value in settings.items():
        engine.run(stack, "config", "set", "--plaintext", key, value)
    secrets = {"api-keys": KEYS, "kubeconfig": cluster.kubeconfig.read_text()}
    for key, value in secrets.items():
        engine.run(stack, "config", "set", "--secret", key, given=value)
    return engine


def test_apps_are_refused_without_their_platform_T1(parts: Parts, tmp_path: Path) -> None:
    engine = open_engine(parts, tmp_path / "pulumi")
    stack = "own-nowhere-apps"
    engine.run(stack, "stack", "init", "--no-select")
    for key, value in {"image": "shortlink:1", "render": str(tmp_path / "out")}.items():
        engine.run(stack, "config", "set", "--plaintext", key, value)

    with pytest.raises(Problem, match=r"unknown stack .*own-nowhere-platform"):
        engine.run(stack, "preview")
    engine.run("own-nowhere-platform", "stack", "init", "--no-select")
    with pytest.raises(Problem, match="pulumi up --stack own-nowhere-platform"):
        engine.run(stack, "preview")
