"""One process with the whole platform in it: SQLite, redirect, API, objects from a folder."""

import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from prometheus_client import CollectorRegistry

from shortlink.api.app import make_app
from shortlink.api.keys import Keys
from shortlink.api.server import ApiServer
from shortlink.clock import Clock
from shortlink.links.codes import SLOT_KEY_BYTES, SLOTS, RandomCodes, SlotMap
from shortlink.links.policy import Policy, check_policy
from shortlink.links.refusal import Refused
from shortlink.loops import Loop, Loops
from shortlink.management import Management
from shortlink.problem import DATABASE
from shortlink.redirect.counters import Clicks
from shortlink.redirect.server import RedirectServer
from shortlink.redirect.service import RedirectService
from shortlink.store.sql import open_sql_store
from shortlink_operator.apply import Reconciler
from shortlink_operator.folder import ManifestFolder
from shortlink_operator.follow import Follower
from shortlink_operator.relay import RELAY_PAUSE, AuditLog, Relay
from shortlink_operator.sweep import SWEEP_PAUSE, Sweeper

HOST = "127.0.0.1"
"""It serves this machine alone: its API speaks plain HTTP."""

AUDIT_LOG = "audit.jsonl"

_LOOPBACK = ("localhost", HOST, "0.0.0.0", "[::]", "[::1]", "[::ffff:7f00:1]")  # noqa: S104 - as targets
_FOLLOW_PAUSE = 0.2
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the embedded platform keeps and serves things. `data` has to exist."""

    folder: Path
    data: Path
    port: int = 8080
    api_port: int = 8081
    ops_port: int = 8082

    @property
    def ports(self) -> dict[str, int]:
        """Each port by the option that chooses it."""
        return {"--port": self.port, "--api-port": self.api_port, "--ops-port": self.ops_port}

    @property
    def base_url(self) -> str:
        """What short links begin with."""
        return f"http://{HOST}:{self.port}"

    @property
    def own_hosts(self) -> frozenset[str]:
        """The hosts that links may not point at: this platform's own (P2)."""
        return frozenset(f"{name}:{port}" for name in _LOOPBACK for port in self.ports.values())


class Embedded:
    """The parts, wired up. Use as `async with await Embedded.open(...) as platform`."""

    def __init__(
        self,
        management: Management,
        clicks: Clicks,
        follower: Follower,
        reconciler: Reconciler,
        sweeper: Sweeper,
        relay: Relay,
        closing: AsyncExitStack,
    ) -> None:
        self.management = management
        self.clicks = clicks
        self.follower = follower
        self.reconciler = reconciler
        self.sweeper = sweeper
        self.relay = relay
        self.loops = Loops(
            [
                Loop("follow", follower.run, _FOLLOW_PAUSE),
                Loop("sweep", sweeper.run, SWEEP_PAUSE),
                Loop("relay", relay.run, RELAY_PAUSE),
            ],
            management.clock,
        )
        self.failing = self.loops.failing
        self._closing = closing

    @classmethod
    async def open(cls, settings: Settings, policy: Policy, clock: Clock, keys: Keys) -> Self:
        """Open the store and listen. Raises StoreError, OSError, Refused (policy)."""
        closing = AsyncExitStack()
        try:
            policy = replace(policy, own_hosts=policy.own_hosts | settings.own_hosts)
            if refusal := check_policy(policy, production=False):
                raise Refused(refusal)
            store = open_sql_store(settings.data / DATABASE)
            closing.push_async_callback(store.close)
            slot_key = await store.install(secrets.token_bytes(SLOT_KEY_BYTES))
            clicks = Clicks()
            service = RedirectService(store, clock, clicks)
            management = Management(
                store,
                policy,
                clock,
                RandomCodes(SlotMap(slot_key), range(SLOTS), secrets.token_bytes).draw,
                lambda: secrets.token_hex(16),
                [service.changed],
            )
            registry = CollectorRegistry(auto_describe=False)
            redirect = RedirectServer(
                service, HOST, settings.port, ops_port=settings.ops_port, registry=registry
            )
            await redirect.start()
            closing.push_async_callback(redirect.close)
            api = ApiServer(make_app(management, keys, settings.base_url), HOST, settings.api_port)
            await api.start()
            closing.push_async_callback(api.close)
            reconciler = Reconciler(management)
            platform = cls(
                management,
                clicks,
                Follower(ManifestFolder(settings.folder), reconciler, clock),
                reconciler,
                Sweeper(management),
                Relay(store, AuditLog(settings.data / AUDIT_LOG)),
                closing,
            )
            registry.register(platform.loops)
            return platform
        except BaseException:
            await closing.aclose()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def run(self) -> None:
        """Follow the folder, sweep and publish until cancelled."""
        await self.loops.run()
