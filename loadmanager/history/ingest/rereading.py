"""Reads quarantined records of a newer format again, with the decoders of this release.

Records of the channel are not among them: the replay waits before such a record and goes on by itself (`verdicts.py`);
here only its quarantine row is removed. A killed run is completed by the next one: rows go into silver unless their
record is there, and leave the quarantine afterwards.
"""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history import decoding, folding
from loadmanager.history.decoding import NEWER
from loadmanager.history.ingest.gold import GOLD
from loadmanager.history.ingest.progress import Mark, advance, reached
from loadmanager.history.ingest.repeats import repeats, reports_of
from loadmanager.history.ingest.silver import DECODERS, without
from loadmanager.history.lake import Lake
from loadmanager.history.schemas import RAW
from loadmanager.history.sources import TOPICS


def reread(lake: Lake) -> int:
    """Move what this release can read from the quarantine to silver; returns the number of records."""
    _clear_channel(lake)
    newer = lake.table("quarantine").where((f.col("kind") == NEWER) & (f.col("topic") != CHANNEL_TOPIC))
    if newer.isEmpty():  # as nearly always: decoding would start Python on the executors
        return 0
    decoded = decoding.decode(newer.select(*RAW.names)).where(f.col("kind").isNull())
    decoded = decoded.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        found = decoded.groupBy("topic", "partition").agg(f.min("offset"), f.count(f.lit(1))).collect()
        if found:
            _take_back_gold(lake, {(row[0], row[1]): row[2] for row in found})
            _insert(lake, decoded, sorted({row[0] for row in found}))
            _clear(lake, decoded)
        return sum(row[3] for row in found)
    finally:
        decoded.unpersist()


def _insert(lake: Lake, decoded: DataFrame, topics: list[str]) -> None:
    first = without(decoded, repeats(lake, reports_of(decoded)))
    for topic in topics:
        for table in TOPICS[topic].tables:
            lake.add_new(table, DECODERS[table](first), ("partition", "offset"))


def _clear(lake: Lake, decoded: DataFrame) -> None:
    """Take records out of the quarantine, by their offsets: few, because a release lags behind for days at most."""
    for row in decoded.groupBy("topic", "partition").agg(f.collect_list("offset").alias("offsets")).collect():
        offsets = ", ".join(map(str, row["offsets"]))
        where = f"kind = '{NEWER}' AND topic = '{row['topic']}' AND partition = {row['partition']}"
        lake.remove("quarantine", f"{where} AND offset IN ({offsets})")


def _clear_channel(lake: Lake) -> None:
    waiting = lake.table("quarantine").where((f.col("kind") == NEWER) & (f.col("topic") == CHANNEL_TOPIC))
    if waiting.isEmpty():
        return
    for partition, at in folding.positions(lake.table("channel_state")).items():
        lake.remove(
            "quarantine",
            f"kind = '{NEWER}' AND topic = '{CHANNEL_TOPIC}' AND partition = {partition} AND offset < {at.next_offset}",
        )


def _take_back_gold(lake: Lake, firsts: dict[tuple[str, int], int]) -> None:
    """Make gold count everything from these offsets on as new; before silver has it, so that a kill loses nothing."""
    for gold in GOLD:
        before = reached(lake, gold.table)
        back = {key: first for key, first in firsts.items() if before.next_offsets.get(key, 0) > first}
        if back and before.until_us is not None:
            marks = [Mark(*key, first, 0, before.until_us) for key, first in back.items()]
            advance(lake, gold.table, before.batch + 1, marks)
