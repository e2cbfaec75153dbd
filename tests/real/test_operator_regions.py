"""The operators of three regions' clusters over one store: homes, mirrors and rebuilding (T2)."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apiserver import ScratchCluster, scratch_cluster
from tests.drills.demo_process import wait_for
from tests.operator_here import SWEEP, TARGET, Here, states, swept, writes
from tests.operator_rig import Objects, OperatorProcess

pytestmark = pytest.mark.timeout(180)

NAMES = ("us-east-1", "eu-west-1", "ap-southeast-1")
FEW = 3
MANY = 12

RULES = [
    {
        "apiGroups": ["shortlink.platform"],
        "resources": ["shortlinks", "linkpolicies"],
        "verbs": ["get", "list", "watch", "patch"],
    },
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["create", "get", "update"],
    },
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
]
STATUS = {
    "apiGroups": ["shortlink.platform"],
    "resources": ["shortlinks/status", "linkpolicies/status"],
    "verbs": ["patch"],
}


@dataclass
class Region:
    name: str
    cluster: ScratchCluster
    objects: Objects
    operator: OperatorProcess
    place: Path

    def here(self, namespace: str = "") -> Here:
        """A namespace in this region: a new one, or that of another region's."""
        here = Here(self.objects, self.operator)
        if namespace:
            here.namespace = namespace
            self.objects.namespace(namespace)
        return here


@pytest.fixture(scope="module")
def regions(
    scratch: ScratchCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Region]]:
    """Three clusters and their operators, over one store."""
    place = tmp_path_factory.mktemp("regions")
    with ExitStack() as stack:
        clusters = [scratch] + [stack.enter_context(scratch_cluster(name)) for name in NAMES[1:]]
        regions = []
        for name, cluster in zip(NAMES, clusters, strict=True):
            cluster.apply_crds()
            objects = stack.enter_context(closing(Objects(cluster)))
            operator = stack.enter_context(
                OperatorProcess(
                    place,
                    cluster.kubeconfig,
                    SHORTLINK_SWEEP_SECONDS=SWEEP,
                    SHORTLINK_REGION=name,
                )
            )
            operator.start()
            operator.wait_ready()
            regions.append(Region(name, cluster, objects, operator, place))
        yield regions


@pytest.fixture
def heres(regions: list[Region]) -> list[Here]:
    """One new namespace, in all regions."""
    first = regions[0].here()
    return [first, *(region.here(first.namespace) for region in regions[1:])]


def mirrored(heres: list[Here]) -> tuple[str, str]:
    """An object in all regions whose home is the first; its key and its code."""
    home, *mirrors = heres
    key = home.create("promo")
    code = home.code(key)
    for mirror in mirrors:
        mirror.create("promo")
        mirror.says(key, "us-east-1 keeps the link")
    return key, code


def test_T2_the_same_manifest_in_all_regions_is_one_link_and_two_mirrors(
    heres: list[Here],
) -> None:
    key, code = mirrored(heres)
    found = [here.objects.ready(key)["status"] for here in heres]
    assert {status["url"] for status in found} == {f"https://s.example/{code}"}
    assert {status["home"] for status in found} == {"us-east-1"}
    assert heres[0].states() == ["active"]


def test_L5_the_same_manifest_applied_everywhere_at_once_is_one_link(heres: list[Here]) -> None:
    keys = [f"race-{number}" for number in range(FEW)]
    for name in keys:
        for here in heres:
            here.create(name)
    for name in keys:
        found = [here.objects.ready(here.key(name))["status"] for here in heres]
        assert len({(status["code"], status["home"]) for status in found}) == 1
    assert heres[0].states() == ["active"] * FEW


def test_T2_a_spec_that_was_edited_in_a_mirror_changes_nothing_and_says_so(
    heres: list[Here],
) -> None:
    home, mirror, other = heres
    key, code = mirrored(heres)
    mirror.objects.edit(key, target="https://example.com/b")
    said = mirror.reason(key, "SpecDiffers")
    assert "spec.target" in said["message"]
    assert home.link(code)["target"] == TARGET
    home.objects.edit(key, target="https://example.com/b")
    mirror.reason(key, "Mirrored")
    other.reason(key, "SpecDiffers")
    assert home.link(code)["target"] == "https://example.com/b"


