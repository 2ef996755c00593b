"""The composition root: the only place that picks adapters, clocks and dice for a real process."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import msgspec

from loadmanager.load.sensors import Sensors
from loadmanager.settings import MAX_PORT, Settings
from loadmanager.surroundings import Surroundings
from loadmanager.suspicion import probe_port
from statechannel.ports import Coordination, Log
from statechannel.view import wall_clock_ms


def surroundings(settings: Settings) -> Surroundings:
    """What a node of a real process needs. Raises ValueError for addresses that are none."""
    return Surroundings(
        log=open_log(settings),
        coordination=open_coordination(settings),
        clock_s=boot_clock_s,
        wall_ms=wall_clock_ms,
        nonce=secrets.token_hex(6),
        probe=probe_port,
        sensors=Sensors(settings.capacity),
    )


def boot_clock_s() -> float:
    """Seconds on a clock that runs on during suspend, as proofs need it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def open_log(settings: Settings) -> Log:
    """The log that the settings name; Kafka's client is only imported if it is used."""
    scheme, _, rest = settings.log.partition(":")
    if scheme == "sqlite":
        from statechannel.adapters.sqlite_log import SqliteLog

        return SqliteLog(file_of(settings.log))
    if scheme == "kafka":
        from statechannel.adapters.kafka_log import KafkaLog

        return KafkaLog(
            check_servers(settings.log, rest.removeprefix("//")),
            topic_prefix=settings.topic_prefix,
            replication=1 if settings.development else settings.replication,
            min_insync=1 if settings.development else settings.min_insync_replicas,
            development=settings.development,
            client_settings=settings.kafka,
        )
    raise ValueError(f"{settings.log!r} is no log; write sqlite:FILE or kafka://host:port")


def open_coordination(settings: Settings) -> Coordination:
    """The coordination service that the settings name; by default a file beside the log's."""
    address = settings.coordination
    if address is None:
        if not settings.log.startswith("sqlite:"):
            raise ValueError("with a log on Kafka, say where ZooKeeper is: --coordination zookeeper://host:port")
        address = settings.log + ".coordination"
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite":
        from statechannel.adapters.sqlite_coordination import SqliteCoordination

        return SqliteCoordination(file_of(address), session_timeout_s=settings.session_timeout_s)
    if scheme == "zookeeper":
        from statechannel.adapters.zookeeper import ZooKeeperCoordination

        hosts, slash, root = rest.removeprefix("//").partition("/")
        return ZooKeeperCoordination(
            check_servers(address, hosts),
            root=slash + root if root else f"/loadmanager/{settings.cluster}",
            session_timeout_s=settings.session_timeout_s,
            client_settings={key: _typed(value) for key, value in settings.zookeeper.items()},
        )
    raise ValueError(f"{address!r} is no coordination service; write sqlite:FILE or zookeeper://host:port")


def file_of(address: str) -> Path:
    """The file that `sqlite:FILE` names. Raises ValueError."""
    name = address.removeprefix("sqlite:").removeprefix("//")
    if not name:
        raise ValueError(f"{address!r} names no file; write sqlite:FILE")
    return Path(name)


def check_servers(address: str, servers: str) -> str:
    """`servers` as they are, if each is `host:port`. Raises ValueError."""
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= MAX_PORT:
            scheme = address.partition(":")[0]
            raise ValueError(f"{address!r}: {server!r} is no server; write {scheme}://host:port[,host:port…]")
    return servers


def _typed(text: str) -> object:
    """A setting's value as JSON reads it (`true`, `30`), else the text itself: kazoo wants real types."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
