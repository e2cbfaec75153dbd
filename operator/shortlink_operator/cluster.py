"""A region's Kubernetes API server by plain HTTP, for all but watches, which are Kopf's.

Nothing here is tried again, since callers have a backoff of their own; but aiohttp sends a GET or
PUT once more whose connection was closed without an answer.
"""

import base64
import json
import os
import re
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from shortlink.clock import SYSTEM_CLOCK, Clock
from shortlink.problem import Problem
from shortlink_operator.kinds import API_VERSION

DEADLINE: Final = 10.0
"""Seconds for one request, its wait for a free connection included."""

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""What a pod is given to log in with (Kubernetes, "Accessing the API from a Pod")."""

_CONNECTIONS: Final = 16
_PAGE: Final = 500
_SHOWN: Final = 300
"""Characters of an answer that is not the API server's own."""

_LATER: Final = {408, 410, 429}
"""Statuses below 500 of which the next try, or the next list, may know nothing."""

_LACKS: Final = re.compile(r'cannot (\w+) resource "([^"]+)"')
"""In the message of a 403."""

_VERBS: Final = {"GET": "get", "PATCH": "patch", "POST": "create", "PUT": "replace"}

Json = dict[str, Any]
Told = Callable[[str, str, str], None]


class ClusterError(Exception):
    """The API server did not do what was asked; the message says what and why."""


class Conflict(ClusterError):
    """The object was changed by somebody else, or is there already."""


class Missing(ClusterError):
    """There is no such object, though its kind is served. So it is safe to take it for gone."""


class Refused(ClusterError):
    """It will not, and won't until something is changed: a permission, a login, the object.

    `permission` is the one that we lack, as `patch shortlinks/status`, or empty.
    """

    def __init__(self, message: str, permission: str = "") -> None:
        super().__init__(message)
        self.permission = permission


class Failed(ClusterError):
    """It tried and failed, as when an admission webhook is down: others may well be served."""


class Unreachable(ClusterError):
    """It can't now, or can't be reached, or serves no such kind. Whether a write was done is not
    known.
    """


@dataclass(frozen=True, slots=True)
class Login:
    """Where an API server is and who we are there. Certificates and keys are PEM.

    `token` gives the bearer token as it is now, since a pod's is renewed every hour.
    """

    server: str
    namespace: str
    """Our own; of the kubeconfig's context when we are no pod."""
    authority: str | None = None
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    token: Callable[[], str | None] = field(default=lambda: None, repr=False)


class Cluster:
    """Requests to one API server. All methods raise ClusterError, always one of its kinds.

    Paths are as in the API: `objects` and `object_path` make those of this platform's kinds.
    `answered` is when (steady) it last answered with a status below 500, 0 for never. `told` is
    called with the verb, the kind, as `shortlinks/status`, and the result of each request: ok,
    conflict, missing, refused, failed or unreachable.
    """

    def __init__(self, login: Login, session: aiohttp.ClientSession, clock: Clock) -> None:
        self.login = login
        self.answered = 0
        self.told: Told = lambda verb, kind, result: None
        self._session = session
        self._steady = clock.steady

    async def get(self, path: str) -> Json:
        """An object."""
        return await self._ask("GET", path)

    async def pages(self, path: str, limit: int = _PAGE) -> AsyncIterator[list[Json]]:
        """All objects of a list, `limit` at a time; they name no kind. All are of one moment.

        Raises Unreachable when that moment is too long ago for the pages that are left: begin
        again.
        """
        more = ""
        while True:
            found = await self._ask("GET", path, query={"limit": str(limit), "continue": more})
            yield found["items"]
            more = found["metadata"].get("continue", "")
            if not more:
                return

    async def patch(self, path: str, body: Mapping[str, Any], *, subresource: str = "") -> Json:
        """Merge `body` into an object (RFC 7396); the object then.

        Raises Conflict when `body` has a metadata.resourceVersion that is not the object's.
        """
        whole = f"{path}/{subresource}" if subresource else path
        return await self._ask("PATCH", whole, body, media="application/merge-patch+json")

    async def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """Add an object to the list at `path`; the object then. Raises Conflict if it is there."""
        return await self._ask("POST", path, body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        """Replace an object whose metadata.resourceVersion is still that in `body`."""
        return await self._ask("PUT", path, body)

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        media: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        try:
            found = await self._request(method, path, body, media, query)
        except ClusterError as error:
            self.told(_VERBS[method], _kind(path), type(error).__name__.lower())
            raise
        self.told(_VERBS[method], _kind(path), "ok")
        return found

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        media: str,
        query: Mapping[str, str] | None,
    ) -> Json:
        headers = {} if body is None else {"Content-Type": media}
        data = None if body is None else json.dumps(body)
        what = f"{method} {path}"
        try:
            if token := self.login.token():
                headers["Authorization"] = f"Bearer {token}"
            async with self._session.request(
                method,
                f"{self.login.server}{path}",
                params=query,
                data=data,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                status, text = answer.status, await answer.text(errors="replace")
        except TimeoutError as error:
            raise Unreachable(f"{what}: no answer in time from {self.login.server}") from error
        except Exception as error:  # ValueError for a wrong token, RuntimeError of uvloop, ...
            said = str(error) or repr(error)
            raise Unreachable(f"{what}: {self.login.server}: {said}") from error
        if status < 500:
            self.answered = self._steady()
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        if 200 <= status < 300 and isinstance(told, dict):
            return told
        raise _error(what, status, told, text)


def objects(plural: str, namespace: str | None = None) -> str:
    """The list of a kind of this platform: in one namespace, or in all."""
    inside = "" if namespace is None else f"/namespaces/{namespace}"
    return f"/apis/{API_VERSION}{inside}/{plural}"


def object_path(plural: str, namespace: str | None, name: str) -> str:
    """One object of a kind of this platform; `namespace` is None for kinds that are in none."""
    return f"{objects(plural, namespace)}/{name}"


@asynccontextmanager
async def open_cluster(
    kubeconfig: Path | None, clock: Clock = SYSTEM_CLOCK, deadline: float = DEADLINE
) -> AsyncIterator[Cluster]:
    """The cluster of a kubeconfig's current context, or that of the pod that we are (None).

    Reaches nobody yet. Raises Problem when there is no such login.
    """
    login = pod_login(os.environ) if kubeconfig is None else kubeconfig_login(kubeconfig)
    async with opened(login, clock, deadline) as cluster:
        yield cluster


@asynccontextmanager
async def opened(
    login: Login, clock: Clock = SYSTEM_CLOCK, deadline: float = DEADLINE
) -> AsyncIterator[Cluster]:
    """The cluster of a login, with connections of its own. `deadline`: seconds for a request.

    Raises Problem when a certificate or key can't be used.
    """
    connector = aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=trust(login))
    timeout = aiohttp.ClientTimeout(total=deadline)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Cluster(login, session, clock)


