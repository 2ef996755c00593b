"""Whatever a power failure left of Spark's checkpoint: the ingest goes on, and the tables are the undisturbed ones."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.ingest.positions import SILVER, reached, resume
from loadmanager.history.ingest.stream import PLAN, QUERY
from loadmanager.history.lake import Lake
from loadmanager.history.sources import TOPICS, SqliteSource
from tests.history.ingest import material
from tests.history.ingest.comparing import differences

OPTIONS = Options(partitions=material.PARTITIONS)
LOG = material.records(4, reports=24, steps=20)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: Mapping[str, Callable[[Path], None]] = {"empty": emptied, "cut": cut, "missing": Path.unlink}
CHECKSUMS = "all checksums"


def write(path: Path, begin: float, end: float) -> SqliteSource:
    """Append a part of the material to a log."""
    asyncio.run(material.write(path, material.part(LOG, begin, end)))
    return SqliteSource(path)


def checkpoint_of(lake: Lake) -> Path:
    return Path(lake.checkpoint(QUERY, PLAN))


@pytest.fixture(scope="module")
def half(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The first half of the log, in two runs; the log beside it has all."""
    directory = tmp_path_factory.mktemp("half")
    lake = Lake(spark, str(directory / "lake"))
    for end in (0.3, 0.6):
        Ingest(lake, write(directory / "log.db", end - 0.3, end), OPTIONS).run_available()
    write(directory / "log.db", 0.6, 1.0)
    return lake


def given(spark: SparkSession, source: SqliteSource, checkpoint: Path) -> int:
    """How many records Spark gives from here on."""
    counts: list[int] = []
    rows = source.stream(spark, TOPICS, None, until_now=True)
    writer = rows.writeStream.trigger(**source.until_now).option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(lambda rows, _: counts.append(rows.count())).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return sum(counts)


@pytest.mark.parametrize("damage", DAMAGES)
def test_spark_goes_on_whichever_file_of_the_checkpoint_is_damaged(
    spark: SparkSession, half: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
):
    """A file that Spark needs is named, and Spark begins anew; of any other Spark takes no notice."""
    source, at = SqliteSource(Path(half.root).with_name("log.db")), reached(half, SILVER)
    shutil.copytree(checkpoint_of(half), tmp_path / "whole")
    left = given(spark, source, tmp_path / "whole")
    paths = [path.relative_to(checkpoint_of(half)) for path in checkpoint_of(half).rglob("*") if path.is_file()]
    checksums = [path for path in paths if path.suffix == ".crc"]
    read = sorted(map(str, {*paths} - {*checksums}))
    assert read == ["commits/0", "commits/1", "metadata", "offsets/0", "offsets/1"]
    dropped = list[str]()
    for name in (*read, CHECKSUMS):
        checkpoint = tmp_path / name / QUERY / f"v{PLAN}"
        shutil.copytree(checkpoint_of(half), checkpoint)
        for path in checksums if name == CHECKSUMS else [name]:
            DAMAGES[damage](checkpoint / path)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "loadmanager"):
            passed = resume(spark, str(checkpoint), at)
        if caplog.messages:
            [message] = caplog.messages
            named = "offsets/0" if name == CHECKSUMS else name
            assert message.startswith(f"{checkpoint}/{named} is damaged or missing")
            dropped.append(name)
            assert passed == frozenset()
            assert not (checkpoint / "offsets").exists()
        else:
            assert given(spark, source, checkpoint) == left
    assert dropped == ([*read, CHECKSUMS] if damage == "cut" else read)


def test_the_tables_are_those_of_an_undisturbed_ingest(spark: SparkSession, half: Lake, tmp_path: Path):
    whole = Lake(spark, str(tmp_path / "whole"))
    Ingest(whole, SqliteSource(Path(half.root).with_name("log.db")), OPTIONS).run_available()
    shutil.copytree(half.root, tmp_path / "lake")
    lake, log = Lake(spark, str(tmp_path / "lake")), tmp_path / "log.db"
    shutil.copy(Path(half.root).with_name("log.db"), log)
    for name, damage in (("metadata", emptied), ("offsets/0", cut), ("commits/0", emptied)):
        damage(checkpoint_of(lake) / name)
        Ingest(lake, SqliteSource(log), OPTIONS).run_available()
    assert differences(lake, whole) == {}
    shutil.rmtree(checkpoint_of(lake) / "offsets")
    Ingest(lake, SqliteSource(log), OPTIONS).run_available()
    assert differences(lake, whole) == {}
