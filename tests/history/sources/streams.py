"""What tests of both sources share: records to write, and a stream that remembers what its batches brought."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from loadmanager.history.sources import TOPICS, Source
from statechannel.ports import Payload


def payloads(first: int, count: int) -> list[Payload]:
    return [Payload(b"key", f"record {number}".encode()) for number in range(first, first + count)]


def found(rows: DataFrame) -> list[tuple[str, int, int, bytes | None]]:
    """Topic, partition, offset and value of each row, in order."""
    return sorted((row.topic, row.partition, row.offset, row.value and bytes(row.value)) for row in rows.collect())


def channel(partition: int, first: int, count: int) -> list[tuple[str, int, int, bytes]]:
    return [("bundle-state", partition, number, f"record {number}".encode()) for number in range(first, first + count)]


class Streaming:
    """A query that keeps what each of its batches brought, and goes on from its checkpoint."""

    def __init__(self, spark: SparkSession, source: Source, root: Path) -> None:
        self._spark, self._source, self._root = spark, source, root
        self.batches: list[list[tuple[str, int, int, bytes | None]]] = []

    def drain(self, bound: int | None = None) -> None:
        """Read all that there is now, in batches of `bound`."""
        rows = self._source.stream(self._spark, TOPICS, bound)
        writer = rows.writeStream.foreachBatch(lambda batch, _: self.batches.append(found(batch)))
        query = writer.option("checkpointLocation", str(self._root / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    @property
    def rows(self) -> list[tuple[str, int, int, bytes | None]]:
        return [row for batch in self.batches for row in batch]
