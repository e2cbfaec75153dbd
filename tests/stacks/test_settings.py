"""What a stack may be called, and what its settings may be: all else is refused by name."""

import re
from typing import Any

import pulumi
import pytest

from stacks.names import Stack
from tests.stacks.rig import APPS, PLATFORM, SECRET, deploy

PLATFORM_STACK = "own-eu-west-1-platform"
APPS_STACK = "own-eu-west-1-apps"


@pytest.mark.parametrize(
    ("name", "kind", "region", "layer"),
    [
        ("local-us-east-1-platform", "local", "us-east-1", "platform"),
        ("own-eu-west-1-apps", "own", "eu-west-1", "apps"),
        ("own-lab-apps", "own", "lab", "apps"),
        ("own-platform-apps", "own", "platform", "apps"),
    ],
)
def test_a_stacks_name_says_its_cluster_and_layer_T1(
    name: str, kind: str, region: str, layer: str
) -> None:
    stack = Stack.parse(name)

    assert (stack.kind, stack.region, stack.layer) == (kind, region, layer)
    assert stack.platform == f"{kind}-{region}-platform"


@pytest.mark.parametrize(
    "name",
    [
        "dev",
        "own-platform",
        "own--platform",
        "aws-us-east-1-apps",
        "own-us-east-1-app",
        "own-A-apps",
        "own-us-east-1-apps\n",
        "xown-us-east-1-apps",
    ],
)
def test_a_wrong_stack_name_is_refused_with_the_form_T1(name: str) -> None:
    with pytest.raises(pulumi.RunError, match=re.escape("(local|own)-REGION-(platform|apps)")):
        Stack.parse(name)


CLUSTER_CASES: list[tuple[dict[str, str], str]] = [
    ({"kubeconfig": ""}, "kubeconfig is not set; run: kubectl config view"),
    ({"kubeconfig": "/home/me/.kube/config"}, "kubeconfig is not the content of a kubeconfig"),
    ({"kubeconfig": "clusters: []"}, "kubeconfig is not the content of a kubeconfig"),
    ({"kubeconfig": "{a: b"}, "kubeconfig is not the content of a kubeconfig"),
    ({"render": "/tmp/out"}, "kubeconfig is set beside shortlink:render"),
    ({"kubeconfig": "", "render": "out"}, "render is no absolute path"),
]

PLATFORM_CASES: list[tuple[dict[str, str], str]] = [
    *CLUSTER_CASES,
    ({"store": ""}, "store is not set; run: pulumi config set store cassandra://eu-west-1="),
    ({"store": "  "}, "store is not set"),
    ({"store": "sqlite:///links.db"}, "store is no cassandra://"),
    ({"store": "cassandra://eu-west-1=10.0.0.1"}, "store is no cassandra://"),
    ({"store": "cassandra://us-east-1=10.0.0.1/links"}, "store has no data centre eu-west-1"),
    ({"store": "cassandra://not-eu-west-1=10.0.0.1/links"}, "store has no data centre eu-west-1"),
    ({"store": "cassandra://u:pw@eu-west-1=10.0.0.1/links"}, "store has a password in it"),
    ({"cache": "memcached://10.0.0.1"}, "cache is no redis://"),
    ({"cache": "redis://"}, "cache is no redis://"),
    ({"cache": "redis://:pw@10.0.0.1:6379"}, "cache has a password in it"),
    ({"base-url": ""}, "base-url is not set"),
    ({"base-url": "ftp://go.example"}, "base-url is no http"),
    ({"base-url": "https://go.example/path"}, "base-url is no http"),
    ({"base-url": "https://me@go.example"}, "base-url is no http"),
    ({"own-hosts": "https://go.example"}, "own-hosts is no HOST"),
    ({"own-hosts": "a.example, b.example"}, "own-hosts is no HOST"),
    ({"api-keys": ""}, "api-keys is not set; run: pulumi config set --secret api-keys"),
]

APPS_CASES: list[tuple[dict[str, str], str]] = [
    *CLUSTER_CASES,
    ({"image": ""}, "image is not set"),
    ({"image": "registry.example:5000/shortlink"}, "image has no tag or digest"),
    ({"image": "shortlink:latest"}, "image has no tag or digest"),
    ({"redirect-node-port": "80"}, "redirect-node-port is no port from 30000 to 32767"),
    ({"api-node-port": "32768"}, "api-node-port is no port from 30000 to 32767"),
    ({"api-node-port": "http"}, "api-node-port is no port"),
]


@pytest.mark.parametrize(
    ("stack", "settings", "message"),
    [(PLATFORM_STACK, PLATFORM | wrong, said) for wrong, said in PLATFORM_CASES]
    + [(APPS_STACK, APPS | wrong, said) for wrong, said in APPS_CASES],
)
def test_a_wrong_setting_is_refused_by_its_key_before_anything_is_made_T1(
    stack: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(pulumi.RunError, match=re.escape(f"shortlink:{message}")) as refused:
        deploy(stack, settings)

    assert "; run: " in str(refused.value)
    assert "pw@" not in str(refused.value)


@pytest.mark.parametrize("key", SECRET)
def test_a_secret_in_clear_is_refused_P1(key: str) -> None:
    others = [each for each in SECRET if each != key]

    with pytest.raises(pulumi.RunError, match=f"shortlink:{key} is secret") as refused:
        deploy(PLATFORM_STACK, PLATFORM, secret=others)

    assert PLATFORM[key] not in str(refused.value)


@pytest.mark.parametrize("image", ["shortlink:1.2", f"r.example/shortlink@sha256:{'0' * 64}"])
def test_an_image_that_stays_what_it_is_will_do_T1(image: str) -> None:
    made: dict[str, Any] = deploy(APPS_STACK, APPS | {"image": image}).of("Deployment")

    assert made["redirect"]["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_an_address_with_a_password_will_do_as_a_secret_P1() -> None:
    settings = PLATFORM | {"cache": "rediss://:pw@10.0.0.1/0"}

    made = deploy(PLATFORM_STACK, settings, secret=[*SECRET, "cache"])

    assert made.of("Secret")["connections"]["stringData"]["SHORTLINK_CACHE"] == settings["cache"]
