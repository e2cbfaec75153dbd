"""Redis: a region's cache. It keeps nothing over a restart."""

from local.parts import Parts
from local.regions import health
from local.regions.layout import Region
from local.regions.processes import WITHOUT_RIGHTS, Component

PORT = 6379


def redis(region: Region, parts: Parts) -> Component:
    """The region's one server, reachable by its pods without a password (the network is ours)."""
    listens = f"--bind {region.address} --port {PORT} --protected-mode no".split()
    forgets = ["--save", "", *"--appendonly no --daemonize no".split()]
    bounded = "--maxmemory 64mb --maxmemory-policy allkeys-lru".split()
    return Component(
        region,
        "redis",
        [*WITHOUT_RIGHTS, parts.program("redis-server"), *listens, *forgets, *bounded],
        health.talks(region.address, PORT, b"PING\r\n", b"+PONG"),
        f"{region.address}:{PORT}",
        deadline=10.0,
    )
