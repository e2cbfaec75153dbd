"""A region's Kubernetes nodes: what is each one's own, and how the second comes and goes."""

import ipaddress
import json
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from local.parts import Parts
from local.problem import Problem
from local.regions import cgroups, faults, layout, network, node, pki, second
from local.regions.layout import REGIONS, ClusterNode
from local.regions.processes import Component

EAST = REGIONS[0]
NOW = datetime(2026, 12, 1, tzinfo=UTC)
HERE = Path("/parts")
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "kubectl", "kubelet", "nft", "runc")
PARTS = Parts({name: HERE / name for name in PROGRAMS}, HERE / "cni", HERE, HERE, HERE)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "STATE", tmp_path)
    monkeypatch.setattr(second, "find", lambda: PARTS)


def nodes() -> list[ClusterNode]:
    return [each for region in REGIONS for each in (region.node, region.second_node)]


def components() -> list[Component]:
    makers = (node.container_runtime, node.kubelet)
    return [make(each, PARTS) for each in nodes() for make in makers]


def containerd(of: ClusterNode) -> dict[str, Any]:
    return tomllib.loads(node.containerd_settings(of, Path("/cni")))


def bridge(of: ClusterNode) -> dict[str, Any]:
    (found,) = json.loads(node.network_settings(of))["plugins"]
    assert isinstance(found, dict)
    return found


def test_no_two_nodes_share_a_name_an_address_or_a_group() -> None:
    own: list[list[object]] = [
        [each.name for each in nodes()],
        [each.address for each in nodes()],
        [each.pods for each in nodes()],
        [(each.region.name, each.bridge) for each in nodes()],
        [(each.region.name, group) for each in nodes() for group in node.groups(each)],
        [(each.region.name, each.name) for each in components()],
        [path for each in components() for path in each.files],
        [node.kubelet_settings(each)["cgroupRoot"] for each in nodes()],
        [node.kubelet_settings(each)["tlsPrivateKeyFile"] for each in nodes()],
        [node.kubelet_settings(each)["podLogsDir"] for each in nodes()],
        [containerd(each)["root"] for each in nodes()],
        [bridge(each)["ipam"]["dataDir"] for each in nodes()],
    ]
    assert [len(set(values)) for values in own] == [len(values) for values in own]


def test_the_second_node_leaves_the_addresses_of_spare_stores_alone() -> None:
    spares = {region.spare_address(last) for region in REGIONS for last in (2, 3, 4)}
    assert not spares & {each.address for each in nodes()}


def test_a_node_that_is_removed_takes_only_its_own_folder() -> None:
    for region in REGIONS:
        theirs = region.second_node.folder
        assert theirs.is_relative_to(region.folder)
        assert theirs != region.folder
        first = [*node.container_runtime(region.node, PARTS).files, pki.folder(region), region.logs]
        assert not any(path.is_relative_to(theirs) for path in first)


def test_all_that_containerd_writes_lies_in_its_nodes_folder() -> None:
    for each in nodes():
        settings = containerd(each)
        runtime = settings["plugins"]["io.containerd.cri.v1.runtime"]
        options = runtime["containerd"]["runtimes"]["runc"]["options"]
        written = [settings["root"], settings["state"], settings["grpc"]["address"]]
        written += [settings["ttrpc"]["address"], options["Root"], runtime["cni"]["conf_dir"]]
        images = settings["plugins"]["io.containerd.cri.v1.images"]
        written += [images["registry"]["config_path"]]
        assert all(Path(path).is_relative_to(each.folder) for path in written)
        assert runtime["netns_mounts_under_state_dir"] is True
        _, shims = node.groups(each)
        assert options["ShimCgroup"] == f"/{cgroups.TREE}/{each.region.name}/{shims}"


def test_the_kubelet_answers_nobody_without_a_name() -> None:
    for each in nodes():
        settings: dict[str, Any] = node.kubelet_settings(each)
        assert settings["authentication"]["anonymous"] == {"enabled": False}
        assert settings["authorization"] == {"mode": "Webhook"}
        assert settings["readOnlyPort"] == 0


def test_a_kubelet_listens_at_its_nodes_address_alone() -> None:
    for each in nodes():
        settings = node.kubelet_settings(each)
        assert settings["address"] == settings["healthzBindAddress"] == each.address


