"""A scratch cluster: etcd, API server and controller-manager of the built parts, on loopback.

    with scratch_cluster("eu-west-1") as cluster:
        cluster.apply_crds()
        cluster.kubectl("get", "shortlinks", "-A")

Nodes and pods it has none. It ends with the process that made it, however that ends.
"""

import base64
import ipaddress
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from local import parts
from local.regions import health
from local.regions.processes import tail

CRDS = Path(__file__).parents[1] / "operator" / "crds"
HOST = "127.0.0.1"
READY_WITHIN = 60.0
CONTROLLERS = "namespace-controller,garbage-collector-controller,serviceaccount-controller"

TETHERED = '{ "$@" </dev/null; kill -KILL 0; } & read -r _; kill -KILL 0'
"""A shell's script: run the command; end it, group and all, when standard input ends, which is
when whoever holds the other end has ended. (A parent-death signal goes with its thread.)
"""

Rules = Sequence[Mapping[str, Sequence[str]]]
"""A ClusterRole's: [{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}]."""


class ScratchCluster:
    """One cluster. All methods block; `url`, ports and keys stay the same over its stops."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.ports = free_ports(3)
        self.url = f"https://{HOST}:{self.ports[2]}"
        self.kubeconfig = folder / "admin.kubeconfig"
        self._parts = parts.find()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        make_certificates(folder)
        user = {
            "client-certificate-data": encoded(folder / "admin.crt"),
            "client-key-data": encoded(folder / "admin.key"),
        }
        self._write_kubeconfig(self.kubeconfig, self.url, user)

    def start(self) -> None:
        """Start what does not run and wait until the API server is ready, about 5 s."""
        client, peer, api = self.ports
        at, files = f"http://{HOST}", self.folder
        for name, ports in (("etcd", (client, peer)), ("kube-apiserver", (api,))):
            if name not in self._running:
                await_free(ports)
        self._run(
            "etcd",
            f"--data-dir={files}/etcd",
            f"--listen-client-urls={at}:{client}",
            f"--advertise-client-urls={at}:{client}",
            f"--listen-peer-urls={at}:{peer}",
            f"--initial-advertise-peer-urls={at}:{peer}",
            f"--initial-cluster=default={at}:{peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._run(
            "kube-apiserver",
            f"--etcd-servers={at}:{client}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={api}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.99.0.0/16",
            "--authorization-mode=RBAC",
            "--profiling=false",
            f"--client-ca-file={files}/ca.crt",
            f"--tls-cert-file={files}/server.crt",
            f"--tls-private-key-file={files}/server.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={files}/server.key",
            f"--service-account-signing-key-file={files}/server.key",
        )
        self._await_ready()
        self._run(  # last: it gives up on an API server that is slow to come
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            "--secure-port=0",
            f"--controllers={CONTROLLERS}",
            f"--service-account-private-key-file={files}/server.key",
            "--leader-elect=false",
        )

    def stop(self) -> None:
        """Kill the API server (and who acts by it); its data stay."""
        self._kill("kube-controller-manager", "kube-apiserver")

    def close(self) -> None:
        """Kill all of it."""
        self._kill(*reversed(list(self._running)))

    def wipe(self) -> None:
        """Put an empty cluster in its place, with the same address and users' certificates."""
        self.close()
        shutil.rmtree(self.folder / "etcd")
        self.start()

    def kubectl(self, *words: str, given: str | None = None) -> str:
        """What kubectl prints, as the admin; `given` is its standard input.

        Raises AssertionError with its words when it fails.
        """
        done = subprocess.run(
            [
                self._parts.program("kubectl"),
                f"--kubeconfig={self.kubeconfig}",
                f"--cache-dir={self.folder}/kubectl",
                *words,
            ],
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def apply_crds(self) -> None:
        """Apply the operator's CRDs, or what changed in them, and wait until they are served."""
        self.kubectl("apply", "-f", str(CRDS))
        self.kubectl("wait", "--for=condition=Established", "-f", str(CRDS), "--timeout=30s")

    def kubeconfig_for(self, rules: Rules, user: str = "limited") -> Path:
        """A kubeconfig of a user (a service account) who may do this and nothing else.

        Called again for the same user it changes what they may.
        """
        meta = {"name": user, "namespace": "default"}
        group = "rbac.authorization.k8s.io"
        objects: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
            {
                "apiVersion": f"{group}/v1",
                "kind": "ClusterRole",
                "metadata": {"name": user},
                "rules": list(rules),
            },
            {
                "apiVersion": f"{group}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": user},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user},
                "subjects": [{"kind": "ServiceAccount", **meta}],
            },
        ]
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "-f", "-", given=given)
        path = self.folder / f"{user}.kubeconfig"
        self._write_kubeconfig(path, self.url, {"token": self._token(user)})
        return path

    def through(self, port: int) -> Path:
        """A kubeconfig of an admin that leads to a port of this machine, where a proxy listens.

        The admin has a token, so it passes a proxy that ends TLS (with `server.crt`, `server.key`
        of `folder`).
        """
        everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        self.kubeconfig_for(everything, "proxied")
        path = self.folder / f"through-{port}.kubeconfig"
        self._write_kubeconfig(path, f"https://{HOST}:{port}", {"token": self._token("proxied")})
        return path

    def _token(self, user: str) -> str:
        return self.kubectl("create", "token", user, "-n", "default", "--duration=24h").strip()

    def _write_kubeconfig(self, path: Path, url: str, user: Mapping[str, str]) -> None:
        ca = encoded(self.folder / "ca.crt")
        cluster = {"server": url, "certificate-authority-data": ca}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.name, "cluster": cluster}],
            "users": [{"name": self.name, "user": user}],
            "contexts": [
                {"name": self.name, "context": {"cluster": self.name, "user": self.name}},
            ],
            "current-context": self.name,
        }
        path.write_text(json.dumps(config, indent=1))

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _run(self, name: str, *options: str) -> None:
        if name in self._running:
            return
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                ["sh", "-c", TETHERED, name, self._parts.program(name), *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | {"GOGC": "50"},
                start_new_session=True,
            )

    def _kill(self, *names: str) -> None:
        for name in names:
            process = self._running.pop(name, None)
            if process is None:
                continue
            if process.poll() is None:
                group = psutil.Process(process.pid).children(recursive=True)
                os.killpg(process.pid, signal.SIGKILL)
                for each in group:
                    await_end(each)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def _await_ready(self) -> None:
        asked = health.http(f"{self.url}/readyz", ca=self.folder / "ca.crt")
        end = time.monotonic() + READY_WITHIN
        while (reason := asked()) is not None:
            ended = [name for name, each in self._running.items() if each.poll() is not None]
            if ended or time.monotonic() > end:
                name = ended[0] if ended else "kube-apiserver"
                raise AssertionError(f"{name}: {reason}\n{tail(self._log(name), 15)}")
            time.sleep(0.05)


