"""The audit as Spark runs it: of a log in any order, with the states and rows that the fold itself wrote."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.errors import Invalid
from loadmanager.history.audit import ACCEPTED, SUMMARY, VIOLATION, Silver, audit, copies
from loadmanager.history.schemas import RAW
from loadmanager.history.verdicts import Known, fold, known
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State
from tests.history.folding.test_fold_job import WHEN, raw, replayed
from tests.statechannel.snapshots import Topic, write

from .tasks import honest
from .test_audit_task import stolen

ENTRIES = honest(11, 240)


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> dict[str, DataFrame]:
    """Bronze, silver, and the state of two batches."""
    bronze = raw(spark, ENTRIES).persist()
    first = fold(bronze.where("offset < 50"), Known(), 2, 0)
    first.lists.persist()
    second = fold(bronze.where("offset >= 50"), known(first.state, 1), 2, 1)
    second.lists.persist()
    return {
        "bronze": bronze,
        "channel": first.channel.unionByName(second.channel),
        "transition": first.transition.unionByName(second.transition),
        "states": first.state.unionByName(second.state),
    }


def found(*args: object, **more: object) -> tuple[list[tuple[int, int, str]], list[dict[str, Any]], list[str]]:
    """Partition, offset and invariant of every violation, the summary, and the details."""
    result = audit(*args, **more)  # type: ignore[arg-type]
    assert (result.violations.schema, result.summary.schema.names) == (VIOLATION, SUMMARY.names)
    rows, summary = result.violations.collect(), [row.asDict() for row in result.summary.collect()]
    result.close()
    return [(r["partition"], r["offset"], r["invariant"]) for r in rows], summary, [r["detail"] for r in rows]


def test_a_log_with_all_that_was_made_of_it_is_in_order(tables: dict[str, DataFrame]):
    silver = Silver(tables["channel"], tables["transition"])
    violations, summary, _ = found(tables["bronze"], 2, states=tables["states"], silver=silver, apart=25)
    assert violations == []
    core = replayed(ENTRIES)
    for partition, row in enumerate(summary):
        end = core.table.next_offset(partition)
        assert (row["partition"], row["begin"], row["next_offset"], row["records"]) == (partition, 0, end, end)
        assert row["digest"] == core.table.digest(partition)
        assert (row["segments"], row["compared"], row["violations"], row["unjudged"]) == (2, 2, 0, 0)
        assert row["accepted"] + row["refused"] + row["corrupt"] == end
        assert sum(row["refusals"].values()) == row["refused"]


def test_tampered_silver_is_found_at_its_offset_and_counted(tables: dict[str, DataFrame]):
    owning = tables["channel"].where("partition = 1 and offset > 60 and action = 'own'")
    [[at]] = owning.agg(f.min("offset")).collect()
    here = (f.col("partition") == 1) & (f.col("offset") == at)
    lying = tables["channel"].withColumn("actor", f.when(here, "thief:1").otherwise(f.col("actor")))
    without = tables["transition"].where("not (partition = 0 and offset = 1)")
    silver = Silver(lying, without)
    violations, summary, _ = found(tables["bronze"], 2, states=tables["states"], silver=silver, apart=25)
    assert violations == [(0, 1, "recorded"), (1, at, "recorded")]
    assert [row["violations"] for row in summary] == [1, 1]


def test_of_snapshots_the_damaged_the_stolen_and_that_of_a_lost_end_are_found(tables: dict[str, DataFrame]):
    spark = tables["bronze"].sparkSession
    topic, of_this = Topic(0), [e for e in ENTRIES if e.partition == 0]
    names = ("fine", "damaged", "stolen", "beyond")
    for name, end in zip(names, (40, 60, 80, len(of_this)), strict=True):
        state = replayed(of_this[:end]).table.cut(0)
        write(topic, stolen(state) if name == "stolen" else state, name, keep=names)
    topic.replace(b"damaged/0", b"dust")
    other = Topic(1)  # of whose partition no record is left
    write(other, replayed(ENTRIES).table.cut(1), "damaged")
    other.replace(b"damaged/0", b"dust")
    entries = [*topic.entries, *other.entries]
    rows = [("bundle-state-snapshots", e.partition, e.offset, e.key, e.value, WHEN) for e in entries]
    snapshots = spark.createDataFrame(rows, RAW)
    shorter = tables["bronze"].where(f"partition = 0 and offset < {len(of_this) - 5}")
    violations, summary, details = found(shorter, 2, snapshots=snapshots, apart=1_000)
    lost = [(0, 60, "snapshot"), (0, 80, "snapshot"), (0, len(of_this), "snapshot")]
    assert violations == [*lost, (1, len(ENTRIES) - len(of_this), "snapshot")]
    assert [(row["partition"], row["violations"], row["segments"]) for row in summary] == [(0, 3, 1), (1, 1, 0)]
    assert "checksum differs" in details[0]
    assert f"{BrokerId('thief:1', 9)}" in details[1]
    assert State.ASSIGNED in details[1]
    assert "lost its end" in details[2]
    assert summary[0]["compared"] == 2


def test_a_record_that_was_accepted_twice_is_found_at_its_second_place(spark: SparkSession):
    accepted = [(0, 5, "r", "x"), (0, 9, "r", "x"), (0, 9, "r", "y"), (1, 9, "r", "x"), (0, 7, "s", "x")]
    twice = copies(spark.createDataFrame(accepted, ACCEPTED))
    assert twice.schema.names == VIOLATION.names
    assert [tuple(row)[:4] for row in twice.collect()] == [(0, 9, "r", "once")]


def test_an_audit_of_nothing_or_of_too_few_partitions_says_what_to_do(tables: dict[str, DataFrame]):
    with pytest.raises(Invalid, match="ingest first"):
        audit(tables["bronze"].limit(0), 2)
    with pytest.raises(Invalid, match="partition 1"):
        audit(tables["bronze"], 1)
