"""What Spark's checkpoint of the query says: how far Spark has given each partition. It may be lost at any time.

A power failure can leave any of its files empty, cut or missing, and Spark would then fail at each start. Such a
checkpoint is dropped: Spark gives all records again, and those that the lake has are skipped by their offsets.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from loadmanager.history.files import local_root
from loadmanager.history.ingest.progress import Partition, Reached
from loadmanager.history.sources import TOPICS

_log = logging.getLogger(__name__)

_LINES = {"metadata": 1, "offsets": 3, "commits": 2, "sources": 2}
"""The lines of a file: JSON, behind a version if there are several. `offsets` ends with the offsets of the source."""
CHECKSUM = ".crc"
"""Hadoop's ending for the checksum of a file on a disk, which is hidden beside it."""
_VERSION = re.compile(r"\0?v\d+")

Files = Mapping[str, str | None]
"""Texts by path below the checkpoint; None for a file that cannot be read."""


def resume(spark: SparkSession, checkpoint: str, at: Reached) -> frozenset[Partition]:
    """The partitions that Spark has given up to the lake's position, `at`, or further; none without a checkpoint.

    Of a batch that was begun and not finished the end counts: the next run begins with it. A checkpoint that Spark
    could not go on from is dropped.
    """
    files = _files(spark, checkpoint)
    if damaged := _damaged(files):
        _log.warning(
            "%s/%s is damaged or missing: the checkpoint is dropped, and the log is read again from its beginning; "
            "records that the lake has are skipped",
            checkpoint,
            damaged,
        )
        spark.range(0).select(f.lit("").alias("value")).write.mode("overwrite").text(checkpoint)
        files = {}
    given = _offsets(files)
    return frozenset(key for key, offset in at.next_offsets.items() if given.get(key, -1) >= offset)


def _files(spark: SparkSession, checkpoint: str) -> Files:
    """All files, as Spark reads them: by their checksums too. One whose checksum alone is left is in Spark's way."""
    reader = spark.read.options(__globPaths__="false", ignoreCorruptFiles="true")  # a name is not a pattern
    try:
        files = reader.text(checkpoint, wholetext=True, recursiveFileLookup=True)
        texts = {
            row["name"]: row["value"] for row in files.select(f.input_file_name().alias("name"), "value").collect()
        }
    except AnalysisException:
        return {}
    _, query, version = checkpoint.rsplit("/", 2)
    found = {name.rpartition(f"/{query}/{version}/")[2]: texts.get(name) for name in files.inputFiles()}
    if folder := local_root(spark, checkpoint):
        lost = (each.with_name(each.name[1 : -len(CHECKSUM)]) for each in Path(folder).rglob(f".*{CHECKSUM}"))
        found = {str(each.relative_to(folder)): None for each in lost if not each.name.startswith(".")} | found
    return {name: text for name, text in found.items() if name.partition("/")[0] in _LINES}


def _damaged(files: Files) -> str:
    """The name of a file without which Spark cannot go on; empty if there is none."""
    if not files:
        return ""
    for name in sorted({"metadata", *files}):
        if not _is_whole(files.get(name), _LINES[name.partition("/")[0]]):
            return name
    offsets, commits = _numbers(files, "offsets"), _numbers(files, "commits")
    last, done = max(offsets, default=-1), max(commits, default=-1)
    if done > last:
        return f"offsets/{done}"
    if last > 0 and last - 1 not in offsets:
        return f"offsets/{last - 1}"
    return f"commits/{last - 1}" if done < last - 1 else ""


def _is_whole(text: str | None, count: int) -> bool:
    lines = (text or "").splitlines()
    if len(lines) != count or (count > 1 and not _VERSION.fullmatch(lines[0])):
        return False
    try:
        for line in lines[count > 1 :]:
            msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return True


def _numbers(files: Files, folder: str) -> set[int]:
    return {
        int(number) for name in files for of, _, number in [name.partition("/")] if of == folder and number.isdecimal()
    }


def _offsets(files: Files) -> dict[Partition, int]:
    """Those of the newest batch."""
    numbers = _numbers(files, "offsets")
    if not numbers:
        return {}
    *_, last = (files[f"offsets/{max(numbers)}"] or "").splitlines()
    offsets = msgspec.json.decode(last, type=dict[str, dict[int, int]])
    names = {full: next((name for name in TOPICS if full.endswith(name)), full) for full in offsets}
    return {(names[full], number): offset for full, each in offsets.items() for number, offset in each.items()}