@contextmanager
def scratch_cluster(name: str = "us-east-1") -> Iterator[ScratchCluster]:
    """A cluster that is ready; killed and forgotten at the end."""
    with tempfile.TemporaryDirectory(prefix="shortlink-cluster-") as folder:
        cluster = ScratchCluster(name, Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


def await_end(process: psutil.Process) -> None:
    """Wait until a killed process that is no child of ours has let go of its port and files."""
    end = time.monotonic() + READY_WITHIN
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end, f"{process} does not end"
            time.sleep(0.01)


def await_free(ports: Iterable[int]) -> None:
    """Wait until these can be listened at: of a process that was killed, the threads end later."""
    end = time.monotonic() + READY_WITHIN
    for port in ports:
        while not is_free(port):
            assert time.monotonic() < end, f"port {port} is not free"
            time.sleep(0.01)


def is_free(port: int) -> bool:
    """Whether a server can listen there."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers in Go do
        try:
            tried.bind((HOST, port))
            tried.listen()
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, below those that connections are given: else a client that tries
    again and again to reach a stopped server may get that very port, and reach itself.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, 32_000)
        if is_free(port):
            found.append(port)
    return found


def encoded(path: Path) -> str:
    """A file's content as a kubeconfig has it."""
    return base64.b64encode(path.read_bytes()).decode()


def make_certificates(folder: Path) -> None:
    """An authority (`ca.crt`), and the certificates of the server and of an admin, with keys."""
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "scratch")])
    now = datetime.now(UTC)

    def issue(
        subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType | None
    ) -> bytes:
        builder = (
            x509.CertificateBuilder(issuer, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=2))
        )
        if extension is not None:
            builder = builder.add_extension(extension, critical=False)
        signed = builder.sign(authority, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    constraints = x509.BasicConstraints(ca=True, path_length=0)
    (folder / "ca.crt").write_bytes(issue(issuer, authority, constraints))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    for name, group, extension in (
        ("server", "scratch", address),
        ("admin", "system:masters", None),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, group),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        (folder / f"{name}.crt").write_bytes(issue(subject, key, extension))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,  # what the API server reads
                serialization.NoEncryption(),
            )
        )
