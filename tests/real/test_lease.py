"""The election on a real API server, by processes that are killed and stopped."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from shortlink.clock import SYSTEM_CLOCK
from shortlink_operator.cluster import open_cluster
from shortlink_operator.lease import DURATION, Lease
from tests.apiserver import ScratchCluster
from tests.drills.site import until

NAMESPACE = "lease-team"

HOLDER = """
import asyncio, sys
from pathlib import Path
import structlog
from shortlink.clock import SYSTEM_CLOCK
from shortlink_operator.cluster import open_cluster
from shortlink_operator.lease import Deposed, Lease

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def hold(kubeconfig, namespace, name):
    async with open_cluster(Path(kubeconfig)) as cluster:
        lease = Lease(cluster, namespace, name, "holder", SYSTEM_CLOCK)
        await lease.acquire()
        kept = asyncio.create_task(lease.keep())
        print("leads", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            try:
                lease.check()
                print("believes", flush=True)
            except Deposed:
                print("deposed", flush=True)
        kept.cancel()

asyncio.run(hold(*sys.argv[1:]))
"""
"""A program that takes the Lease, and then says for each line that it gets what it believes."""


@pytest.fixture(scope="module", autouse=True)
def team(scratch: ScratchCluster) -> None:
    scratch.kubectl("create", "namespace", NAMESPACE)


class Holder:
    """A process of HOLDER."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    async def hears(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        return line.strip()

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()


@contextmanager
def a_holder(kubeconfig: Path, name: str) -> Iterator[Holder]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(kubeconfig), NAMESPACE, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Holder(process)
        finally:
            process.kill()


@asynccontextmanager
async def a_lease(scratch: ScratchCluster, name: str, identity: str) -> AsyncIterator[Lease]:
    async with open_cluster(scratch.kubeconfig) as cluster:
        yield Lease(cluster, NAMESPACE, name, identity, SYSTEM_CLOCK)


async def test_one_of_three_leads_and_when_it_goes_another_one_T2(scratch: ScratchCluster) -> None:
    async with (
        a_lease(scratch, "three", "a") as a,
        a_lease(scratch, "three", "b") as b,
        a_lease(scratch, "three", "c") as c,
    ):
        everybody = {a, b, c}
        for _ in range(3):
            acquiring = {asyncio.create_task(each.acquire()): each for each in everybody}
            first, others = await asyncio.wait(acquiring, return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

            (leader,) = (acquiring[task] for task in first)
            assert [each for each in everybody if each.held] == [leader]
            await leader.release()
            assert not leader.held
            everybody = {a, b, c} - {leader}

    assert holder(scratch, "three") == ""


def holder(scratch: ScratchCluster, name: str) -> str:
    path = "jsonpath={.spec.holderIdentity}"
    return scratch.kubectl("get", "lease", name, "-n", NAMESPACE, "-o", path)


async def test_a_leader_keeps_its_lease_for_longer_than_it_lasts_T2(
    scratch: ScratchCluster,
) -> None:
    async with a_lease(scratch, "kept", "a") as a, a_lease(scratch, "kept", "b") as b:
        await a.acquire()
        kept = asyncio.create_task(a.keep())
        waiting = asyncio.create_task(b.acquire())

        await asyncio.wait({kept, waiting}, timeout=DURATION + 5)

        assert a.held
        assert not b.held
        kept.cancel()
        waiting.cancel()
        await asyncio.gather(kept, waiting, return_exceptions=True)


async def test_the_lease_of_a_killed_leader_is_taken_over_F9(scratch: ScratchCluster) -> None:
    with a_holder(scratch.kubeconfig, "killed") as first:
        assert await first.hears() == "leads"
        os.kill(first.process.pid, signal.SIGKILL)

        async with a_lease(scratch, "killed", "b") as standby:
            await standby.acquire()

            assert holder(scratch, "killed") == "b"


async def test_a_stopped_leader_does_not_believe_when_it_goes_on_F9(
    scratch: ScratchCluster,
) -> None:
    with a_holder(scratch.kubeconfig, "stopped") as first:
        assert await first.hears() == "leads"
        first.ask()
        assert await first.hears() == "believes"
        os.kill(first.process.pid, signal.SIGSTOP)
        first.ask()  # the first thing that it does when it goes on

        async with a_lease(scratch, "stopped", "b") as standby:
            await standby.acquire()
            os.kill(first.process.pid, signal.SIGCONT)

            assert await first.hears() == "deposed"
            assert standby.held
            assert holder(scratch, "stopped") == "b"


async def test_a_leader_outlives_a_restart_of_the_api_server_F9(scratch: ScratchCluster) -> None:
    async with a_lease(scratch, "restarted", "a") as a:
        await a.acquire()
        kept = asyncio.create_task(a.keep())
        before = renewed(scratch)

        async def renewed_since() -> bool:
            return kept.done() or renewed(scratch) != before

        await asyncio.to_thread(scratch.stop)
        await asyncio.to_thread(scratch.start)
        await until(renewed_since, "the Lease to be renewed")

        assert a.held
        kept.cancel()
        await asyncio.gather(kept, return_exceptions=True)


def renewed(scratch: ScratchCluster) -> str:
    path = "jsonpath={.spec.renewTime}"
    return scratch.kubectl("get", "lease", "restarted", "-n", NAMESPACE, "-o", path)
