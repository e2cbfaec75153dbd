"""Cassandra: one node a region, each its own data centre, all in one ring.

A node's settings are those of a small machine; none changes what is consistent.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from local.parts import Parts
from local.regions import health
from local.regions.commands import run
from local.regions.layout import REGIONS, Region
from local.regions.network import inside
from local.regions.processes import WITHOUT_RIGHTS, Component

PORT = 9042
CLUSTER = "links"
CQL_OPTIONS = bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))
"""A CQL frame, version 4, that asks what the node supports; any ready node answers it."""
CQL_SUPPORTED = bytes((0x84, 0, 0, 0, 6))

_SETTINGS = """\
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
num_tokens: 1
commitlog_sync: periodic
commitlog_sync_period: 1000ms
endpoint_snitch: GossipingPropertyFileSnitch
paxos_variant: v2
paxos_state_purging: repaired
commitlog_segment_size: 8MiB
concurrent_reads: 8
concurrent_writes: 8
concurrent_counter_writes: 2
concurrent_materialized_view_writes: 2
native_transport_max_threads: 64
key_cache_size: 1MiB
counter_cache_size: 0MiB
networking_cache_size: 8MiB
file_cache_enabled: false
memtable_heap_space: 32MiB
memtable_offheap_space: 32MiB
memtable_allocation_type: heap_buffers
compaction_throughput: 0MiB/s
concurrent_compactors: 1
auto_snapshot: false
dynamic_snitch: false
hinted_handoff_enabled: true
cdc_enabled: false
audit_logging_options: {enabled: false}
phi_convict_threshold: 5
cas_contention_timeout: 1000ms
write_request_timeout: 1000ms
read_request_timeout: 2000ms
"""

_LOGBACK = """\
<configuration>
  <appender name="STDOUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date{ISO8601} %-5level %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="STDOUT"/></root>
</configuration>
"""

_EXPORTS = """
java.base/jdk.internal.misc java.base/java.lang.ref java.base/sun.nio.ch
java.management.rmi/com.sun.jmx.remote.internal.rmi java.management/com.sun.jmx.remote.security
java.rmi/sun.rmi.registry java.rmi/sun.rmi.server java.rmi/sun.rmi.transport.tcp
java.sql/java.sql jdk.unsupported/sun.misc jdk.compiler/com.sun.tools.javac.file
jdk.attach/sun.tools.attach
""".split()
_OPENS = """
java.base/java.lang.module java.base/jdk.internal.loader java.base/jdk.internal.ref
java.base/jdk.internal.reflect java.base/jdk.internal.math java.base/jdk.internal.module
java.base/jdk.internal.util.jar java.base/sun.nio.ch java.base/java.io
java.base/java.lang.reflect java.base/java.lang java.base/java.util java.base/java.nio
jdk.management/com.sun.management.internal jdk.compiler/com.sun.tools.javac
""".split()
_MODULES = [
    word
    for flag, names in (("--add-exports", _EXPORTS), ("--add-opens", _OPENS))
    for name in names
    for word in (flag, f"{name}=ALL-UNNAMED")
]

# Small memory; a restart in seconds: gossip is not waited for where every node is a seed.
_JVM = """
-XX:+UseSerialGC -Xms192m -Xmx256m -XX:MaxDirectMemorySize=64m -Xss256k -XX:TieredStopAtLevel=1
-XX:+ExitOnOutOfMemoryError -XX:-UsePerfData
-Dcassandra-foreground=yes -Dcassandra.memtable_row_overhead_computation_step=1000
-Dcassandra.skip_wait_for_gossip_to_settle=0 -Dcassandra.ring_delay_ms=1000
-Dcassandra.fd_initial_value_ms=1000 -Dcassandra.fd_max_interval_ms=1500
-Dcassandra.shutdown_announce_in_ms=0 -Dcassandra.available_processors=1
""".split()


@dataclass(frozen=True)
class Node:
    """One Cassandra process: where it runs, which ring it is in, and where its data is."""

    region: Region
    name: str
    address: str
    cluster: str
    seeds: tuple[str, ...]
    jmx_port: int = 7199
    """On the namespace's loopback: each node of one namespace needs its own."""

    @property
    def folder(self) -> Path:
        """Its settings and all its data."""
        return self.region.folder / self.name

    def settings(self) -> str:
        """Its cassandra.yaml."""
        seeds = json.dumps(",".join(self.seeds))
        return (
            f"cluster_name: {self.cluster}\n"
            f"listen_address: {self.address}\n"
            f"rpc_address: {self.address}\n"
            "seed_provider:\n"
            "  - class_name: org.apache.cassandra.locator.SimpleSeedProvider\n"
            f"    parameters: [{{seeds: {seeds}}}]\n" + _SETTINGS
        )

    @property
    def wiped(self) -> Path:
        """Is there when its data was once removed: it then takes its own place in the ring anew."""
        return self.folder / "wiped"

    def wipe(self) -> None:
        """Remove its data. It must not run."""
        self.wiped.touch()
        shutil.rmtree(self.folder / "data", ignore_errors=True)