def test_pods_get_addresses_of_their_node() -> None:
    for each in nodes():
        found = bridge(each)
        assert found["ipam"]["ranges"] == [[{"subnet": each.pods}]]
        assert found["bridge"] == each.bridge
        assert found["ipMasq"] is True


def test_the_one_proxy_counts_the_pods_of_both_nodes_as_the_clusters() -> None:
    for region in REGIONS:
        inside = ipaddress.IPv4Network(str(node.proxy_settings(region)["clusterCIDR"]))
        for each in (region.node, region.second_node):
            assert ipaddress.IPv4Network(each.pods).subnet_of(inside)


def test_a_kubelet_is_the_user_of_its_node_and_no_other() -> None:
    pki.make(EAST, NOW)
    for each in (EAST.node, EAST.second_node):
        path = Path(str(node.kubelet_settings(each)["tlsCertFile"]))
        held = x509.load_pem_x509_certificate(path.read_bytes())
        (user,) = held.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert user.value == f"system:node:{each.name}"
        names = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(it) for it in names.get_values_for_type(x509.IPAddress)] == [each.address]
        assert any(str(path.with_suffix(".kubeconfig")) in str(it) for it in command(each))


def command(of: ClusterNode) -> list[str]:
    return [str(word) for word in node.kubelet(of, PARTS).command]


def test_a_region_without_a_certificate_for_a_second_node_is_told_what_to_do() -> None:
    with pytest.raises(Problem, match="is older than its second node: `make down`, then `make up`"):
        second.add_node(EAST.name)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the machine, in order."""
    done: list[str] = []

    def run(*words: str | Path, seconds: float = 0.0) -> str:
        done.append(" ".join(map(str, words)))
        return ""

    monkeypatch.setattr(second, "run", run)
    monkeypatch.setattr(cgroups, "remove", lambda *names: done.append("kill " + "/".join(names)))
    monkeypatch.setattr(second, "remove_folder", lambda path: done.append(f"remove {path}"))
    monkeypatch.setattr(network, "remove_node", lambda node: done.append(f"unplug {node.name}"))
    return done


def test_a_kubelet_ends_before_its_node_is_forgotten_and_its_files_go_last(done: list[str]) -> None:
    second.remove_node(EAST.name)
    there = EAST.second_node
    forget, *_ = (line for line in done if line.startswith("/parts/kubectl"))
    assert f"delete node {there.name} " in forget
    kubelet, forgotten, files = map(
        done.index, ("kill us-east-1/kubelet-2", forget, f"remove {there.folder}")
    )
    killed = [at for at, line in enumerate(done) if line.startswith("kill ")]
    assert kubelet < forgotten
    assert max(killed) < files
    assert {done[at] for at in killed} == {
        f"kill us-east-1/{name}-2" for name in ("kubelet", "containerd", "pods", "shims")
    }
    assert f"unplug {there.name}" in done


def test_nothing_of_removed_spare_stores_stays_for_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[Path] = []
    flushed: list[str | Path] = []
    monkeypatch.setattr(cgroups, "kill", killed.append)
    monkeypatch.setattr(cgroups, "group", Path)
    monkeypatch.setattr(cgroups, "pids", lambda _: [])
    monkeypatch.setattr(network, "run", lambda *words: flushed.append(words[-1]))
    for number in (0, 1):  # the third was never started
        folder = EAST.folder / f"cassandra-spare-{number}"
        (folder / "data").mkdir(parents=True)
        (folder / "wiped").touch()
    faults.remove_spares(EAST.name)
    assert list(EAST.folder.iterdir()) == []
    assert killed == [Path(EAST.name, f"cassandra-spare-{number}") for number in range(3)]
    assert flushed == ["10.77.1.2/32", "10.77.1.3/32", "10.77.1.4/32"]


def test_one_group_is_removed_with_all_below_it_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = [tmp_path / "pids", tmp_path / "memory"]
    monkeypatch.setattr(cgroups, "hierarchies", lambda: trees)
    for tree in trees:
        for name in ("pods", "pods-2/kubepods/pod1"):
            (tree / cgroups.TREE / EAST.name / name).mkdir(parents=True)
    cgroups.remove(EAST.name, "pods-2")
    left = [sorted(path.name for path in (t / cgroups.TREE / EAST.name).iterdir()) for t in trees]
    assert left == [["pods"], ["pods"]]
    cgroups.remove()
    assert [list(tree.iterdir()) for tree in trees] == [[], []]
