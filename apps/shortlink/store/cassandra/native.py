"""Sessions on the C++ driver: a look costs a third of the other's or less (docs/adr/0006)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import acsylla
from acsylla import errors

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

_REFUSED = (errors.CassErrorServerInvalidQuery, errors.CassErrorServerSyntaxError)
_UNPREPARED = (*_REFUSED, errors.CassErrorServerUnprepared, errors.CassErrorLibUnexpectedResponse)


async def open_native_session(datacenter: str, hosts: Sequence[str], entropy: Entropy) -> Session:
    """A session to `datacenter` by its `hosts`, port 9042; it connects later if it must."""
    cluster = acsylla.create_cluster(
        list(hosts),
        load_balance_dc_aware=datacenter,
        token_aware_routing=False,
        use_schema=False,
        retry_policy="fallthrough",
        connect_timeout=TIMEOUT,
        request_timeout=TIMEOUT,
        heartbeat_interval_sec=2,
        idle_timeout_sec=4,
        exponential_reconnect_base_delay_ms=1_000,
        exponential_reconnect_max_delay_ms=int(LAST_PAUSE * 1_000),
        log_level="critical",  # what fails is raised
    )
    place = f"{datacenter} ({', '.join(hosts)})"
    connecting = Connecting(place, cluster.create_session, entropy)
    session = NativeSession(datacenter, cluster, connecting)
    await session.connecting.first()
    return session


class NativeSession:
    """A Session."""

    def __init__(
        self,
        datacenter: str,
        cluster: acsylla.Cluster,
        connecting: Connecting[acsylla.Session],
    ) -> None:
        self.datacenter = datacenter
        self._cluster: acsylla.Cluster | None = cluster
        self.connecting = connecting
        self._prepared: dict[str, acsylla.PreparedStatement] = {}
        self._preparing = asyncio.Lock()

    async def execute(self, statement: Statement, values: Sequence[object] = ()) -> Sequence[Row]:
        connection = self.connecting.now()
        try:
            async with asyncio.timeout(statement.timeout):  # the driver's own leaves out preparing
                try:
                    return await self._run(connection, statement, values)
                except _UNPREPARED:
                    # A node that came back may know a statement by another name. It was not
                    # executed.
                    self._prepared.pop(statement.cql, None)
                    return await self._run(connection, statement, values)
        except _REFUSED as error:
            raise Unreachable(refused(self.datacenter, statement, error)) from error
        except (errors.CassException, TimeoutError) as error:
            raise Unreachable(unanswered(self.datacenter, error)) from error

    async def applied(self, statement: Statement, values: Sequence[object] = ()) -> bool:
        return bool((await self.execute(statement, values))[0][0])

    async def close(self) -> None:
        connection = await self.connecting.close()
        if connection is not None:
            await connection.close()
        if self._cluster is not None:
            self._cluster.destroy()  # closes the sockets by which its threads wake the loop
            self._cluster = None

    async def _run(
        self, connection: acsylla.Session, statement: Statement, values: Sequence[object]
    ) -> Sequence[Row]:
        levels: dict[str, Any] = {
            "consistency": acsylla.Consistency[statement.level],
            "timeout": statement.timeout,
        }
        if statement.serial is not None:
            levels["serial_consistency"] = acsylla.Consistency[statement.serial]
        if values:
            prepared = self._prepared.get(statement.cql)
            if prepared is None:
                prepared = await self._prepare(connection, statement.cql)
            query = prepared.bind(list(values), **levels)
        else:
            query = acsylla.create_statement(statement.cql, **levels)
        return [row.as_tuple() for row in await connection.execute(query)]

    async def _prepare(self, connection: acsylla.Session, cql: str) -> acsylla.PreparedStatement:
        async with self._preparing:
            if cql not in self._prepared:
                self._prepared[cql] = await connection.create_prepared(cql)
            return self._prepared[cql]
