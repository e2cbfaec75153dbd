"""The server under test: python -m bench.redirect_server STORE PORT OPS_PORT CAPACITY."""

import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from shortlink.clock import SYSTEM_CLOCK
from shortlink.redirect.server import RedirectServer
from shortlink.redirect.service import RedirectService
from shortlink.store.sql import open_sql_store


async def serve(path: Path, port: int, ops_port: int, capacity: int) -> None:
    """`run_redirect`, but for the capacity of the cache."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = open_sql_store(path)
    service = RedirectService(store, SYSTEM_CLOCK, capacity=capacity)
    server = RedirectServer(service, "127.0.0.1", port, ops_port=ops_port)
    await server.start()
    await stop.wait()
    await server.close()
    await store.close()


if __name__ == "__main__":
    path, port, ops_port, capacity = sys.argv[1:]
    uvloop.run(serve(Path(path), int(port), int(ops_port), int(capacity)))
