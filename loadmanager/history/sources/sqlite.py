"""Topics in the file of the embedded log, as a Python Data Source of Spark: no job needs Kafka.

For one machine, as that log is: the file must be at the same path for the driver and its executors. A task reads one
stretch of a partition's offsets and yields Arrow batches; brokers' own code decodes the chunks. Offsets of a stream are
`{topic: {partition: offset}}`, the next to be read, as in Kafka's source. Later topics join by themselves.

Spark asks such a source for its latest offset without saying how far it has read. So the reader keeps count itself: an
answer is at most `max_per_trigger` offsets beyond what was read. With the trigger `availableNow` Spark asks once, and
would take one such portion a run. So a stream with `until_now` ends where the log ended when it began: drain it with
`processAllAvailable`, which returns then, however much brokers go on to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from loadmanager.errors import Invalid
from loadmanager.history.schemas import RAW
from loadmanager.history.sources.sqlite_reading import Reading, StreamReading, last_left
from statechannel.adapters.sqlite.file import FileUnavailable, ForeignFile
from statechannel.adapters.sqlite.log_file import opened, stored_topic

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
