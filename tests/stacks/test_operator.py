"""The operator's kinds and rights, and people's, as the platform layer asks for them."""

import functools
from pathlib import Path
from typing import Any

import pulumi
import pytest

from stacks.components.kinds import FOLDER, definitions
from tests.stacks.rig import PLATFORM, Recorder, deploy

ROLES = ("Role", "ClusterRole")


@functools.cache
def platform() -> Recorder:
    return deploy("own-eu-west-1-platform", PLATFORM)


def rights(kind: str, name: str) -> set[tuple[str, ...]]:
    """Everything that a role allows: (group, resource, verb), and a name where it has one."""
    return {
        (group, resource, verb, *([only] if only else []))
        for rule in platform().of(kind)[name]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for only in rule.get("resourceNames", [None])
    }


def ours(resource: str, verbs: str) -> set[tuple[str, ...]]:
    return {("shortlink.platform", resource, verb) for verb in verbs.split()}


def test_the_operator_may_do_in_the_cluster_what_it_does_and_no_more_P1() -> None:
    assert rights("ClusterRole", "operator") == {
        *ours("shortlinks", "get list watch patch"),
        *ours("shortlinks/status", "patch"),
        *ours("linkpolicies", "get list watch"),
        *ours("linkpolicies/status", "patch"),
        ("events.k8s.io", "events", "create"),
    }


def test_the_operator_has_one_lease_and_one_config_map_at_home_P1() -> None:
    assert rights("Role", "operator") == {
        ("coordination.k8s.io", "leases", "create"),
        ("coordination.k8s.io", "leases", "get", "operator"),
        ("coordination.k8s.io", "leases", "update", "operator"),
        ("", "configmaps", "get", "operator-switches"),
    }
    assert platform().of("Role")["operator"]["metadata"]["namespace"] == "shortlink"


def test_nobody_but_the_operator_is_given_a_right_P1() -> None:
    for kind in ROLES:
        (binding,) = platform().of(f"{kind}Binding").values()
        role = platform().of(kind)["operator"]
        assert binding["roleRef"] == {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": kind,
            "name": role["metadata"]["name"],
        }
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "operator", "namespace": "shortlink"}
        ]


def test_what_people_may_do_is_part_of_kubernetes_own_roles_P1() -> None:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    aggregated = {
        tuple(role["metadata"]["labels"]): rights("ClusterRole", name)
        for name, role in platform().of("ClusterRole").items()
        if name != "operator"
    }

    assert aggregated == {
        (f"{prefix}view",): ours("shortlinks", "get list watch")
        | ours("linkpolicies", "get list watch"),
        # `edit` contains `view`, `admin` contains `edit`. Policies are for cluster admins.
        (f"{prefix}edit",): ours("shortlinks", "create update patch delete deletecollection"),
    }


@pytest.mark.parametrize("kind", ROLES)
def test_no_right_is_a_wildcard_P1(kind: str) -> None:
    assert platform().of(kind)
    for name in platform().of(kind):
        assert not [right for right in rights(kind, name) if "*" in "".join(right)]


def test_both_kinds_are_defined_before_there_is_an_operator_T2() -> None:
    made = platform().of("CustomResourceDefinition")

    assert set(made) == {"shortlinks.shortlink.platform", "linkpolicies.shortlink.platform"}
    for definition in definitions(FOLDER):
        assert made[definition["metadata"]["name"]]["spec"] == definition["spec"]


def test_destroying_a_stack_leaves_the_kinds_and_so_everybodys_links_L3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: set[str] = set()
    make = pulumi.CustomResource.__init__

    def noted(self: Any, kind: str, name: str, props: Any, opts: Any, *rest: Any) -> None:
        if opts.retain_on_delete:
            kept.add(name)
        make(self, kind, name, props, opts, *rest)

    monkeypatch.setattr(pulumi.CustomResource, "__init__", noted)
    made = deploy("own-eu-west-1-platform", PLATFORM)

    assert kept == set(made.of("CustomResourceDefinition"))


def test_a_stack_without_its_kinds_is_refused_T2(tmp_path: Path) -> None:
    with pytest.raises(pulumi.RunError, match="run: make crds"):
        definitions(tmp_path)
