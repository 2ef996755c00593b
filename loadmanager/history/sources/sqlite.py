"""Topics in the file of the embedded log, as a Python Data Source of Spark: no job needs Kafka.

For one machine, as that log is: the file must be at the same path for the driver and its executors. A task reads one
stretch of a partition's offsets and yields Arrow batches; brokers' own code decodes the chunks. Offsets of a stream are
`{topic: {partition: offset}}`, the next to be read, as in Kafka's source. Later topics join by themselves.

Spark asks such a source for its latest offset without saying how far it has read. So the reader keeps count itself: an
answer is at most `max_per_trigger` offsets beyond what was read. With the trigger `availableNow` Spark asks once, and
would take one such portion a run. So a stream with `until_now` ends where the log ended when it began: drain it with
`processAllAvailable`, which returns then, however much brokers go on to write.
"""

# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (pyarrow ships no types)
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from loadmanager.errors import Invalid
from loadmanager.history.schemas import RAW
from statechannel.adapters.sqlite.file import FileUnavailable, ForeignFile
from statechannel.adapters.sqlite.log_file import Run, opened, runs, stored_topic
from statechannel.adapters.sqlite.log_tables import begins, ends

FORMAT = "loadmanager-sqlite"
NO_BOUND = 0


class SqliteSource(msgspec.Struct, frozen=True):
    """The topics in the log's file at `path`."""

    path: Path

    @property
    def until_now(self) -> Mapping[str, Any]:
        """The trigger of a query that `processAllAvailable` drains."""
        return {"processingTime": "0 seconds"}

    def available(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of `names` that are topics now. Raises Invalid where the file cannot be read."""
        try:
            with opened(self.path) as db:
                return tuple(name for name in names if stored_topic(db, name) is not None)
        except (FileUnavailable, ForeignFile) as error:
            raise Invalid(str(error)) from error

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:  # noqa: ARG002
        """Nothing: topics in a file have no ids. `left` tells logs apart."""
        return {}

    def file_id(self) -> tuple[int, int] | None:
        """What the path leads to: another file has another id. None where there is none: nothing is read then."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def left(self, places: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], tuple[int, int]]:
        """The last record that is left at or below each of these offsets, by topic and partition.

        Its offset, and when the log took it, in microseconds since 1970. Raises Invalid for a log that ends before such
        an offset, or whose file cannot be read.
        """
        try:
            return dict(last_left(self.path, places)) if places and self.file_id() else {}
        except (FileUnavailable, ForeignFile) as error:
            raise Invalid(str(error)) from error

    def read(self, spark: SparkSession, names: Iterable[str]) -> DataFrame:
        """All that those topics hold now, as RAW."""
        spark.dataSource.register(SqliteDataSource)
        return spark.read.format(FORMAT).options(**self._options(names)).load()

    def stream(
        self, spark: SparkSession, names: Iterable[str], max_per_trigger: int | None, *, until_now: bool = False
    ) -> DataFrame:
        """All that those topics hold and will get, as a stream of RAW; at most `max_per_trigger` offsets at once.

        With `until_now` what they hold when the stream begins.
        """
        spark.dataSource.register(SqliteDataSource)
        options = self._options(names) | {"bound": str(max_per_trigger or NO_BOUND), "until_now": str(until_now)}
        return spark.readStream.format(FORMAT).options(**options).load()

    def _options(self, names: Iterable[str]) -> dict[str, str]:
        return {"path": str(self.path.absolute()), "topics": ",".join(names)}


class SqliteDataSource(DataSource):
    """What Spark instantiates, on the driver, from the options that `SqliteSource` gives."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return RAW

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's
        return Reading(Path(self.options["path"]), self._topics)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's
        until_now = self.options["until_now"] == str(True)
        return StreamReading(Path(self.options["path"]), self._topics, int(self.options["bound"]), until_now=until_now)

    @property
    def _topics(self) -> tuple[str, ...]:
        return tuple(self.options["topics"].split(","))


STRETCH_OFFSETS = 25_000
STRETCHES = 64
"""The most stretches of a partition's part of a batch: a compacted topic has few entries in many offsets."""
LEFT_NEAR = 10_000
"""So many offsets are searched for the last record that is left, before all of them are."""

BATCH_ROWS = 10_000
BATCH_BYTES = 16 << 20

Offsets = dict[str, dict[str, int]]
"""Topic, partition, and the next offset to be read."""

_SCHEMA = to_arrow_schema(RAW)


class Stretch(InputPartition):
    """The offsets from `start` on and below `before` of one partition of a topic."""

    def __init__(self, topic: str, partition: int, start: int, before: int) -> None:
        super().__init__((topic, partition, start, before))
        self.topic, self.partition, self.start, self.before = topic, partition, start, before


class Extent(msgspec.Struct, frozen=True):
    """What a partition holds: from `begin` on, below `end`."""

    begin: int
    end: int

    def until(self, end: int) -> Extent:
        """The part below `end`; empty if that was trimmed."""
        return Extent(self.begin, max(self.begin, end))


class Reading(DataSourceReader):
    """All that is there when the query is planned."""

    def __init__(self, path: Path, topics: Sequence[str]) -> None:
        self._path, self._topics = path, topics

    def partitions(self) -> list[InputPartition]:
        found = extents(self._path, self._topics)
        return [
            stretch
            for (topic, partition), extent in found.items()
            for stretch in stretches(topic, partition, extent.begin, extent.end)
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_stretch(self._path, partition)


class StreamReading(DataSourceStreamReader):
    """What is there and what comes. One object for the life of a query, on the driver; `read` runs on executors.

    With `until_now` it ends where the log ended at the first call.
    """

    def __init__(self, path: Path, topics: Sequence[str], bound: int, *, until_now: bool) -> None:
        self._path, self._topics, self._bound, self._until_now = path, topics, bound, until_now
        self._position: Offsets = {}
        self._last: dict[tuple[str, int], int] | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's
        return {}

    def latestOffset(self) -> Offsets:  # noqa: N802 - Spark's
        found = extents(self._path, self._topics)
        if self._until_now:
            if self._last is None:
                self._last = {key: extent.end for key, extent in found.items()}
            found = {key: found[key].until(end) for key, end in self._last.items()}
        return next_position(self._path, self._position, found, self._bound)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Also called with the last known offset twice, where a query goes on from its checkpoint."""
        self._position = end
        return [
            stretch
            for topic, ends_of in end.items()
            for partition, before in ends_of.items()
            for stretch in stretches(topic, int(partition), start.get(topic, {}).get(partition, 0), before)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_stretch(self._path, partition)


def extents(path: Path, topics: Sequence[str]) -> dict[tuple[str, int], Extent]:
    """Of each partition of those topics that are there."""
    with opened(path) as db:
        db.execute("BEGIN")  # one state of the file for all
        return {key: extent for name in topics for key, extent in _extents_of(db, name)}


def _extents_of(db: Connection, name: str) -> Iterator[tuple[tuple[str, int], Extent]]:
    topic = stored_topic(db, name)
    if topic is not None:
        for partition, (begin, end) in enumerate(zip(begins(db, topic), ends(db, topic), strict=True)):
            yield (name, partition), Extent(begin, end)


def last_left(path: Path, places: Mapping[tuple[str, int], int]) -> Iterator[tuple[tuple[str, int], tuple[int, int]]]:
    """The last record that is left at or below each offset: its offset, and when the log took it (microseconds).

    Raises ForeignFile where the log ends before such an offset.
    """
    found = extents(path, sorted({topic for topic, _ in places}))
    with opened(path) as db:
        for (name, partition), offset in places.items():
            topic, extent = stored_topic(db, name), found.get((name, partition), Extent(0, 0))
            if topic is None or extent.end <= offset:
                raise ForeignFile(
                    f"{path}: {name}/{partition} ends at offset {extent.end}, and offset {offset} was read already: it "
                    "is another log than this lake is of; give that one back, or ingest this one into a lake of its own"
                )
            for width in (1, LEFT_NEAR, offset + 1):  # a compacted topic has holes
                if there := list(runs(db, topic, partition, max(0, offset + 1 - width), offset + 1)):
                    last = there[-1]
                    yield (name, partition), (last.first + len(last.payloads) - 1, last.appended_ms * 1000)
                    break


def next_position(path: Path, position: Offsets, found: Mapping[tuple[str, int], Extent], bound: int) -> Offsets:
    """Where the next batch ends: at the ends, or `bound` offsets on (0: no bound), shared by how far partitions lag.

    Trimmed offsets don't count. Raises ForeignFile where the file ends before the position.
    """
    latest = {topic: dict(offsets) for topic, offsets in position.items()}
    starts = {key: max(extent.begin, position.get(key[0], {}).get(str(key[1]), 0)) for key, extent in found.items()}
    behind = {key: extent.end - starts[key] for key, extent in found.items()}
    total = sum(max(0, count) for count in behind.values())
    for (topic, partition), count in behind.items():
        if count < 0:
            raise ForeignFile(
                f"{path}: {topic}/{partition} ends before the offset {starts[topic, partition]} that was read already: "
                "it is another file than this query began with; give that one back, or begin with a new checkpoint"
            )
        share = count if bound == 0 or total <= bound else min(count, max(1, count * bound // total))
        latest.setdefault(topic, {})[str(partition)] = starts[topic, partition] + share
    return latest


def stretches(topic: str, partition: int, start: int, before: int) -> Iterator[Stretch]:
    """Cut into pieces for one task each."""
    step = max(STRETCH_OFFSETS, -(-(before - start) // STRETCHES))
    for low in range(start, before, step):
        yield Stretch(topic, partition, low, min(low + step, before))


def read_stretch(path: Path, stretch: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The stretch's entries, in batches of RAW. None stands for a plan without stretches."""
    if not isinstance(stretch, Stretch):
        return
    with opened(path) as db:
        topic = stored_topic(db, stretch.topic)
        assert topic is not None  # it had offsets
        gathered: list[Run] = []
        rows = size_bytes = 0
        for run in runs(db, topic, stretch.partition, stretch.start, stretch.before):
            gathered.append(run)
            rows += len(run.payloads)
            size_bytes += sum(len(value or b"") for _, value in run.payloads)
            if rows >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
                yield record_batch(stretch, gathered)
                gathered, rows, size_bytes = [], 0, 0
        if gathered:
            yield record_batch(stretch, gathered)


def record_batch(stretch: Stretch, gathered: Sequence[Run]) -> pa.RecordBatch:
    """The runs as columns of RAW."""
    counts = [len(run.payloads) for run in gathered]
    total = sum(counts)
    offsets = np.concatenate([np.arange(run.first, run.first + len(run.payloads)) for run in gathered])
    appended_us = np.repeat(np.array([run.appended_ms * 1000 for run in gathered], np.int64), counts)
    keys, values = zip(*(payload for run in gathered for payload in run.payloads), strict=True)
    columns = {
        "topic": pa.repeat(pa.scalar(stretch.topic, pa.string()), total),
        "partition": pa.repeat(pa.scalar(stretch.partition, pa.int32()), total),
        "offset": pa.array(offsets, pa.int64()),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "appended_at": pa.array(appended_us, pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)
