"""Sessions on the DataStax driver, its callbacks bridged to asyncio."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cassandra import DriverException, InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.cluster import Session as DriverConnection
from cassandra.connection import ConnectionException
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
)
from cassandra.query import ConsistencyLevel, PreparedStatement, SimpleStatement, tuple_factory

from shortlink.links.codes import Entropy
from shortlink.store.cassandra.session import (
    LAST_PAUSE,
    TIMEOUT,
    Connecting,
    Row,
    Session,
    Statement,
    Unreachable,
    refused,
    unanswered,
)

# What fails is raised. The driver would add a stack trace for each attempt to reconnect.
logging.getLogger("cassandra").setLevel(logging.CRITICAL)

_LEVELS: dict[str, int] = ConsistencyLevel.name_to_value


async def open_session(datacenter: str, hosts: Sequence[str], entropy: Entropy) -> Session:
    """A session to `datacenter` by its `hosts`, port 9042; it connects later if it must."""

    async def connect() -> DriverConnection:
        return await asyncio.to_thread(_connect, datacenter, hosts)

    place = f"{datacenter} ({', '.join(hosts)})"
    session = DriverSession(datacenter, Connecting(place, connect, entropy))
    await session.connecting.first()
    return session


class DriverSession:
    """A Session. The driver's threads end with `close`."""

    def __init__(self, datacenter: str, connecting: Connecting[DriverConnection]) -> None:
        self.datacenter = datacenter
        self.connecting = connecting
        self._prepared: dict[str, PreparedStatement] = {}
        self._preparing = asyncio.Lock()

    async def execute(self, statement: Statement, values: Sequence[object] = ()) -> Sequence[Row]:
        connection = self.connecting.now()
        try:
            # The driver's own time-out leaves out preparing, and ends with its threads.
            async with asyncio.timeout(statement.timeout):
                try:
                    return await self._run(connection, statement, values)
                except (InvalidRequest, DriverException) as error:
                    # A node that came back may know a statement by another name, and the driver
                    # then gives it up for ever. It was not executed.
                    if not isinstance(error, InvalidRequest) and "ID mismatch" not in str(error):
                        raise
                    self._prepared.pop(statement.cql, None)
                    return await self._run(connection, statement, values)
        except InvalidRequest as error:
            raise Unreachable(refused(self.datacenter, statement, error)) from error
        except (DriverException, NoHostAvailable, ConnectionException, TimeoutError) as error:
            raise Unreachable(unanswered(self.datacenter, error)) from error

    async def applied(self, statement: Statement, values: Sequence[object] = ()) -> bool:
        return bool((await self.execute(statement, values))[0][0])

    async def close(self) -> None:
        connection = await self.connecting.close()
        if connection is not None:
            await asyncio.to_thread(connection.cluster.shutdown)

    async def _run(
        self, connection: DriverConnection, statement: Statement, values: Sequence[object]
    ) -> Sequence[Row]:
        query: Any
        if values:
            prepared = self._prepared.get(statement.cql)
            if prepared is None:
                prepared = await self._prepare(connection, statement.cql)
            query = prepared.bind(values)
        else:
            query = SimpleStatement(statement.cql)
        query.consistency_level = _LEVELS[statement.level]
        if statement.serial is not None:
            query.serial_consistency_level = _LEVELS[statement.serial]
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[Row]] = loop.create_future()

        def tell(settle: Callable[[Any], None]) -> Callable[[Any], None]:
            def told(outcome: Any) -> None:
                if not answer.done():
                    settle(outcome)

            def from_driver(outcome: Any) -> None:
                with suppress(RuntimeError):  # the loop ended while the answer was on its way
                    loop.call_soon_threadsafe(told, outcome)

            return from_driver

        connection.execute_async(query, timeout=statement.timeout).add_callbacks(
            tell(answer.set_result), tell(answer.set_exception)
        )
        return await answer or ()

    async def _prepare(self, connection: DriverConnection, cql: str) -> PreparedStatement:
        async with self._preparing:
            if cql not in self._prepared:
                self._prepared[cql] = await asyncio.to_thread(connection.prepare, cql)
            return self._prepared[cql]


def _connect(datacenter: str, hosts: Sequence[str]) -> DriverConnection:
    profile = ExecutionProfile(
        load_balancing_policy=DCAwareRoundRobinPolicy(datacenter, used_hosts_per_remote_dc=0),
        # Whatever failed may have happened: only the caller knows what may be sent again.
        retry_policy=FallthroughRetryPolicy(),
        request_timeout=TIMEOUT,
        row_factory=tuple_factory,
    )
    cluster = Cluster(
        list(hosts),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ExponentialReconnectionPolicy(1.0, LAST_PAUSE),
        idle_heartbeat_interval=2,  # the default would take half a minute to miss a node
        idle_heartbeat_timeout=2,
        connect_timeout=TIMEOUT,
        control_connection_timeout=TIMEOUT,
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
        monitor_reporting_enabled=False,
    )
    try:
        return cluster.connect()
    except BaseException as error:
        there = {host.datacenter for host in cluster.metadata.all_hosts()} - {None}
        cluster.shutdown()
        if isinstance(error, NoHostAvailable) and there and datacenter not in there:
            named = ", ".join(sorted(there))
            raise LookupError(f"they are in a ring of {named}: name one of these") from error
        raise
