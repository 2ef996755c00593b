"""What the benches run on: a log by itself, or a whole stack, on SQLite files or real servers of their own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from statechannel.ports import Log


class Carrier(msgspec.Struct, frozen=True):
    """The `--log` and `--coordination` of a cluster, and further options that belong to them."""

    log: str
    coordination: str
    options: tuple[str, ...] = ()


@contextmanager
def carrier(kind: str) -> Iterator[Carrier]:
    """A fresh log and coordination service; gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        if kind == "sqlite":
            yield Carrier(f"sqlite:{directory}/log.db", f"sqlite:{directory}/coordination.db")
        else:
            with _servers(directory) as servers:
                yield servers
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _servers(directory: Path) -> Iterator[Carrier]:
    from stack.servers import KafkaServer, ZooKeeperServer

    kafka, zookeeper = KafkaServer(directory / "kafka"), ZooKeeperServer(directory / "zookeeper")
    try:
        kafka.start()
        zookeeper.start()
        yield Carrier(f"kafka://{kafka.address}", f"zookeeper://{zookeeper.address}", ("--development",))
    finally:
        kafka.stop()
        zookeeper.stop()


@asynccontextmanager
async def open_log(kind: str) -> AsyncGenerator[Log]:
    """A started log by itself."""
    with carrier(kind) as where:
        if kind == "sqlite":
            from statechannel.adapters.sqlite.log import SqliteLog

            log: Log = SqliteLog(Path(where.log.removeprefix("sqlite:")))
        else:
            from statechannel.adapters.kafka.log import KafkaLog

            log = KafkaLog(where.log.removeprefix("kafka://"), replication=1, min_insync=1, development=True)
        await log.start(30)
        try:
            yield log
        finally:
            await log.close()
