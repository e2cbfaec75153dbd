"""A real `shortlink operator` process on a scratch cluster, and the objects that it looks after.

objects = Objects(cluster)
with OperatorProcess(place, cluster.kubeconfig) as operator:
    operator.start()
    objects.create("team/promo", {"target": "https://example.com/"})
    objects.settled("team/promo")
"""

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Self

import httpx

from shortlink_operator import cluster as operator_cluster
from shortlink_operator.kinds import API_VERSION, KIND
from shortlink_operator.kinds import FINALIZER as FINALIZER
from tests.apiserver import ScratchCluster
from tests.drills.demo_process import NoAnswer, Reply, ask, free_ports, wait_for

REGION = "us-east-1"

SECONDS = 60.0
"""In which a process starts or ends, and an object is dealt with, on a busy machine."""

_LINKS = f"/apis/{API_VERSION}"
_MERGE = {"Content-Type": "application/merge-patch+json"}

Document = dict[str, Any]


class ServiceProcess:
    """`shortlink WORDS` over `place`/links.db. `changes` are of its environment."""

    def __init__(self, place: Path, *words: str, **changes: str) -> None:
        (self.port,) = free_ports(1)
        self.output = place / f"{words[0]}-{self.port}.txt"
        self._place = place
        self._command = [
            *(sys.executable, "-m", "shortlink", *words),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        ]
        self._environ = environ(place) | changes
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and do not wait."""
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environ,
                cwd=self._place,
            )

    def wait_ready(self) -> float:
        """Wait until it says that it is; the seconds that it took."""
        return wait_for(
            lambda: self.says("/readyz") == 200, f"{self.output.name} to be ready", SECONDS
        )

    def says(self, path: str) -> int:
        """The status of a page, 0 for no answer. Fails when the process has ended."""
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            raise AssertionError(
                f"{self.output.name} ended with {status}:\n{self.printed()[-3000:]}"
            )
        with suppress(NoAnswer):
            return ask(self.port, "GET", path).status
        return 0

    def series(self) -> dict[str, float]:
        """Its metrics, each named as it is printed, labels and all."""
        return read_series(page(self.port, "/metrics"))

    def printed(self) -> str:
        """All that it has printed."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(SECONDS)
            self._process = None

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(SECONDS)
        self._process = None
        return status


class OperatorProcess(ServiceProcess):
    """`shortlink operator` on the API server of `kubeconfig`."""

    def __init__(self, place: Path, kubeconfig: Path, **changes: str) -> None:
        super().__init__(place, "operator", "--kubeconfig", str(kubeconfig), **changes)


class RedirectProcess(ServiceProcess):
    """`shortlink redirect`."""

    def __init__(self, place: Path, **changes: str) -> None:
        super().__init__(place, "redirect", "--ops-port", str(free_ports(1)[0]), **changes)

    def visit(self, code: str) -> Reply:
        """Follow a short link. Raises NoAnswer."""
        return ask(self.port, "GET", f"/{code}")


def environ(place: Path) -> dict[str, str]:
    """The environment of a region's services over the SQLite store in `place`."""
    return {
        **{name: value for name, value in os.environ.items() if "SHORTLINK" not in name},
        "SHORTLINK_STORE": f"sqlite:///{place / 'links.db'}",
        "SHORTLINK_REGION": REGION,
        "SHORTLINK_BASE_URL": "https://s.example",
        "SHORTLINK_AUDIT_LOG": str(place / "audit.jsonl"),
        "SHORTLINK_DRAIN": "0",
    }


def page(port: int, path: str) -> str:
    """A page of this machine, or nothing when nobody answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()


def read_series(text: str) -> dict[str, float]:
    """Values by series of a text of Prometheus."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, _, value in lines}


def trust(cluster: ScratchCluster) -> ssl.SSLContext:
    """An admin's."""
    return operator_cluster.trust(operator_cluster.kubeconfig_login(cluster.kubeconfig))


def manifest(key: str, spec: Mapping[str, Any], **metadata: Any) -> Document:
    """A ShortLink; `key` is `namespace/name`."""
    namespace, _, name = key.partition("/")
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": namespace, "name": name, **metadata},
        "spec": dict(spec),
    }