def pod_login(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Login:
    """The login of the pod that we are. Raises Problem when we are none."""
    host, port = (environ.get(f"KUBERNETES_SERVICE_{each}", "") for each in ("HOST", "PORT"))
    if not host or not port:
        raise Problem("this is no pod of a Kubernetes cluster: give --kubeconfig FILE")
    at = f"[{host}]" if ":" in host else host
    token = folder / "token"
    try:
        authority, namespace = (folder / "ca.crt").read_text(), (folder / "namespace").read_text()
        token.read_text()
    except OSError as error:
        raise Problem(
            f"the pod's service account: {error.filename}: {error.strerror}; "
            "let the pod have automountServiceAccountToken: true"
        ) from error
    return Login(
        f"https://{at}:{port}",
        namespace.strip(),
        authority,
        token=lambda: token.read_text().strip(),
    )


def kubeconfig_login(path: Path) -> Login:
    """The login of a kubeconfig's current context: by client certificate or token.

    Raises Problem when there is none, or none that can be used.
    """
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"] or {}
        server = cluster["server"].rstrip("/")
        authority = _pem(path, cluster, "certificate-authority")
        certificate = _pem(path, user, "client-certificate")
        key = _pem(path, user, "client-key")
        token = _token(path, user)
        has_token = token() is not None
    except OSError as error:
        raise Problem(f"{error.filename}: {error.strerror}") from error
    except yaml.YAMLError as error:  # whose words may have a token in them
        mark = getattr(error, "problem_mark", None)
        at = "" if mark is None else f": see line {mark.line + 1}, column {mark.column + 1}"
        raise Problem(f"{path} is no YAML{at}") from None
    except UnicodeDecodeError as error:
        raise Problem(f"{path}, or what it names, is no text: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Problem(f"{path} is no kubeconfig that can be used: {error!r}") from error
    if not has_token and (certificate is None or key is None):
        raise Problem(
            f"{path}: user {context['user']!r} has neither a token nor a client certificate and "
            "its key; other ways to log in are not known here: make a kubeconfig with the "
            "output of `kubectl create token`"
        )
    namespace = context.get("namespace") or "default"
    return Login(server, namespace, authority, certificate, key, token)


def _named(config: Json, kind: str, name: str) -> Json:
    found: Json = {each["name"]: each for each in config[kind]}[name]
    return found


def _pem(path: Path, given: Json, name: str) -> str | None:
    if data := given.get(f"{name}-data"):
        return base64.b64decode(data).decode()
    if file := given.get(name):
        return Path(path.parent, file).read_text()
    return None


def _token(path: Path, user: Json) -> Callable[[], str | None]:
    if file := user.get("tokenFile"):
        return lambda: Path(path.parent, file).read_text().strip()
    token: str | None = user.get("token")
    return lambda: token


def trust(login: Login) -> ssl.SSLContext:
    """What TLS needs. Python reads certificates and keys from files alone: one is there briefly.

    Raises Problem when they can't be used.
    """
    try:
        context = ssl.create_default_context(cadata=login.authority)
        if login.certificate is not None and login.key is not None:
            with tempfile.NamedTemporaryFile("w") as pem:  # its mode is 0600
                pem.write(f"{login.certificate}\n{login.key}")
                pem.flush()
                context.load_cert_chain(pem.name)
    except (ssl.SSLError, OSError) as error:
        raise Problem(
            f"the certificate, key or authority for {login.server} can't be used: {error}"
        ) from error
    return context


def _kind(path: str) -> str:
    """The kind that a path is about, and its subresource."""
    _, root, *words = path.split("/")
    words = words[1:] if root == "api" else words[2:]  # behind the group and the version
    if words[:1] == ["namespaces"] and len(words) > 2:
        words = words[2:]
    return "/".join(words[::2])


def _error(what: str, status: int, told: object, text: str) -> ClusterError:
    said = told.get("message") if isinstance(told, dict) else None
    own = isinstance(told, dict) and told.get("kind") == "Status"
    message = f"{what}: {status}: {said or text.strip()[:_SHOWN] or '(no words)'}"
    if status == 401:
        return Refused(f"{message}; the token or certificate that we have is not accepted")
    if status == 404:
        if own:
            return Missing(message)
        return Unreachable(f"{message}; the API server does not serve this kind now")
    if status == 409:
        return Conflict(message)
    if status == 403:
        lacks = _LACKS.search(message)
        return Refused(message, " ".join(lacks.groups()) if lacks else "")
    if 400 <= status < 500 and status not in _LATER:
        return Refused(message)
    return Failed(message) if own and status == 500 else Unreachable(message)
