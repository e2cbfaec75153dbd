"""The regions' settings, keys and verdicts: all that can be known without starting anything."""

import ipaddress
import json
import socket
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from local.problem import Problem
from local.regions import cgroups, down, layout, pki, rbac
from local.regions.cassandra import Node, node_of
from local.regions.layout import REGIONS, Region, region_named

EAST = REGIONS[0]
NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "STATE", tmp_path)


def networks() -> Iterable[str]:
    for region in REGIONS:
        yield from (region.node.pods, region.second_node.pods, region.services)
    yield layout.NETWORK


def test_no_two_networks_of_the_regions_overlap() -> None:
    known = [ipaddress.ip_network(text) for text in networks()]
    overlaps = [
        (one, other) for at, one in enumerate(known) for other in known[:at] if one.overlaps(other)
    ]
    assert overlaps == []


@pytest.mark.parametrize("region", REGIONS, ids=lambda region: region.name)
def test_a_regions_addresses_lie_in_its_networks(region: Region) -> None:
    bridge = ipaddress.ip_network(layout.NETWORK)
    assert ipaddress.ip_address(region.address) in bridge
    assert ipaddress.ip_address(layout.HOST) in bridge
    assert region.address != region.spare_address(2)
    assert ipaddress.ip_address(region.api_service) in ipaddress.ip_network(region.services)


@pytest.mark.parametrize("name", [layout.BRIDGE, *(region.cable for region in REGIONS)])
def test_the_kernel_takes_the_names_of_links(name: str) -> None:
    assert len(name) <= 15


def test_an_unknown_region_is_answered_with_the_known_ones() -> None:
    with pytest.raises(Problem, match="no region 'mars-1': there are us-east-1, eu-west-1"):
        region_named("mars-1")


def read(region: Region, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((pki.folder(region) / f"{name}.crt").read_bytes())


def groups(certificate: x509.Certificate) -> set[str | bytes]:
    found = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return {attribute.value for attribute in found}


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError):
        return False
    return True


def test_keys_and_kubeconfigs_are_for_their_owner_alone() -> None:
    pki.make(EAST, NOW)
    folder = pki.folder(EAST)
    private = [*folder.glob("*.key"), *folder.glob("*.kubeconfig")]
    assert len(private) == 2 * len(pki.identities(EAST)) + 1
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_only_the_admin_is_a_master_and_only_kubelets_are_nodes() -> None:
    pki.make(EAST, NOW)
    for name in pki.identities(EAST):
        held = groups(read(EAST, name))
        assert ("system:masters" in held) == (name == pki.ADMIN)
        assert ("system:nodes" in held) == (name in ("kubelet", "kubelet-2"))


def test_nothing_of_one_region_is_trusted_in_another() -> None:
    for region in REGIONS[:2]:
        pki.make(region, NOW)
    here, there = (read(region, "ca") for region in REGIONS[:2])
    for name in pki.identities(EAST):
        assert signed_by(read(EAST, name), here)
        assert not signed_by(read(EAST, name), there)


def test_the_authoritys_own_key_is_written_nowhere() -> None:
    pki.make(EAST, NOW)
    authority = read(EAST, "ca").public_key()
    assert not (pki.folder(EAST) / "ca.key").exists()
    assert authority not in [read(EAST, name).public_key() for name in pki.identities(EAST)]


