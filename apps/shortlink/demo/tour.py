"""`shortlink demo --once`: a link's whole life on a fast clock, each step checked."""

import asyncio
import json
import secrets
import socket
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

from rich.console import Console

from shortlink.api.keys import Key, Keys, digest, new_key
from shortlink.clock import HandClock
from shortlink.demo.embedded import AUDIT_LOG, HOST, Embedded, Settings
from shortlink.links.codes import LENGTH
from shortlink.links.instants import format_instant
from shortlink.links.policy import DAY, HOUR, SECOND, Policy

NOT_SHOWN = (
    "Not shown: Kopf and a Kubernetes API server, Cassandra, Redis, several regions, a CDN,"
    " failover."
)

_TIMEOUT = 10.0


class Tour:
    """Steps through the life of the code `spring26`; `wrong` counts answers that differ."""

    def __init__(
        self, platform: Embedded, settings: Settings, clock: HandClock, key: str, console: Console
    ) -> None:
        self.steps = 0
        self.wrong = 0
        self._platform = platform
        self._settings = settings
        self._clock = clock
        self._key = key
        self._console = console

    async def run(self) -> None:
        """All steps, in order."""
        await self._birth()
        await self._api()
        await self._expiry()
        await self._deletion()
        await self._reissue()
        await self._story()

    async def _birth(self) -> None:
        self._title("A ShortLink is applied, then edited")
        await self._redirect("spring26", 404)
        self._write("team-a", "spring", "https://example.com/spring", days=2)
        await self._follow("apply spring.yaml: code spring26, expires in 2 days")
        await self._redirect("spring26", 302, "https://example.com/spring")
        self._write("team-a", "spring", "https://example.com/spring?sale=1", days=2)
        await self._follow("edit its target")
        await self._redirect("spring26", 302, "https://example.com/spring?sale=1")
        self._write("team-a", "docs", "https://example.com/docs", code=None)
        await self._follow("apply docs.yaml: no code asked for")
        link = self._platform.reconciler.outcomes["team-a/docs"].link
        code = link.code if link else ""
        self._check("a generated code has 7 characters", LENGTH, len(code))
        await self._redirect(code, 302, "https://example.com/docs")

    async def _api(self) -> None:
        self._title("A script makes links through the API")
        await self._post({"long_url": "https://example.org/", "custom_alias": "fromapi"}, 201)
        await self._redirect("fromapi", 302, "https://example.org/")
        await self._post({"long_url": "https://example.net/", "custom_alias": "spring26"}, 409)
        await self._post({"long_url": "javascript:alert(1)"}, 400)
        await self._post({"long_url": f"{self._settings.base_url}/spring26"}, 400)

    async def _expiry(self) -> None:
        self._title("The link expires, though no sweeper has run; its owner extends it")
        await self._sweep()  # from now on the sweeper watches the clock, and waits an hour
        self._pass("one day and an hour", DAY + HOUR)
        await self._sweep()
        self._check("told a day ahead", "expiring", (await self._events("spring26"))[-1])
        self._pass("another day", DAY)
        await self._redirect("spring26", 410)
        await self._sweep()
        await self._redirect("spring26", 410)
        self._write("team-a", "spring", "https://example.com/spring", days=30)
        await self._follow("edit: expires in 30 days")
        await self._redirect("spring26", 302, "https://example.com/spring")

    async def _deletion(self) -> None:
        self._title("The object is deleted, applied again within the grace, and deleted for good")
        self._remove("team-a", "spring")
        await self._follow("delete spring.yaml")
        await self._redirect("spring26", 410)
        self._write("team-a", "spring", "https://example.com/spring", days=30)
        await self._follow("apply it again: restored")
        await self._redirect("spring26", 302, "https://example.com/spring")
        self._remove("team-a", "spring")
        await self._follow("delete it")
        await self._redirect("spring26", 410)

    async def _reissue(self) -> None:
        self._title("Another team wants the code: not before the quarantine is over")
        self._write("team-b", "spring", "https://team-b.example/", days=900)
        await self._follow("team-b applies an object with the code spring26")
        self._check("refused", "Taken", self._platform.reconciler.outcomes["team-b/spring"].reason)
        self._pass("the grace, 30 days", 30 * DAY)
        await self._sweep()
        await self._state("spring26", "quarantined")
        await self._follow("team-b tries again")
        await self._redirect("spring26", 410)
        self._pass("the rest of the year", 336 * DAY)
        await self._sweep()
        await self._state("spring26", "free")
        await self._redirect("spring26", 410)
        await self._follow("team-b tries again: the next generation")
        await self._redirect("spring26", 302, "https://team-b.example/")
        self._write("team-a", "spring", "https://example.com/spring", days=30)
        await self._follow("team-a applies its old object")
        self._check("refused", "Taken", self._platform.reconciler.outcomes["team-a/spring"].reason)
        await self._redirect("spring26", 302, "https://team-b.example/")

    async def _story(self) -> None:
        self._title("What the audit log tells of the code")
        kinds = ["created", "edited", "expiring", "tombstoned", "restored", "tombstoned"]
        kinds += ["restored", "tombstoned", "quarantined", "freed", "created"]
        self._check("events", kinds, await self._events("spring26"))

    def _title(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/bold]")

    def _pass(self, text: str, milliseconds: int) -> None:
        self._clock.advance(milliseconds)
        self._console.print(f"     [dim]{text} later: {format_instant(self._clock.at)}[/dim]")

    def _check(self, asked: str, expected: object, came: object) -> None:
        self.steps += 1
        right = came == expected
        self.wrong += not right
        mark = "[green]ok[/green]" if right else f"[red]WRONG, expected {expected}[/red]"
        line = f"{self.steps:3}  {asked}: {came}  {mark}"
        self._console.print(line, highlight=False, soft_wrap=True)

    def _file(self, namespace: str, name: str) -> Path:
        return self._settings.folder / f"{namespace}-{name}.yaml"

    def _write(
        self,
        namespace: str,
        name: str,
        target: str,
        *,
        days: int = 0,
        code: str | None = "spring26",
    ) -> None:
        spec: dict[str, object] = {"target": target}
        if code is not None:
            spec["code"] = code
        if days:
            spec["expiresAt"] = format_instant(self._clock.at + days * DAY)
        manifest = {
            "apiVersion": "shortlink.platform/v1alpha1",
            "kind": "ShortLink",
            "metadata": {"namespace": namespace, "name": name},
            "spec": spec,
        }
        self._file(namespace, name).write_text(json.dumps(manifest), encoding="utf-8")

    def _remove(self, namespace: str, name: str) -> None:
        self._file(namespace, name).unlink()

    async def _follow(self, text: str) -> None:
        self._console.print(f"     {text}")
        self._clock.advance(11 * SECOND)  # past the follower's full pass, and every cache entry
        for _ in range(2):
            await self._platform.follower.run()

    async def _sweep(self) -> None:
        await self._platform.sweeper.run()

    async def _events(self, code: str) -> list[str]:
        await self._platform.relay.run()
        text = (self._settings.data / AUDIT_LOG).read_text(encoding="utf-8")
        events = [json.loads(line) for line in text.splitlines()]
        return [event["kind"] for event in events if event["code"] == code]

    async def _state(self, code: str, expected: str) -> None:
        link = await self._platform.management.store.get(code)
        self._check(f"state of {code}", expected, link and str(link.state))

    async def _redirect(self, code: str, status: int, target: str | None = None) -> None:
        got = await _request(HOST, self._settings.port, "GET", f"/{code}")
        self._check(f"GET /{code}", (status, target), (got[0], got[1]))

    async def _post(self, body: dict[str, str], status: int) -> None:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        got = await _request(
            HOST,
            self._settings.api_port,
            "POST",
            "/api/v1/links",
            json.dumps(body),
            headers,
        )
        told = json.loads(got[2])
        self._check(f"POST /api/v1/links {body}", status, got[0])
        detail = told.get("detail") or told["short_url"]
        self._console.print(f"     [dim]{detail}[/dim]", soft_wrap=True)


