"""The composition root: the only place that picks adapters, clocks and random numbers for a real process."""

from __future__ import annotations

import asyncio
import logging
import resource
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from loadmanager.cluster.clocks import boot_clock_s, clocks_outside
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.sensors import Sensors
from loadmanager.cluster.suspicion import probe_port
from loadmanager.consumers.backlog.port import GroupOffsets
from loadmanager.diagnostics.check import Auditor
from loadmanager.diagnostics.redaction import redact_text
from loadmanager.errors import Invalid, install_line, needs_extra
from loadmanager.settings import MAX_PORT, Settings
from loadmanager.settings.catalogue import TOMBSTONE_S
from loadmanager.strategies.rebalancing.plan.exact import SOLVER_INSTALLED
from statechannel.audit import Finding
from statechannel.ports import Coordination, Log
from statechannel.runtime.view import wall_clock_ms

_log = logging.getLogger("loadmanager")

LEAST_DESCRIPTORS = 128
"""With 40, a broker on SQLite ends in the middle of its start, with the error of the part that gets none."""


def dependencies(settings: Settings) -> Dependencies:
    """The dependencies of a node in a real process.

    Raises ValueError for malformed addresses, or if the process may not open LEAST_DESCRIPTORS files.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors != resource.RLIM_INFINITY and descriptors < LEAST_DESCRIPTORS:
        raise ValueError(
            f"this process may have {descriptors} files and connections open, and a broker needs at least "
            f"{LEAST_DESCRIPTORS}: raise the limit (ulimit -n, LimitNOFILE)"
        )
    if settings.balancing_strategy == "plan" and not SOLVER_INSTALLED:
        _log.warning("SciPy is missing, so `plan` leaves its exact stage out: %s", install_line("planner"))
    return Dependencies(
        log=open_log(settings),
        coordination=open_coordination(settings),
        clock_s=boot_clock_s,
        wall_ms=wall_clock_ms,
        nonce=secrets.token_hex(6),
        probe=probe_port,
        sensors=Sensors(settings.capacity),
        run_blocking=asyncio.to_thread,
        outside=clocks_outside(),
    )


def open_log(settings: Settings) -> Log:
    """The log that the settings name; Kafka's client is only imported if it is used."""
    scheme, _, rest = settings.log.partition(":")
    if scheme == "sqlite":
        from statechannel.adapters.sqlite.log import SqliteLog

        return SqliteLog(file_of(settings.log), tombstone_s=TOMBSTONE_S)
    if scheme == "kafka":
        with needs_extra("kafka", repr(redact_text(settings.log))):
            from statechannel.adapters.kafka.log import KafkaLog

        return KafkaLog(
            check_servers(settings.log, rest.removeprefix("//")),
            topic_prefix=settings.topic_prefix,
            replication=1 if settings.development else settings.replication,
            min_insync=1 if settings.development else settings.min_insync_replicas,
            development=settings.development,
            tombstone_s=TOMBSTONE_S,
            client_settings=settings.kafka,
        )
    raise _no_log(settings)


def open_group_offsets(settings: Settings) -> GroupOffsets:
    """Where consumer groups keep their offsets: the Kafka of the log, with its credentials.

    Raises Invalid if the log is not on Kafka, ValueError for malformed addresses, LogError for bad client settings.
    """
    scheme, _, rest = settings.log.partition(":")
    if scheme != "kafka":
        raise Invalid(
            f"the log {redact_text(settings.log)!r} is not on Kafka, where consumer groups keep their offsets: "
            "only a cluster with --log kafka://host:port can read their backlog"
        )
    with needs_extra("kafka", repr(redact_text(settings.log))):
        from statechannel.adapters.kafka.groups import KafkaGroups

    return KafkaGroups(check_servers(settings.log, rest.removeprefix("//")), settings.kafka)


def _no_log(settings: Settings) -> ValueError:
    return ValueError(f"{redact_text(settings.log)!r} is not a log; write sqlite:FILE or kafka://host:port")


def open_coordination(settings: Settings) -> Coordination:
    """The coordination service that the settings name; by default a file beside the log's."""
    address = coordination_address(settings)
    scheme = address.partition(":")[0]
    if scheme == "sqlite":
        from statechannel.adapters.sqlite.coordination import SqliteCoordination

        return SqliteCoordination(file_of(address), session_timeout_s=settings.session_timeout_s)
    if scheme == "zookeeper":
        with needs_extra("zookeeper", repr(redact_text(address))):
            from statechannel.adapters.zookeeper.access import refuse_open_nodes
            from statechannel.adapters.zookeeper.coordination import ZooKeeperCoordination

        hosts, root = _zookeeper_place(settings, address)
        if not (settings.development or settings.insecure):
            refuse_open_nodes(_zookeeper_client(settings))
        return ZooKeeperCoordination(
            hosts,
            root=root,
            session_timeout_s=settings.session_timeout_s,
            client_settings=_zookeeper_client(settings),
        )
    raise ValueError(
        f"{redact_text(address)!r} is not a coordination service; write sqlite:FILE or zookeeper://host:port"
    )