def node_of(region: Region) -> Node:
    """The region's node of the platform's ring. All are seeds, so they start in any order."""
    return Node(
        region, "cassandra", region.address, CLUSTER, tuple(each.address for each in REGIONS)
    )


def cassandra(node: Node, parts: Parts) -> Component:
    """A node."""
    folder = node.folder
    command = [
        # With root's rights it would lock all its memory: twice as much of it resident.
        *(*WITHOUT_RIGHTS, "prlimit", "--memlock=0:0"),
        str(parts.java),
        *_MODULES,
        *_JVM,
        f"-Dcassandra.config=file://{folder}/cassandra.yaml",
        f"-Dcassandra.storagedir={folder}/data",
        f"-Dcassandra.logdir={folder}/data/log",
        f"-Dcassandra-rackdc.properties=file://{folder}/rackdc.properties",
        f"-Dcassandra.jmx.local.port={node.jmx_port}",
        f"-Dlogback.configurationFile={folder}/logback.xml",
        f"-Djava.io.tmpdir={folder}",
        f"-Djna.tmpdir={folder}",
        *(_replacing(node) if node.wiped.exists() else ()),
        *("-cp", _classpath(parts.cassandra)),
        "org.apache.cassandra.service.CassandraDaemon",
    ]
    return Component(
        node.region,
        node.name,
        command,
        health.talks(node.address, PORT, CQL_OPTIONS, CQL_SUPPORTED),
        f"{node.address}:{PORT}",
        deadline=180.0,
        files={
            folder / "cassandra.yaml": node.settings(),
            folder / "rackdc.properties": f"dc={node.region.name}\nrack=r1\n",
            folder / "logback.xml": _LOGBACK,
            folder / "tools.xml": "<configuration/>\n",
        },
    )


def nodetool(node: Node, parts: Parts, *arguments: str, seconds: float = 60.0) -> str:
    """What nodetool says of a node. Raises Problem when it fails."""
    return run(
        *inside(node.region),
        parts.java,
        *(*_MODULES, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-XX:-UsePerfData", f"-Dlogback.configurationFile={node.folder}/tools.xml"),
        *("-cp", _classpath(parts.cassandra), "org.apache.cassandra.tools.NodeTool"),
        *("-p", str(node.jmx_port), *arguments),
        seconds=seconds,
    )


def _replacing(node: Node) -> tuple[str, ...]:
    # A seed fetches nothing by itself: Cassandra calls that unsafe. Without effect once done.
    replaced = f"-Dcassandra.replace_address_first_boot={node.address}"
    return (replaced, "-Dcassandra.allow_unsafe_replace=true")


def _classpath(jars: Path) -> str:
    # A shared archive holds for one class path in one order.
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))