async def _request(
    host: str,
    port: int,
    method: str,
    path: str,
    body: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, str | None, bytes]:
    def ask() -> tuple[int, str | None, bytes]:
        connection = HTTPConnection(host, port, timeout=_TIMEOUT)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.getheader("Location"), response.read()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


def free_port() -> int:
    """A port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


async def tour(console: Console, now: Callable[[], int]) -> bool:
    """Run all steps in a temporary folder; whether every answer was as it has to be."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="shortlink-") as place:
        settings = Settings(
            Path(place, "links"), Path(place, "data"), *(free_port() for _ in range(3))
        )
        settings.folder.mkdir()
        settings.data.mkdir()
        clock = HandClock(now())
        key = new_key(secrets.token_bytes)
        keys = Keys([Key("scripts", False, digest(key))])
        async with await Embedded.open(settings, Policy(), clock.clock, keys) as platform:
            walk = Tour(platform, settings, clock, key, console)
            await walk.run()
    console.print(
        f"\n{walk.steps} steps, {walk.wrong} wrong, {time.perf_counter() - began:.1f} s\n"
        "Shown: ShortLink objects from a folder, redirects, the API, and the whole lifecycle, on"
        f" SQLite.\n{NOT_SHOWN}",
        soft_wrap=True,
    )
    return walk.wrong == 0
