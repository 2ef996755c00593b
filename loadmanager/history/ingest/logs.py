"""Checks that the source still has the log that the lake's records are of, not another one under the same names.

Offsets of a recreated topic begin at 0. Its records would be taken for those that the lake has, and later ones would be
appended to the old ones. Two things tell the logs apart:

* Kafka gives each topic an id. The first one that is seen of a topic is kept with the lake, before its first record:
in `progress`, as a row of the stage `LOG`. So a run that is killed after its first record leaves no record of an
unknown topic, and releases that do not know the stage leave the rows alone.
* The embedded log's file has no ids. There the last record that is left below the lake's position must have the time
that bronze has of it, if bronze still has that record. During a run the path must lead to the same file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.errors import Invalid
from loadmanager.history.ingest.progress import LOG, WRITER, Reached
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import PROGRESS
from loadmanager.history.sources import TOPICS, Source

INSTEAD = "Offsets of another log start over, and cannot follow these: ingest it into a lake of its own (--lake)"


class Logs:
    """What a run compares its source with. Ids that are new are kept in the lake, also in one of an older release."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file = source.file_id()
        self._ids: dict[str, str] | None = None

    def check(self, lake: Lake, at: Reached, read: Collection[str] = ()) -> None:
        """Raises Invalid where the source has another log than the lake, which is at `at`; Unavailable.

        `read` are topics of which records were read since the last check, and are not in the lake yet. A topic that
        does not exist now has no records that could be mistaken.
        """
        if self._file != self._source.file_id():
            raise Invalid("the log's file was replaced by another one while it was read: give it back, and start again")
        now = self._source.topic_ids(TOPICS)
        if self._ids is None:
            self._ids = _ids(lake)
            _check_left(lake, self._source, at)
        if new := {topic: each for topic, each in now.items() if self._ids.get(topic) != each}:
            for topic in new.keys() & self._ids.keys():
                if topic in read or _has_records(lake, at, topic):
                    raise Invalid(
                        f"topic {topic} was deleted and created again: its id is {new[topic]}, and this lake has "
                        f"records of {self._ids[topic]}. {INSTEAD}"
                    )
            _keep(lake, new)
            self._ids |= new


def _ids(lake: Lake) -> dict[str, str]:
    rows = lake.arrow("progress")
    names = ("stage", "batch", "topic", "log_id")
    kept = sorted(zip(*(rows[name].to_pylist() for name in names), strict=True), key=lambda row: row[1])
    return {topic: log_id for stage, _, topic, log_id in kept if stage == LOG}


def _keep(lake: Lake, ids: Mapping[str, str]) -> None:
    number = max(lake.arrow("progress")["batch"].to_pylist(), default=-1) + 1  # of any stage: they all grow
    values = [(LOG, number, topic, -1, 0, 0, None, log_id) for topic, log_id in ids.items()]
    lake.append("progress", lake.spark.createDataFrame(values, PROGRESS), Once(f"{WRITER}/{LOG}", number))


def _has_records(lake: Lake, at: Reached, topic: str) -> bool:
    """Nothing is wrong with a topic whose former one gave the lake no record."""
    there = lake.table("bronze").where(f.col("topic") == topic)
    return any(name == topic for name, _ in at.next_offsets) or not there.isEmpty()


def _check_left(lake: Lake, source: Source, at: Reached) -> None:
    left = source.left({key: offset - 1 for key, offset in at.next_offsets.items() if offset > 0})
    if left:
        rows = [(*key, *place) for key, place in left.items()]
        places = lake.spark.createDataFrame(rows, "topic string, partition int, offset long, us long")
        refuse_other_records(lake, places.withColumn("appended_at", f.timestamp_micros("us")))


def refuse_other_records(lake: Lake, known: DataFrame) -> None:
    """Raises Invalid where bronze has other records than `known` (topic, partition, offset, `appended_at`)."""
    there = lake.table("bronze").select("topic", "partition", "offset", "appended_at")
    sought = known.select("topic", "partition", "offset", f.col("appended_at").alias("now"))
    other = there.join(f.broadcast(sought), ["topic", "partition", "offset"])
    found = other.where(f.col("appended_at") != f.col("now")).first()
    if found is not None:
        raise Invalid(
            f"{found['topic']}/{found['partition']} has another record at offset {found['offset']} than this lake: the "
            f"topic was created again. {INSTEAD}"
        )
