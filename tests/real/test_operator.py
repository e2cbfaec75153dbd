"""The operator's process on a real API server: an object's life, deletions, and bad input (T2)."""

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest

from shortlink_operator.kinds import API_VERSION
from tests.apiserver import ScratchCluster
from tests.drills.demo_process import wait_for
from tests.operator_here import SWEEP, TARGET, Here, swept, writes
from tests.operator_rig import FINALIZER, Objects, OperatorProcess, ready

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def operator(
    scratch: ScratchCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """On the scratch cluster, over a store of its own."""
    scratch.apply_crds()
    place = tmp_path_factory.mktemp("operator")
    with OperatorProcess(place, scratch.kubeconfig, SHORTLINK_SWEEP_SECONDS=SWEEP) as process:
        process.start()
        process.wait_ready()
        yield process


@pytest.fixture
def here(scratch: ScratchCluster, operator: OperatorProcess) -> Iterator[Here]:
    with closing(Objects(scratch)) as objects:
        yield Here(objects, operator)


@pytest.fixture
def policy(scratch: ScratchCluster) -> Iterator[Any]:
    """Applies a LinkPolicy, which goes again."""

    def apply(**spec: Any) -> None:
        document = {
            "apiVersion": API_VERSION,
            "kind": "LinkPolicy",
            "metadata": {"name": "default"},
            "spec": spec,
        }
        scratch.kubectl("apply", "-f", "-", given=str(document).replace("'", '"'))

    yield apply
    scratch.kubectl("delete", "linkpolicy", "default", "--ignore-not-found")


def test_T2_an_applied_object_has_a_link_and_says_so_in_two_writes(here: Here) -> None:
    before = writes(here.operator)
    status = here.objects.ready(here.create("promo"))["status"]
    assert status["url"] == f"https://s.example/{status['code']}"
    assert (status["state"], status["home"]) == ("active", "us-east-1")
    assert here.link(status["code"])["target"] == TARGET
    assert here.link(status["code"])["owner"] == here.namespace
    assert writes(here.operator) - before == 2


def test_T2_an_edit_changes_the_link_in_one_write(here: Here) -> None:
    key = here.create("promo")
    code = here.code(key)
    before = writes(here.operator)
    here.objects.edit(key, target="https://example.com/b", tags=["new"])
    assert here.code(key) == code
    assert here.link(code)["target"] == "https://example.com/b"
    assert writes(here.operator) - before == 1


def test_L2_a_deleted_object_that_is_made_again_has_its_link_back(here: Here) -> None:
    key = here.create("promo")
    code = here.code(key)
    here.objects.delete(key)
    here.objects.gone(key)
    assert (here.link(code)["state"], here.link(code)["cause"]) == ("tombstoned", "deleted")
    here.create("promo")
    assert here.code(key) == code
    assert here.link(code)["state"] == "active"


def test_T2_a_retained_link_outlives_its_object(here: Here) -> None:
    key = here.create("promo", deletionPolicy="Retain")
    code = here.code(key)
    here.objects.delete(key)
    here.objects.gone(key)
    swept(here.operator)
    assert here.link(code)["state"] == "active"
    here.create("promo", deletionPolicy="Retain")
    assert here.code(key) == code


def test_T2_a_namespace_that_is_deleted_whole_is_held_until_a_person_lets_it_go(
    scratch: ScratchCluster, here: Here
) -> None:
    keys = here.many(12)
    scratch.kubectl("delete", "namespace", here.namespace, "--wait=false")
    for key in keys:
        said = here.reason(key, "DeletionHeld")
        assert said["status"] == "True"
        assert "allow-delete" in said["message"]
    before = writes(here.operator)
    swept(here.operator)
    assert here.states() == ["active"] * 12
    assert writes(here.operator) == before
    scratch.kubectl(
        *("annotate", "shortlinks", "--all", "-n", here.namespace),
        "shortlink.platform/allow-delete=true",
    )
    for key in keys:
        here.objects.gone(key)
    assert here.states() == ["tombstoned"] * 12
    scratch.kubectl("wait", "--for=delete", f"namespace/{here.namespace}", "--timeout=60s")


def test_T2_an_object_that_ended_in_a_gap_takes_its_link_along(here: Here) -> None:
    code, other = here.code(here.create("promo")), here.code(here.create("other"))
    here.operator.stop()
    here.objects.delete(here.key("promo"), force=True)
    here.operator.start()
    wait_for(lambda: here.link(code)["state"] == "tombstoned", "the sweep", 60)
    assert here.link(other)["state"] == "active"


def test_T2_an_object_that_loses_its_finalizer_takes_its_link_along(here: Here) -> None:
    key = here.create("promo")
    code = here.code(key)
    here.objects.patch(key, {"metadata": {"finalizers": ["example.com/theirs"]}})
    wait_for(
        lambda: FINALIZER in (here.objects.get(key) or {})["metadata"]["finalizers"],
        "the finalizer to be back",
        60,
    )
    here.objects.delete(key)
    here.objects.patch(key, {"metadata": {"finalizers": None}})
    wait_for(lambda: here.link(code)["state"] == "tombstoned", "the link's end", 60)


BAD = {
    "taken": ({"code": "taken1"}, "Taken", "taken1"),
    "past": ({"expiresAt": "2020-01-01T00:00:00Z"}, "ExpiryInPast", "2020-01-01"),
    "own": ({"target": "https://s.example/loop"}, "InvalidTarget", "s.example"),
    "target": ({"target": "https://256.256.256.256/"}, "InvalidTarget", "target"),
}


def test_T2_bad_input_is_told_and_looped_over_by_nobody(here: Here) -> None:
    here.objects.namespace("others")
    with suppress(httpx.HTTPStatusError):
        here.objects.create("others/holder", {"target": TARGET, "code": "taken1"})
    here.objects.ready("others/holder")
    for name, (spec, reason, part) in BAD.items():
        said = here.reason(here.create(name, **spec), reason)
        assert (said["status"], part in said["message"]) == ("False", True), said
    fine = here.create("fine")
    here.objects.ready(fine)
    swept(here.operator, 1)
    before = writes(here.operator)
    swept(here.operator)
    assert writes(here.operator) == before
    assert here.states() == ["active"]
    here.objects.edit(here.key("target"), target=TARGET)
    here.objects.ready(here.key("target"))


def test_T2_a_status_that_was_changed_by_hand_is_mended(here: Here) -> None:
    key = here.create("promo")
    code = here.code(key)
    status = (here.objects.get(key) or {})["status"]
    here.objects.patch(key, {"status": {"url": "https://else.example", "code": None}}, "/status")
    wait_for(lambda: (here.objects.get(key) or {})["status"] == status, "the status", 60)
    assert here.code(key) == code


def test_T2_a_foreign_finalizer_stays_and_keeps_nothing_up(here: Here) -> None:
    here.objects.create(here.key("promo"), {"target": TARGET}, finalizers=["example.com/theirs"])
    key = here.key("promo")
    code = here.code(key)
    here.objects.delete(key)
    wait_for(lambda: here.link(code)["state"] == "tombstoned", "the link's end", 60)
    wait_for(
        lambda: (here.objects.get(key) or {})["status"]["state"] == "tombstoned",
        "its status to say so",
        60,
    )
    assert (here.objects.get(key) or {})["metadata"]["finalizers"] == ["example.com/theirs"]
    before = writes(here.operator)
    swept(here.operator)
    assert writes(here.operator) == before
    here.objects.patch(key, {"metadata": {"finalizers": None}})
    here.objects.gone(key)


def test_T2_an_annotation_of_another_version_is_told_and_changes_no_link(here: Here) -> None:
    key = here.create("promo")
    code = here.code(key)
    here.objects.annotate(key, colour="blue")
    said = here.reason(key, "Unreadable")
    assert "shortlink.platform/colour" in said["message"]
    assert (here.objects.get(key) or {})["status"]["code"] == code
    assert here.link(code)["state"] == "active"
    here.objects.annotate(key, colour=None)
    here.objects.ready(key)


def test_T2_a_namespace_over_its_quota_is_told_and_others_go_on(
    scratch: ScratchCluster, here: Here, policy: Any
) -> None:
    policy(linksPerNamespace=2)
    scratch.kubectl("wait", "--for=condition=Ready", "linkpolicy/default", "--timeout=60s")
    keys = [here.create(f"link-{number}") for number in range(5)]
    reasons = [ready(here.objects.settled(key)) for key in keys]
    told = sorted(said["reason"] for said in reasons if said is not None)
    assert told == ["OverQuota"] * 3 + ["Ready"] * 2
    assert here.states() == ["active"] * 2
    here.objects.namespace("roomy")
    here.objects.create(f"roomy/{here.namespace}", {"target": TARGET})
    here.objects.ready(f"roomy/{here.namespace}")


def test_T2_a_policy_that_contradicts_itself_leaves_the_last_good_one_in_force(
    scratch: ScratchCluster, here: Here, policy: Any
) -> None:
    policy(grace="30d", quarantine="2d")
    scratch.kubectl("wait", "--for=condition=Ready=false", "linkpolicy/default", "--timeout=60s")
    here.objects.ready(here.create("promo"))
    here.operator.stop()
    here.operator.start()
    said = here.reason(here.create("later"), "PolicyInvalid")
    assert "quarantine" in said["message"]
    here.objects.ready(here.key("promo"))
    swept(here.operator)
    before = writes(here.operator)
    swept(here.operator)
    assert writes(here.operator) == before
    policy(grace="30d", quarantine="40d")
    here.objects.ready(here.key("later"))