def coordination_address(settings: Settings) -> str:
    """The address of the coordination service, derived from the log's if not given. Raises ValueError."""
    if settings.coordination is not None:
        return settings.coordination
    if not settings.log.startswith("sqlite:"):
        if not settings.log.startswith("kafka:"):
            raise _no_log(settings)
        raise ValueError("with a log on Kafka, say where ZooKeeper is: --coordination zookeeper://host:port")
    return f"sqlite:{file_of(settings.log)}.coordination"


def _zookeeper_place(settings: Settings, address: str) -> tuple[str, str]:
    hosts, slash, root = address.partition(":")[2].removeprefix("//").partition("/")
    return check_servers(address, hosts), slash + root if root else f"/loadmanager/{settings.cluster}"


def _zookeeper_client(settings: Settings) -> dict[str, object]:
    return {key: _typed(value) for key, value in settings.zookeeper.items()}


def auditors(settings: Settings) -> Mapping[str, Auditor]:
    """Auditors of the stores that the settings name, which change nothing. Raises ValueError for bad addresses."""
    log, coordination = settings.log, coordination_address(settings)
    by_scheme: dict[str, Callable[[Settings, str], Auditor]] = {
        "log sqlite": _sqlite_log_auditor,
        "log kafka": _kafka_auditor,
        "coordination sqlite": _sqlite_coordination_auditor,
        "coordination zookeeper": _zookeeper_auditor,
    }
    found: dict[str, Auditor] = {}
    for store, address in (("log", log), ("coordination", coordination)):
        make = by_scheme.get(f"{store} {address.partition(':')[0]}")
        if make is None:
            raise ValueError(
                f"{redact_text(address)!r} is no {store}; write sqlite:FILE, or kafka:// and zookeeper://host:port"
            )
        found[store] = make(settings, address)
    return found


def _sqlite_log_auditor(_: Settings, address: str) -> Auditor:
    from statechannel.adapters.sqlite.audit import audit_log_file

    path = file_of(address)
    return lambda: _one_by_one(asyncio.to_thread(audit_log_file, path, now_ms=wall_clock_ms()))


def _sqlite_coordination_auditor(settings: Settings, address: str) -> Auditor:
    from statechannel.adapters.sqlite.audit import audit_coordination_file

    path = file_of(address)
    return lambda: _one_by_one(asyncio.to_thread(audit_coordination_file, path, settings.cluster))


def _kafka_auditor(settings: Settings, address: str) -> Auditor:
    from loadmanager.diagnostics.broker_clocks import audit_broker_clocks
    from loadmanager.diagnostics.topics import topics_of

    with needs_extra("kafka", repr(redact_text(address))):
        from statechannel.adapters.kafka.audit import audit_kafka

    bootstrap = check_servers(address, address.partition(":")[2].removeprefix("//"))

    async def audited() -> AsyncIterator[Finding]:
        for finding in await audit_kafka(
            bootstrap,
            topics_of(settings),
            topic_prefix=settings.topic_prefix,
            replication=1 if settings.development else settings.replication,
            min_insync=1 if settings.development else settings.min_insync_replicas,
            development=settings.development,
            client_settings=settings.kafka,
        ):
            yield finding
        async for finding in audit_broker_clocks(open_log(settings)):
            yield finding

    return audited


def _zookeeper_auditor(settings: Settings, address: str) -> Auditor:
    with needs_extra("zookeeper", repr(redact_text(address))):
        from statechannel.adapters.zookeeper.audit import Expected, audit_zookeeper

    hosts, root = _zookeeper_place(settings, address)
    expected = Expected(
        settings.cluster,
        session_timeout_s=settings.session_timeout_s,
        proof_validity_s=settings.proof_validity_s,
        development=settings.development,
        insecure=settings.insecure,
    )
    return lambda: audit_zookeeper(hosts, root, expected, _zookeeper_client(settings))


async def _one_by_one(findings: Awaitable[Sequence[Finding]]) -> AsyncIterator[Finding]:
    for finding in await findings:
        yield finding


def file_of(address: str) -> Path:
    """The file that `sqlite:FILE` names, resolved, so that names derived from it are the same for all its paths.

    Raises ValueError.
    """
    name = address.removeprefix("sqlite:").removeprefix("//")
    if not name:
        raise ValueError(f"{redact_text(address)!r} names no file; write sqlite:FILE")
    return Path(name).resolve()


def check_servers(address: str, servers: str) -> str:
    """`servers` itself, if each is `host:port`. Raises ValueError."""
    if "@" in servers:
        where = "LOADMANAGER_KAFKA" if address.startswith("kafka:") else "LOADMANAGER_ZOOKEEPER"
        raise ValueError(f"{redact_text(address)!r}: an address must not contain a user or a password; set {where}")
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= MAX_PORT:
            scheme = address.partition(":")[0]
            raise ValueError(
                f"{redact_text(address)!r}: {server!r} is not a server; write {scheme}://host:port[,host:port…]"
            )
    return servers


def _typed(text: str) -> object:
    """A setting's value as JSON reads it (`true`, `30`), else the text itself: kazoo wants real types."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