class Objects:
    """ShortLinks as an admin sees them, by plain HTTP: kubectl takes a tenth of a second.

    All but `get` raise httpx.HTTPStatusError when the API server refuses.
    """

    def __init__(self, cluster: ScratchCluster) -> None:
        self._client = httpx.Client(
            base_url=cluster.url,
            verify=trust(cluster),
            trust_env=False,
            timeout=30,
        )

    def close(self) -> None:
        self._client.close()

    def namespace(self, name: str) -> None:
        """Make a namespace, unless it is there."""
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        answer = self._client.post("/api/v1/namespaces", json=document)
        if answer.status_code != 409:
            answer.raise_for_status()

    def create(self, key: str, spec: Mapping[str, Any], **metadata: Any) -> Document:
        path = _path(key).rpartition("/")[0]
        return self.ask("POST", path, json=manifest(key, spec, **metadata))

    def get(self, key: str) -> Document | None:
        """The object, or None."""
        answer = self._client.get(_path(key))
        return None if answer.status_code == 404 else _read(answer)

    def all(self, namespace: str) -> list[Document]:
        items: list[Document] = self.ask("GET", f"{_LINKS}/namespaces/{namespace}/shortlinks")[
            "items"
        ]
        return items

    def patch(self, key: str, document: Mapping[str, Any], subresource: str = "") -> Document:
        """A merge patch, as `/status` by `subresource`."""
        return self.ask("PATCH", _path(key) + subresource, json=document, headers=_MERGE)

    def edit(self, key: str, **spec: Any) -> Document:
        return self.patch(key, {"spec": spec})

    def annotate(self, key: str, **annotations: str | None) -> Document:
        """Set annotations of the platform, or take them away: `allow_delete` is allow-delete."""
        named = {f"shortlink.platform/{k.replace('_', '-')}": v for k, v in annotations.items()}
        return self.patch(key, {"metadata": {"annotations": named}})

    def delete(self, key: str, *, force: bool = False) -> None:
        """Ask for the deletion; `force`: take the finalizers away, as nobody should."""
        self.ask("DELETE", _path(key))
        if force and self.get(key) is not None:
            self.patch(key, {"metadata": {"finalizers": None}})

    def settled(self, key: str, seconds: float = SECONDS) -> Document:
        """Wait for the Ready condition of what the object is now, whatever it says."""
        return self._await(key, lambda each: each is not None and ready(each) is not None, seconds)

    def ready(self, key: str, seconds: float = SECONDS) -> Document:
        """Wait for Ready=True of what the object is now."""
        return self._await(
            key, lambda each: each is not None and (ready(each) or {}).get("status") == "True",
            seconds,
        )  # fmt: skip

    def gone(self, key: str, seconds: float = SECONDS) -> None:
        """Wait until there is no such object."""
        wait_for(lambda: self.get(key) is None, f"{key} to be gone: {self.get(key)}", seconds)

    def _await(
        self, key: str, holds: Callable[[Document | None], bool], seconds: float
    ) -> Document:
        end = time.monotonic() + seconds
        while not holds(found := self.get(key)):
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds:.0f} s for {key}; it is {found}")
            time.sleep(0.02)
        assert found is not None
        return found

    def leases(self) -> list[str]:
        """The paths of the operators' Leases."""
        group = "/apis/coordination.k8s.io/v1"
        metas = [item["metadata"] for item in self.ask("GET", f"{group}/leases")["items"]]
        return [
            f"{group}/namespaces/{meta['namespace']}/leases/{meta['name']}"
            for meta in metas
            if meta["name"] == "operator"
        ]

    def ask(self, method: str, path: str, **rest: Any) -> Document:
        """Any request."""
        return _read(self._client.request(method, path, **rest))


def ready(document: Mapping[str, Any]) -> Document | None:
    """The Ready condition, if it is about what the object is now."""
    for condition in document.get("status", {}).get("conditions", ()):
        if (
            condition["type"] == "Ready"
            and condition["observedGeneration"] == document["metadata"]["generation"]
        ):
            found: Document = condition
            return found
    return None


def _path(key: str) -> str:
    namespace, _, name = key.partition("/")
    return f"{_LINKS}/namespaces/{namespace}/shortlinks/{name}"


def _read(answer: httpx.Response) -> Document:
    if answer.is_error:
        raise httpx.HTTPStatusError(
            f"{answer.status_code}: {answer.text}", request=answer.request, response=answer
        )
    document: Document = answer.json()
    return document