def test_T2_when_the_home_object_goes_its_mirrors_say_so_and_revive_nothing(
    heres: list[Here],
) -> None:
    home, *mirrors = heres
    key, code = mirrored(heres)
    home.objects.delete(key)
    home.objects.gone(key)
    for mirror in mirrors:
        said = mirror.reason(key, "HomeDeleted")
        assert said["status"] == "False"
        assert "take-over" in said["message"]
    before = [writes(here.operator) for here in heres]
    swept(mirrors[0].operator)
    assert home.link(code)["state"] == "tombstoned"
    assert [writes(here.operator) for here in heres] == before
    mirrors[0].objects.delete(key)
    mirrors[0].objects.gone(key)
    assert home.states() == ["tombstoned"]


def test_T2_a_mirror_takes_over_by_annotation(heres: list[Here]) -> None:
    home, mirror, other = heres
    key, code = mirrored(heres)
    home.objects.delete(key)
    home.objects.gone(key)
    mirror.objects.annotate(key, take_over="us-east-1")
    mirror.reason(key, "Ready")
    status = mirror.objects.ready(key)["status"]
    assert (status["code"], status["home"], status["state"]) == (code, "eu-west-1", "active")
    other.says(key, "eu-west-1 keeps the link")
    home.create("promo")
    home.says(key, "eu-west-1 keeps the link")
    mirror.objects.edit(key, target="https://example.com/c")
    wait_for(lambda: home.link(code)["target"] == "https://example.com/c", "the edit", 60)


def test_T2_a_cluster_that_was_wiped_and_rebuilt_adopts_its_links(regions: list[Region]) -> None:
    region = regions[2]
    here = region.here()
    keys = here.many(FEW)
    codes = [here.code(key) for key in keys]
    region.cluster.wipe()
    region.cluster.apply_crds()
    here.objects.namespace(here.namespace)
    for key in keys:
        here.create(key.partition("/")[2])
    assert [here.code(key) for key in keys] == codes
    assert here.states() == ["active"] * FEW
    for key in keys:
        here.objects.edit(key, tags=["rebuilt"])
    wait_for(lambda: all("rebuilt" in here.link(code)["tags"] for code in codes), "edits", 60)


def test_T2_a_permission_that_is_taken_away_and_given_back(regions: list[Region]) -> None:
    region = regions[2]
    region.operator.stop()
    here = region.here()
    limited = region.cluster.kubeconfig_for([*RULES, STATUS])
    names = {"SHORTLINK_REGION": region.name, "SHORTLINK_SWEEP_SECONDS": SWEEP}
    with OperatorProcess(region.place, limited, **names) as operator:
        here.operator = operator
        operator.start()
        here.objects.ready(here.create("before"))
        region.cluster.kubeconfig_for(RULES)
        key = here.create("promo")
        wait_for(lambda: here.states() == ["active"] * 2, "the link to be made all the same", 60)
        refused = 'kind="shortlinks/status",result="refused",verb="patch"'
        wait_for(lambda: _asked(operator, refused) >= 2, "the permission to be missed", 60)
        before = _asked(operator, refused)
        swept(operator)
        assert _asked(operator, refused) - before <= 8
        assert "cannot patch resource" in operator.printed()
        region.cluster.kubeconfig_for([*RULES, STATUS])
        here.objects.ready(key)
        operator.stop()
    region.operator.start()


def _asked(operator: OperatorProcess, labels: str) -> float:
    return operator.series().get(f"shortlink_operator_requests_total{{{labels}}}", 0)


def test_T2_a_deleted_CRD_ends_no_link_until_a_person_lets_it_go(regions: list[Region]) -> None:
    region = regions[1]
    here = region.here()
    keys = here.many(MANY)
    crd = "shortlinks.shortlink.platform"
    region.cluster.kubectl("delete", "shortlinks", "--all", "-A", "--wait=false")
    region.cluster.kubectl("delete", "crd", crd, "--wait=false")
    for key in keys:
        here.reason(key, "DeletionHeld")
    swept(region.operator)
    assert here.states() == ["active"] * MANY
    region.cluster.kubectl(
        *("annotate", "shortlinks", "--all", "-n", here.namespace),
        "shortlink.platform/allow-delete=true",
    )
    region.cluster.kubectl("wait", "--for=delete", f"crd/{crd}", "--timeout=90s")
    assert states(region.operator, here.namespace) == ["tombstoned"] * MANY
    region.cluster.apply_crds()
    code = here.code(here.create("link-00"))
    assert here.link(code)["state"] == "active"
