"""What the layers ask for: shapes and rules. What a cluster makes of it is tests/real's to say."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pulumi
import pytest

from stacks.names import Stack
from stacks.outputs import complete
from stacks.services import SERVICES
from tests.stacks.rig import (
    APPS,
    KEYS,
    KUBECONFIG,
    OUTPUTS,
    PLATFORM,
    SECRET,
    Recorder,
    deploy,
    in_clear,
    is_secret,
)

OF_NO_NAMESPACE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


@functools.cache
def platform() -> Recorder:
    return deploy("own-eu-west-1-platform", PLATFORM)


@functools.cache
def apps(kind: str = "own") -> Recorder:
    ports = {"redirect-node-port": "30080"} if kind == "local" else {}
    return deploy(f"{kind}-eu-west-1-apps", APPS | ports)


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, deployment in apps().of("Deployment").items():
        yield name, deployment["spec"]["template"]["spec"]


def containers() -> Iterator[dict[str, Any]]:
    for _, pod in pods():
        yield from pod.get("initContainers", [])
        yield from pod["containers"]


def test_every_service_runs_T1() -> None:
    names = {service.name for service in SERVICES}

    assert set(apps().of("Deployment")) == names
    assert set(platform().of("ServiceAccount")) == names
    assert {pod["serviceAccountName"] for _, pod in pods()} == names


def test_every_pod_is_restricted_P1() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    for _, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all({"secret", "emptyDir"} & set(volume) for volume in pod["volumes"])
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_namespace_refuses_other_pods_P1() -> None:
    labels = platform().of("Namespace")["shortlink"]["metadata"]["labels"]

    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_operators_pods_alone_have_a_token_P1() -> None:
    assert all(
        account["automountServiceAccountToken"] is False
        for account in platform().of("ServiceAccount").values()
    )
    having = {name for name, pod in pods() if pod["automountServiceAccountToken"] is not False}
    assert having == {"operator"}


def test_every_container_has_its_memory_and_no_limit_of_processor_time_O2() -> None:
    for container in containers():
        resources = container["resources"]
        assert set(resources["requests"]) == {"cpu", "memory"}
        assert set(resources["limits"]) == {"memory"}


def test_a_service_is_replaced_without_a_gap_F12() -> None:
    for name, deployment in apps().of("Deployment").items():
        spec = deployment["spec"]
        assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        assert spec["progressDeadlineSeconds"] == 120
        pod = spec["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == 30
        (container,) = pod["containers"]
        assert container["name"] == name
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_an_instance_that_fails_is_out_within_10_s_M2() -> None:
    for _, pod in pods():
        probe = pod["containers"][0]["readinessProbe"]
        assert probe["failureThreshold"] * (probe["periodSeconds"] + probe["timeoutSeconds"]) < 10


def test_every_service_has_two_replicas_of_which_one_stays_M1() -> None:
    made = apps()
    replicas = {name: each["spec"]["replicas"] for name, each in made.of("Deployment").items()}

    assert replicas == {"redirect": 2, "api": 2, "operator": 2}
    budgets = made.of("PodDisruptionBudget")
    assert {name: each["spec"]["minAvailable"] for name, each in budgets.items()} == {
        "redirect": 1,
        "api": 1,
        "operator": 1,
    }


def test_services_and_budgets_select_the_pods_of_their_name_T1() -> None:
    made = apps()
    pods = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for name, each in made.of("Deployment").items()
    }

    selectors = [(name, each["spec"]["selector"]) for name, each in made.of("Service").items()]
    selectors += [
        (name, each["spec"]["selector"]["matchLabels"])
        for kind in ("Deployment", "PodDisruptionBudget")
        for name, each in made.of(kind).items()
    ]
    selectors += [
        (name, each["spec"]["podSelector"]["matchLabels"])
        for name, each in platform().of("NetworkPolicy").items()
        if name != "default-deny"
    ]
    assert len(selectors) == 11
    assert all(pods[name] == selector for name, selector in selectors)


def test_a_node_port_is_asked_for_or_not_there_T1() -> None:
    own, local = apps().of("Service"), apps("local").of("Service")

    assert {name: each["spec"]["type"] for name, each in own.items()} == {
        "redirect": "ClusterIP",
        "api": "ClusterIP",
    }
    assert local["redirect"]["spec"]["type"] == "NodePort"
    assert local["redirect"]["spec"]["ports"][0]["nodePort"] == 30080
    assert local["api"]["spec"]["type"] == "ClusterIP"


def test_pods_ask_the_resolver_that_there_is_T1() -> None:
    for kind, policy in (("local", "Default"), ("own", "ClusterFirst")):
        for deployment in apps(kind).of("Deployment").values():
            assert deployment["spec"]["template"]["spec"]["dnsPolicy"] == policy


def test_nothing_goes_in_or_out_but_what_is_named_P1() -> None:
    policies = platform().of("NetworkPolicy")

    assert policies.pop("default-deny")["spec"] == {
        "podSelector": {"matchLabels": {}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [],
    }
    anyone = {
        name: [port["port"] for rule in each["spec"]["ingress"] if "from" not in rule
               for port in rule["ports"]]
        for name, each in policies.items()
    }  # fmt: skip
    assert anyone == {"redirect": [8080], "api": [8081], "operator": []}
    all_need = {(53, "UDP"), (53, "TCP"), (9042, "TCP"), (6380, "TCP")}  # as in the cache's address
    for name, each in policies.items():
        (out,) = each["spec"]["egress"]
        api_server = {(443, "TCP"), (6443, "TCP")} if name == "operator" else set()
        assert {(port["port"], port["protocol"]) for port in out["ports"]} == all_need | api_server


def test_secrets_are_secret_on_their_way_P1() -> None:
    made = platform()
    provider = made.one("pulumi:providers:kubernetes").inputs

    assert is_secret(provider["kubeconfig"])
    assert in_clear(provider["kubeconfig"]).strip() == KUBECONFIG.strip()
    secrets = [asked for asked in made.asked if asked.typ.endswith(":Secret")]
    assert {asked.name for asked in secrets} == {"connections", "api-keys"}
    assert all(is_secret(asked.inputs["stringData"]) for asked in secrets)
    digest = KEYS.split('"')[-2]
    for asked in made.asked:
        shown = {key: value for key, value in asked.inputs.items() if not is_secret(value)}
        assert digest not in str(shown)


def test_services_are_told_which_hosts_are_the_platforms_own_P2() -> None:
    made = deploy("own-eu-west-1-platform", PLATFORM | {"own-hosts": "go.example,10.0.0.1:8080"})
    told = made.of("ConfigMap")["settings"]["data"]
    assert told["SHORTLINK_OWN_HOSTS"] == "go.example,10.0.0.1:8080"


def test_services_are_told_where_they_are_M1() -> None:
    made = platform()
    told: Mapping[str, str] = {
        **made.of("ConfigMap")["settings"]["data"],
        **made.of("Secret")["connections"]["stringData"],
    }

    assert told == {
        "SHORTLINK_REGION": "eu-west-1",
        "SHORTLINK_BASE_URL": PLATFORM["base-url"],
        "SHORTLINK_STORE": PLATFORM["store"],
        "SHORTLINK_CACHE": PLATFORM["cache"],
    }
    for container in containers():
        assert container["envFrom"] == [
            {"configMapRef": {"name": "settings"}},
            {"secretRef": {"name": "connections"}},
        ]


def test_without_a_shared_cache_services_are_told_of_none_K5() -> None:
    made = deploy("own-eu-west-1-platform", PLATFORM | {"cache": ""})

    assert set(made.of("Secret")["connections"]["stringData"]) == {"SHORTLINK_STORE"}


@pytest.mark.parametrize(
    "change",
    [{"base-url": "https://other.example"}, {"store": "cassandra://eu-west-1=10.9.9.9/links"},
     {"cache": ""}, {"api-keys": '{"keys": []}'}],
)  # fmt: skip
def test_a_change_of_configuration_rolls_pods_out_F12(change: dict[str, str]) -> None:
    before, after = platform().exported, deploy("own-eu-west-1-platform", PLATFORM | change)

    assert after.exported["checksum"] != before["checksum"]
    template = apps().of("Deployment")["api"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {"shortlink/configuration": OUTPUTS["checksum"]}


def test_the_platform_leaves_what_the_apps_need_T1() -> None:
    assert set(platform().exported) == set(OUTPUTS)


def test_apps_are_refused_without_their_platform_T1() -> None:
    with pytest.raises(pulumi.RunError, match="pulumi up --stack own-eu-west-1-platform"):
        complete(Stack.parse("own-eu-west-1-apps"), {"namespace": "shortlink"})


def test_the_api_alone_has_the_keys_and_can_read_them_W5() -> None:
    having = {name: pod["volumes"] for name, pod in pods() if "secret" in str(pod["volumes"])}

    assert having == {
        "api": [{"name": "api-keys", "secret": {"secretName": "api-keys", "defaultMode": 0o440}}]
    }
    (container,) = dict(pods())["api"]["containers"]
    assert container["env"] == [
        {"name": "SHORTLINK_KEYS_FILE", "value": "/etc/shortlink/keys.json"}
    ]
    assert set(platform().of("Secret")["api-keys"]["stringData"]) == {"keys.json"}


def test_the_operator_prepares_the_store_and_can_write_its_audit_log_O4() -> None:
    operator = dict(pods())["operator"]

    assert [each["args"] for each in operator["initContainers"]] == [["prepare"]]
    (mount,) = operator["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == "/var/lib/shortlink"
    assert operator["volumes"] == [{"name": "audit", "emptyDir": {"sizeLimit": "1Gi"}}]
    assert not [name for name, pod in pods() if name != "operator" and "initContainers" in pod]


def test_an_operator_is_known_by_its_pods_name_O1() -> None:
    (container,) = dict(pods())["operator"]["containers"]

    assert container["args"][0] == "operator"
    name = {"fieldRef": {"fieldPath": "metadata.name"}}
    assert container["env"] == [{"name": "SHORTLINK_OPERATOR_NAME", "valueFrom": name}]


def test_everything_is_in_the_stacks_own_cluster_P1() -> None:
    for recorder in (platform(), apps()):
        for asked in recorder.asked:
            if asked.typ.startswith("kubernetes:"):
                assert "pulumi:providers:kubernetes::own-eu-west-1" in str(asked.provider)
                if asked.typ.rpartition(":")[2] not in OF_NO_NAMESPACE:
                    assert in_clear(asked.inputs)["metadata"]["namespace"] == "shortlink"


def test_manifests_are_rendered_without_a_cluster_T1() -> None:
    settings = PLATFORM | {"kubeconfig": "", "render": "/tmp/manifests"}

    provider = deploy("own-eu-west-1-platform", settings, SECRET).one("pulumi:providers:kubernetes")

    assert provider.inputs["renderYamlToDirectory"] == "/tmp/manifests"
    assert "kubeconfig" not in provider.inputs
