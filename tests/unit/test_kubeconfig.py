"""Where an API server is and how we log in there: kubeconfigs, and a pod's service account."""

from base64 import b64encode
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
import yaml

from shortlink.problem import Problem
from shortlink_operator.cluster import kubeconfig_login, open_cluster, opened, pod_login

SERVER = "https://10.0.0.1:6443"
TOKEN: dict[str, Any] = {"token": "t0"}
CERTIFICATE = {
    "client-certificate-data": b64encode(b"CERT").decode(),
    "client-key-data": b64encode(b"KEY").decode(),
}


def a_kubeconfig(
    folder: Path, user: object, cluster: object = None, context: dict[str, str] | None = None
) -> Path:
    """One with another cluster, user and context in front."""
    named = {"cluster": "here", "user": "me"} | (context or {})
    config = {
        "clusters": [
            {"name": "there", "cluster": {"server": "https://there"}},
            {"name": "here", "cluster": cluster or {"server": f"{SERVER}/"}},
        ],
        "users": [{"name": "other", "user": {"token": "no"}}, {"name": "me", "user": user}],
        "contexts": [
            {"name": "first", "context": {"cluster": "there", "user": "other"}},
            {"name": "second", "context": named},
        ],
        "current-context": "second",
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(config))
    return path


def test_the_current_context_counts_T2(tmp_path: Path) -> None:
    login = kubeconfig_login(a_kubeconfig(tmp_path, TOKEN))

    assert (login.server, login.namespace, login.token()) == (SERVER, "default", "t0")


def test_a_contexts_namespace_is_ours_T2(tmp_path: Path) -> None:
    file = a_kubeconfig(tmp_path, TOKEN, context={"namespace": "links"})

    assert kubeconfig_login(file).namespace == "links"


def test_certificates_are_given_as_data_T2(tmp_path: Path) -> None:
    cluster = {"server": SERVER, "certificate-authority-data": b64encode(b"CA").decode()}

    login = kubeconfig_login(a_kubeconfig(tmp_path, CERTIFICATE, cluster))

    assert (login.authority, login.certificate, login.key) == ("CA", "CERT", "KEY")
    assert login.token() is None


def test_files_are_looked_for_beside_the_kubeconfig_T2(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key", "token"):
        (tmp_path / name).write_text(f"{name} it is\n")
    cluster = {"server": SERVER, "certificate-authority": "ca"}
    user = {"client-certificate": "cert", "client-key": "key", "tokenFile": "token"}

    login = kubeconfig_login(a_kubeconfig(tmp_path, user, cluster))

    assert login.authority == "ca it is\n"
    assert (login.certificate, login.key) == ("cert it is\n", "key it is\n")
    assert login.token() == "token it is"
    (tmp_path / "token").write_text("renewed")
    assert login.token() == "renewed"


def test_neither_keys_nor_tokens_are_shown_T2(tmp_path: Path) -> None:
    shown = repr(kubeconfig_login(a_kubeconfig(tmp_path, TOKEN | CERTIFICATE)))

    assert "KEY" not in shown
    assert "t0" not in shown


@pytest.mark.parametrize(
    "user",
    [
        None,
        {},
        {"exec": {"command": "aws"}},
        {"username": "me", "password": "hidden"},
        {"client-certificate-data": CERTIFICATE["client-certificate-data"]},
    ],
)
def test_a_user_who_can_not_log_in_is_told_how_T2(tmp_path: Path, user: object) -> None:
    file = a_kubeconfig(tmp_path, user)

    with pytest.raises(Problem, match=r"user 'me' has neither.*kubectl create token") as problem:
        kubeconfig_login(file)

    assert str(file) in str(problem.value)
    assert "hidden" not in str(problem.value)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is no kubeconfig that can be used"),
        ("[]", "is no kubeconfig that can be used"),
        ("{}", r"is no kubeconfig that can be used: KeyError\('current-context'\)"),
        ("current-context: x\ncontexts: []", r"is no kubeconfig .*KeyError\('x'\)"),
        ("a: [", "is no YAML: see line 1, column 5"),
        ("\0", "is no YAML"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_told_T2(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)

    with pytest.raises(Problem, match=wrong):
        kubeconfig_login(file)


@pytest.mark.parametrize(
    "text",
    [
        b"users:\n- user: {token: t0ken: x}\n",
        b"users:\n- user:\n    token: t0ken: x\n",
        b"users:\n- user: {token: t0ken, other: \xff}\n",
    ],
)
def test_a_wrong_file_is_told_without_what_is_in_it_T2(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "config"
    file.write_bytes(text)

    with pytest.raises(Problem, match=f"{file}.* is no ") as problem:
        kubeconfig_login(file)

    assert "t0ken" not in "".join(format_exception(problem.value))


@pytest.mark.parametrize("key", [b"\xffsecret", b"secret\xff"])
def test_a_key_that_is_no_text_is_not_shown_T2(tmp_path: Path, key: bytes) -> None:
    user = CERTIFICATE | {"client-key-data": b64encode(key).decode()}

    with pytest.raises(Problem, match="is no text") as problem:
        kubeconfig_login(a_kubeconfig(tmp_path, user))

    assert "secret" not in "".join(format_exception(problem.value))


def test_a_token_that_can_not_be_read_is_told_T2(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"none: No such file"):
        kubeconfig_login(a_kubeconfig(tmp_path, {"tokenFile": "none"}))


def test_a_file_that_is_not_there_is_told_T2(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"none: No such file"):
        kubeconfig_login(tmp_path / "none")


async def test_a_certificate_that_is_none_is_told_before_it_is_used_T2(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=f"key or authority for {SERVER} can't be used"):
        async with open_cluster(a_kubeconfig(tmp_path, CERTIFICATE)):
            pass
    login = kubeconfig_login(
        a_kubeconfig(tmp_path, TOKEN, {"server": SERVER, "certificate-authority-data": "Q0E="})
    )
    with pytest.raises(Problem, match="can't be used"):
        async with opened(login):
            pass


def a_service_account(folder: Path) -> Path:
    for name in ("ca.crt", "namespace", "token"):
        (folder / name).write_text(f"{name}\n")
    return folder


@pytest.mark.parametrize(
    ("host", "server"), [("10.1.0.1", "https://10.1.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_knows_its_api_server_T2(tmp_path: Path, host: str, server: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}

    login = pod_login(environ, a_service_account(tmp_path))

    assert (login.server, login.namespace) == (server, "namespace")
    assert (login.authority, login.token()) == ("ca.crt\n", "token")


def test_what_is_no_pod_needs_a_kubeconfig_T2(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="give --kubeconfig"):
        pod_login({}, a_service_account(tmp_path))


@pytest.mark.parametrize("name", ["ca.crt", "namespace", "token"])
def test_a_pod_without_a_service_account_is_told_T2(tmp_path: Path, name: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.1.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    (a_service_account(tmp_path) / name).unlink()

    with pytest.raises(Problem, match=rf"{name}: No such file.*automountServiceAccountToken"):
        pod_login(environ, tmp_path)
