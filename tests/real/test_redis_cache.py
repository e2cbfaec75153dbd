"""The second cache level on a real Redis that is killed, frozen and asked in any order."""

import asyncio
import random
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from shortlink.cache.memory import FILL_LIMIT
from shortlink.cache.redis import _NEWEST, RedisCache, open_cache
from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.model import Link
from shortlink.links.policy import CACHE_BOUND
from shortlink.redirect.service import RedirectService
from shortlink.store.record import from_text, to_text
from tests import samples
from tests.redirect_rig import Source, ask, header
from tests.redis_model import Model

PASSWORD = "p@ss/w:rd#?"


class Server:
    """A redis-server on a free port, begun when it is entered; no data outlives it."""

    def __init__(self, settings: Sequence[str] = ()) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        self._settings = settings or [f"port {self.port}"]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["redis-server", "-"], stdin=pipe, stdout=pipe, text=True, cwd=tempfile.gettempdir()
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n".join([*self._settings, 'save ""', "bind 127.0.0.1"]))
        self._process.stdin.close()
        said = []
        for line in self._process.stdout:
            said.append(line)
            if "Ready to accept connections" in line:
                return
        raise RuntimeError("redis-server did not start:\n" + "".join(said))

    def send(self, what: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(what)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def a_link(version: int = 1, code: str = "promo", **values: Any) -> Link:
    target = f"https://example.com/{version}"
    return samples.a_link(code=code, version=version, target=target, **values)


def opened(server: Server) -> RedisCache:
    return open_cache(server.url, SYSTEM_CLOCK, to_text, from_text)


@pytest.fixture
async def cache(server: Server) -> AsyncIterator[RedisCache]:
    cache = opened(server)
    await moment(cache)
    yield cache
    await cache.close()


async def until(done: Callable[[], bool]) -> None:
    """Let the others run; the test's own time-out ends what never comes."""
    while not done():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def moment(cache: RedisCache) -> int:
    """Redis's time, as a look-up gives it; Redis has to be there soon."""
    while True:
        now = (await cache.get("nobody")).moment
        if now is not None:
            return now
        await asyncio.sleep(0.001)


async def written(*caches: RedisCache) -> None:
    await until(lambda: all(cache._writing is None for cache in caches))


def version_of(response: Any) -> int:
    location = header(response, "Location")
    assert location is not None
    return int(location.rpartition("/")[2])


# Newest wins


@pytest.mark.parametrize("seed", range(30))
async def test_k4_the_newest_stays_whoever_comes_last(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    caches = [opened(server) for _ in range(3)]
    code = f"seed{seed}"
    now = await moment(caches[0])
    writes = [
        (
            a_link(chance.randint(1, 4), code, generation=chance.choice((1, 2, 10))),
            now - chance.randint(0, 500),
        )
        for _ in range(40)
    ]
    for link, when in writes:
        chance.choice(caches).fill(link, when)
        if chance.random() < 0.3:
            await asyncio.sleep(0)
    await written(*caches)
    await moment(caches[0])
    found = await caches[0].get(code)
    newest, read = max(writes, key=lambda write: (write[0].stamp, write[1]))
    assert found.link == newest
    assert found.moment is not None
    kept = await caches[0]._reads.call([("GET", b"shortlink:1:" + code.encode())], 5.0)
    assert kept is not None
    assert kept[0].split()[:3] == [b"%d" % n for n in (*newest.stamp, read)]
    for cache in caches:
        await cache.close()


async def test_the_script_does_what_its_model_does(cache: RedisCache) -> None:
    chance = random.Random(1)
    now = await moment(cache)
    model = Model(now)
    key = b"shortlink:1:model"
    for _ in range(2_000):
        values: tuple[int | str, ...] = (
            *(chance.choice((1, 2, 9, 10, 2**40)), chance.choice((1, 2, 10, 11))),
            # Far from the limits, for there time goes on.
            now + chance.choice((-100_000, -1_100, -1_000, -900, 0, 500_000)),
            *("{}", 60_000, 120_000),
        )
        replies = await cache._reads.call([("EVAL", _NEWEST, 1, key, *values), ("GET", key)], 5.0)
        assert replies is not None
        assert replies[0] == model.keep(key, *values)
        assert replies[1] == model.values.get(key)
        if chance.random() < 0.2:
            foreign = chance.choice((b"", b"junk", b"1 1", b"1 x 1 y"))
            model.values[key] = foreign
            assert await cache._reads.call([("SET", key, foreign)], 5.0) is not None


async def test_what_is_no_text_is_a_miss_and_is_written_over(cache: RedisCache) -> None:
    key = b"shortlink:1:listed"
    await cache._reads.call([("RPUSH", key, "a")], 5.0)
    looked = await cache.get("listed")
    assert looked.link is None
    assert looked.moment is not None
    cache.fill(a_link(code="listed"), looked.moment)
    await written(cache)
    assert (await cache.get("listed")).link == a_link(code="listed")


async def test_every_entry_has_an_end(cache: RedisCache) -> None:
    now = await moment(cache)
    cache.fill(a_link(code="ends"), now - 1_000)
    await written(cache)
    replies = await cache._reads.call([("PTTL", b"shortlink:1:ends")], 5.0)
    assert replies is not None
    assert 0 < replies[0] <= CACHE_BOUND - 1_000


# Ages


class SlowSource(Source):
    """Reads take up to 1.5 s, and see what there was when they began."""

    def __init__(self, links: Sequence[Link], chance: random.Random) -> None:
        super().__init__(links)
        self._chance = chance

    async def get(self, code: str) -> Link | None:
        link = await super().get(code)
        await asyncio.sleep(self._chance.choice((0, 0.1, 1.5)))
        return link


async def test_l5_nothing_is_served_longer_than_the_bound_over_both_levels(
    server: Server,
) -> None:
    """Four processes whose every write-through is lost, as with Redis cut off from the API."""
    chance = random.Random(4)
    codes = [f"aged{n}" for n in range(20)]
    source = SlowSource([a_link(1, code) for code in codes], chance)
    caches = [opened(server) for _ in range(4)]
    services = [RedirectService(source, SYSTEM_CLOCK, second=cache) for cache in caches]
    replaced: dict[tuple[str, int], int] = {}
    late: list[tuple[str, int, int]] = []
    steady = SYSTEM_CLOCK.steady
    began = steady()

    async def visit(service: RedirectService) -> None:
        while steady() - began < 3 * CACHE_BOUND:
            code, asked = chance.choice(codes), steady()
            version = version_of(await ask(service, f"/{code}"))
            gone = replaced.get((code, version))
            if gone is not None and asked > gone + CACHE_BOUND:
                late.append((code, version, asked - gone))
            await asyncio.sleep(chance.random() * 0.02)

    async def change() -> None:
        while steady() - began < 2 * CACHE_BOUND:
            code = chance.choice(codes)
            old = source.links[code]
            source.links[code] = a_link(old.version + 1, code)
            replaced[code, old.version] = steady()
            await asyncio.sleep(0.05)

    await asyncio.gather(change(), *(visit(service) for service in services for _ in range(4)))
    hits = sum(cache.counts.hits for cache in caches)
    for service, cache in zip(services, caches, strict=True):
        await service.close()
        await cache.close()
    assert late == []
    assert hits > 100


async def test_a_write_through_serves_the_new_link_at_the_next_look(cache: RedisCache) -> None:
    source = Source([])
    service = RedirectService(source, SYSTEM_CLOCK, second=cache)
    cache.changed(replace(a_link(3, "fresh"), changed_at=SYSTEM_CLOCK.wall()))
    await written(cache)
    assert version_of(await ask(service, "/fresh")) == 3
    assert source.reads == []
    await service.close()


# A server that fails


class Visitors:
    """Ask a service for many codes, on and on, and know what each has to lead to."""

    def __init__(self, cache: RedisCache) -> None:
        self.answers = 0
        self._going = True
        self.source = Source([a_link(1, f"code{n}") for n in range(50)])
        # Without memory, so that each visit asks the second level.
        self._service = RedirectService(self.source, SYSTEM_CLOCK, second=cache, capacity=1)
        self._tasks = [asyncio.ensure_future(self._visit(n)) for n in range(20)]

    async def _visit(self, seed: int) -> None:
        chance = random.Random(seed)
        while self._going:
            code = f"code{chance.randrange(50)}"
            assert version_of(await ask(self._service, f"/{code}")) == 1
            self.answers += 1
            await asyncio.sleep(0)

    async def answered(self, number: int) -> None:
        """Wait for this many more answers."""
        wanted = self.answers + number
        await until(lambda: self.answers >= wanted or any(task.done() for task in self._tasks))

    async def stop(self) -> None:
        self._going = False
        await asyncio.gather(*self._tasks)
        await self._service.close()


async def test_k5_reads_go_on_while_redis_is_killed_and_is_used_again_after() -> None:
    with Server() as server, capture_logs() as logs:
        cache = opened(server)
        visitors = Visitors(cache)
        await until(lambda: cache.counts.hits > 500)
        server.kill()
        await visitors.answered(2_000)
        reads = len(visitors.source.reads)
        await visitors.answered(2_000)
        assert len(visitors.source.reads) > reads
        server.start()
        hits = cache.counts.hits
        await until(lambda: cache.counts.hits > hits + 500)
        await visitors.stop()
        await cache.close()
    assert {line["event"].split(";")[0] for line in logs} <= {
        "cache server does not answer",
        "cache server answers again",
    }


async def test_k5_reads_are_answered_while_redis_is_frozen_and_it_is_used_again_after() -> None:
    with Server() as server, capture_logs():
        cache = opened(server)
        visitors = Visitors(cache)
        await until(lambda: cache.counts.hits > 500)
        server.send(signal.SIGSTOP)
        await until(lambda: cache.counts.errors > 0)
        await visitors.answered(2_000)
        await until(lambda: cache.breakers["reads"].failures > 4)
        server.send(signal.SIGCONT)
        hits = cache.counts.hits
        await until(lambda: cache.counts.hits > hits + 500)
        await visitors.stop()
        await cache.close()
    assert cache.counts.unreadable == 0  # nobody was given another's reply


async def test_a_fill_that_a_frozen_redis_finds_late_is_refused(
    server: Server, cache: RedisCache
) -> None:
    now = await moment(cache)
    server.send(signal.SIGSTOP)
    try:
        cache.fill(a_link(code="frozen"), now)
        await written(cache)
        assert cache.counts.write_errors == 1
        await asyncio.sleep((FILL_LIMIT + 100) / 1_000)  # the promise is about this time
    finally:
        server.send(signal.SIGCONT)
    await moment(cache)
    replies = await cache._reads.call(
        [("GET", b"shortlink:1:frozen"), ("INFO", "commandstats")], 5.0
    )
    assert replies is not None
    assert replies[0] is None
    assert b"cmdstat_eval:" in replies[1]


# TLS and passwords


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A Redis with TLS whose user may do what the cache needs and nothing else."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost".split(),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    server = Server(
        [
            *("port 0", f"tls-port {port}", "tls-auth-clients no"),
            *(f"tls-cert-file {certificate}", f"tls-key-file {key}"),
            f'user ann on ">{PASSWORD}" ~shortlink:* +mget +time +eval +get +set',
            "user default off",
        ]
    )
    server.port = port
    with server:
        yield server, certificate


def guarded_url(server: Server, certificate: Path, password: str) -> str:
    return (
        f"rediss://ann:{quote(password, safe='')}@localhost:{server.port}"
        f"?ssl_ca_certs={quote(str(certificate))}"
    )


async def test_p1_tls_and_a_user_with_the_least_rights_are_enough(
    guarded: tuple[Server, Path],
) -> None:
    cache = open_cache(guarded_url(*guarded, PASSWORD), SYSTEM_CLOCK, to_text, from_text)
    now = await moment(cache)
    cache.fill(a_link(), now)
    cache.changed(replace(a_link(2, "other"), changed_at=SYSTEM_CLOCK.wall()))
    await written(cache)
    assert (await cache.get("promo")).link == a_link()
    assert (await cache.get("other")).link is not None
    await cache.close()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("password", "invalid username-password pair"),
        ("certificate", "certificate verify failed"),
    ],
)
async def test_p1_a_wrong_password_or_an_unknown_certificate_is_told_without_secrets(
    guarded: tuple[Server, Path], wrong: str, says: str
) -> None:
    server, certificate = guarded
    url = guarded_url(server, certificate, "wr0ng" if wrong == "password" else PASSWORD)
    if wrong == "certificate":
        url = url.partition("?")[0]
    cache = open_cache(url, SYSTEM_CLOCK, to_text, from_text)
    with capture_logs() as logs:
        while not logs:
            assert (await cache.get("promo")).moment is None
            await asyncio.sleep(0.001)
    await cache.close()
    assert says in str(logs)
    assert "wr0ng" not in str(logs)
    assert quote(PASSWORD, safe="") not in str(logs)
    assert PASSWORD not in str(logs)
