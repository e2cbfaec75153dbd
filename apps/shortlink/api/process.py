"""The API as a process of its own."""

import secrets
from dataclasses import replace
from functools import partial

import structlog
import uvloop

from shortlink.api.app import make_app
from shortlink.api.keys import Keys, KeysUnreadable, read_keys
from shortlink.api.server import ApiServer
from shortlink.clock import SYSTEM_CLOCK
from shortlink.links.policy import Policy
from shortlink.loops import Loop, Loops
from shortlink.management import Management
from shortlink.serving.codes import StoredCodes
from shortlink.serving.parts import opened
from shortlink.serving.policy import kept_policy
from shortlink.serving.stopping import Stop, listening
from shortlink.settings import KEYS_FILE, ApiSettings, Settings, WrongSetting
from shortlink.store.port import StoreError

_SLOTS_EVERY = 60.0
"""Seconds: a region that is prepared while this runs makes codes after that."""

_POLICY_EVERY = 10.0
"""Seconds: a changed policy is followed by all processes after that."""

log = structlog.get_logger()


def run_api(settings: Settings, own: ApiSettings, host: str, port: int) -> None:
    """Serve the API until SIGTERM or SIGINT, then drain.

    Raises WrongSetting, StoreError, and Problem when the port can't be had.
    """
    try:
        keys = read_keys(own.keys_file)
    except KeysUnreadable as error:
        raise WrongSetting(KEYS_FILE, f"can't be used: {error}") from error
    uvloop.run(_serve(settings, own, keys, host, port))


async def follow_policy(
    management: Management, region: str | None, own_hosts: frozenset[str]
) -> None:
    """Let `management` go by the policy of `region` as it is now, with `own_hosts` besides.

    Raises StoreError; the policy then stays as it was.
    """
    kept = await kept_policy(management.store, region)
    management.policy = replace(kept, own_hosts=kept.own_hosts | own_hosts)


async def _serve(settings: Settings, own: ApiSettings, keys: Keys, host: str, port: int) -> None:
    stop = Stop()
    async with opened(settings, SYSTEM_CLOCK) as parts:
        codes = StoredCodes(parts.store, secrets.token_bytes)
        management = Management(
            parts.store,
            Policy(own_hosts=own.own_hosts),
            SYSTEM_CLOCK,
            codes.draw,
            lambda: secrets.token_hex(16),
            [] if parts.second is None else [parts.second.changed],
        )
        follow = partial(follow_policy, management, settings.region, own.own_hosts)
        try:
            await follow()
        except StoreError as error:
            log.warning("until the policy in force is known, the default one is", error=str(error))
        loops = Loops(
            [Loop("slots", codes.learn, _SLOTS_EVERY), Loop("policy", follow, _POLICY_EVERY)],
            SYSTEM_CLOCK,
        )
        parts.registry.register(loops)
        app = make_app(management, keys, own.base_url, parts.registry)
        server = ApiServer(app, host, port)
        with listening("--host or --port"):
            await server.start()
        log.info("the API is served", host=host, port=server.port)

        def drain() -> None:
            app.state.draining = True

        async with loops.running():
            await stop.drained(drain, settings.drain)
            await server.close()