def test_the_api_server_is_known_by_its_address_and_by_its_services() -> None:
    pki.make(EAST, NOW)
    names = read(EAST, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    addresses = {str(address) for address in names.value.get_values_for_type(x509.IPAddress)}
    assert addresses == {EAST.address, EAST.api_service}
    assert "kubernetes.default.svc" in names.value.get_values_for_type(x509.DNSName)


def test_keys_that_are_there_stay() -> None:
    pki.make(EAST, NOW)
    before = (pki.folder(EAST) / "admin.key").read_bytes()
    pki.make(EAST, NOW)
    assert (pki.folder(EAST) / "admin.key").read_bytes() == before


def test_making_keys_that_was_cut_short_is_begun_anew() -> None:
    half = pki.folder(EAST).with_name("pki.new")
    half.mkdir(parents=True)
    (half / "admin.key").write_text("half a key")
    pki.make(EAST, NOW)
    assert not half.exists()
    assert "half" not in (pki.folder(EAST) / "admin.key").read_text()


def test_the_kubeconfig_has_a_context_for_each_region() -> None:
    for region in REGIONS:
        pki.make(region, NOW)
    entries = [(region, pki.ADMIN, region.context) for region in REGIONS]
    written = yaml.safe_load(pki.kubeconfig(entries))
    servers = {each["name"]: each["cluster"]["server"] for each in written["clusters"]}
    assert servers == {region.context: f"https://{region.address}:6443" for region in REGIONS}
    assert written["current-context"] == EAST.context


def test_the_deployer_is_not_given_everything() -> None:
    bindings = [item for item in rbac.objects() if item["kind"] == "ClusterRoleBinding"]
    assert "cluster-admin" not in json.dumps(bindings)
    (role,) = (item for item in rbac.objects() if item["kind"] == "ClusterRole")
    rules = role["rules"]
    assert isinstance(rules, list)
    assert all("*" not in rule["apiGroups"] for rule in rules)


def cassandra(node: Node) -> dict[str, object]:
    settings = yaml.safe_load(node.settings())
    assert isinstance(settings, dict)
    return settings


def test_each_cassandra_listens_at_home_and_knows_all_seeds() -> None:
    for region in REGIONS:
        settings = cassandra(node_of(region))
        assert settings["listen_address"] == settings["rpc_address"] == region.address
        assert settings["seed_provider"] == [
            {
                "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                "parameters": [{"seeds": "10.77.1.1,10.77.2.1,10.77.3.1"}],
            }
        ]


def test_the_nodes_of_a_ring_differ_in_their_addresses_alone() -> None:
    own = {"listen_address", "rpc_address"}
    settings = [cassandra(node_of(region)) for region in REGIONS]
    shared = [{key: each[key] for key in each.keys() - own} for each in settings]
    assert shared[1:] == shared[:-1]


VERSION_1 = """\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/pids rw,relatime shared:5 - cgroup cgroup rw,pids
32 30 0:28 / /sys/fs/cgroup/unified rw,relatime shared:6 - cgroup2 cgroup2 rw
33 23 0:29 / /proc/fs rw,relatime - ext4 /dev/vda rw
"""
VERSION_2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("mounted", "found"),
    [
        (VERSION_1, ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified"]),
        (VERSION_2, ["/sys/fs/cgroup"]),
    ],
)
def test_control_groups_are_found_in_both_versions(mounted: str, found: list[str]) -> None:
    assert cgroups.hierarchies(mounted) == [Path(path) for path in found]


def test_only_what_is_mounted_in_the_state_is_undone_the_innermost_first() -> None:
    mounted = """\
46 27 254:0 / /home/a\\040b/.local/r/kubelet rw - ext4 /dev/vda rw
47 46 0:39 / /home/a\\040b/.local/r/kubelet/pods/1 rw - tmpfs tmpfs rw
48 27 0:40 / /home/a\\040b/.localities rw - tmpfs tmpfs rw
49 27 0:41 / / rw - ext4 /dev/vda rw
"""
    state = Path("/home/a b/.local")
    assert down.mounts(state, mounted) == [state / "r/kubelet/pods/1", state / "r/kubelet"]


def test_a_socket_is_dead_when_nobody_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as living:
        for server, name in ((dead, "dead"), (living, "living")):
            server.bind(str(tmp_path / name))
            server.listen()
        dead.close()
        assert down.dead_sockets(tmp_path) == [tmp_path / "dead"]
    assert down.dead_sockets(tmp_path / "nowhere") == []


def test_what_network_plugins_remember_of_our_containers_is_found(tmp_path: Path) -> None:
    state, results = tmp_path / ".local", tmp_path / "results"
    results.mkdir()
    (results / "ours").write_text(json.dumps({"netns": str(state / "us-east-1" / "netns" / "a")}))
    (results / "theirs").write_text(json.dumps({"netns": "/run/netns/theirs"}))
    (results / "torn").write_text('{"netns": ')
    assert down.network_results(state, results) == [results / "ours"]
    assert down.network_results(state, tmp_path / "nowhere") == []
