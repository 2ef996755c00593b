"""`loadmanager history audit` on a log that is well, and on one, and a lake, that were tampered with in every way."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from loadmanager.diagnostics.topics import CHANNEL_TOPIC, SNAPSHOTS_TOPIC
from loadmanager.history import published
from loadmanager.history.lake import Lake
from loadmanager.history.schemas import CHANNEL_STATE
from loadmanager.history.verdicts import packed, unpacked
from loadmanager_api.cli.main import main
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.partition import PartitionState
from statechannel.ports import Payload, TopicSpec
from tests.history.folding.tasks import Entry
from tests.statechannel.snapshots import Topic, write

from .tasks import honest, states_of
from .test_audit_task import stolen

ENTRIES = honest(11, 240)
END = {partition: sum(e.partition == partition for e in ENTRIES) for partition in (0, 1)}
MIDDLE = 60
HOLE = END[1] - 2
"""Near the end of its partition: what follows a hole is wrong as well."""


def run(command: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["history", command, *arguments])


async def _written(path: Path, topics: dict[str, dict[int, list[Payload]]]) -> None:
    log = SqliteLog(path)
    await log.start(timeout_s=60)
    try:
        for topic, partitions in topics.items():
            await log.open_topic(TopicSpec(topic, 2, compacted=topic == SNAPSHOTS_TOPIC))
            for partition, payloads in partitions.items():
                await log.append(topic, partition, payloads)
    finally:
        await log.close()


def log_of(path: Path, entries: Iterable[Entry], state: PartitionState) -> str:
    """A log's file with these records, and a snapshot that says this."""
    topic, there = Topic(state.partition), list(entries)
    write(topic, state, "the-snapshot")
    snapshots = {state.partition: [Payload(entry.key, entry.value) for entry in topic.entries]}
    channel = {number: [Payload(None, e.value) for e in there if e.partition == number] for number in (0, 1)}
    asyncio.run(_written(path, {CHANNEL_TOPIC: channel, SNAPSHOTS_TOPIC: snapshots}))
    return f"sqlite:{path}"


def true_state(offset: int = MIDDLE) -> PartitionState:
    return states_of(ENTRIES, [(0, offset)])[0, offset]


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log that is well, and the lake that was made of it."""
    folder = tmp_path_factory.mktemp("audited")
    log = log_of(folder / "log.db", ENTRIES, true_state())
    made = run("ingest", "--lake", str(folder / "lake"), "--log", log)
    assert made.exit_code == 0, made.output
    return folder


def test_nothing_is_found_in_a_lake_of_a_log_that_is_well(place: Path):
    result = run("audit", "--lake", str(place / "lake"))
    assert result.exit_code == 0, result.output
    assert f"{len(ENTRIES)} records, 0 violations: every invariant holds" in result.stdout
    assert published.read(place / "lake/published", "audit").facts["violations"] == 0


def test_nothing_is_found_in_the_log_itself_and_it_needs_no_lake(place: Path, tmp_path: Path):
    nowhere = tmp_path / "nowhere"
    alone = run("audit", "--log", f"sqlite:{place / 'log.db'}", "--lake", str(nowhere), "-o", "json")
    assert alone.exit_code == 0, alone.output
    found = json.loads(alone.stdout)
    assert found["violations"] == []
    assert [(row["records"], row["compared"]) for row in found["partitions"]] == [(END[0], 1), (END[1], 0)]
    assert f"the log alone was audited: there is no lake at {nowhere}" in alone.stderr
    assert not nowhere.exists()


def test_the_log_is_held_against_the_lake_when_there_is_one(place: Path):
    both = run("audit", "--log", f"sqlite:{place / 'log.db'}", "--lake", str(place / "lake"), "-o", "json")
    assert both.exit_code == 0, both.output
    assert [row["compared"] for row in json.loads(both.stdout)["partitions"]] == [2, 1]


def test_a_log_that_lost_its_end_and_a_wrong_snapshot_are_found(place: Path, tmp_path: Path):
    shorter = [e for e in ENTRIES if e.offset < END[e.partition] - 5]
    log = log_of(tmp_path / "log.db", shorter, stolen(true_state()))
    result = run("audit", "--log", log, "--lake", str(place / "lake"), "-o", "json")
    assert result.exit_code == 1
    violations = json.loads(result.stdout)["violations"]
    found = [(v["partition"], v["offset"]) for v in violations if v["invariant"] == "snapshot"]
    assert found == [(0, MIDDLE), (0, END[0]), (1, END[1])]
    assert "thief:1#9" in result.stdout
    assert "the log lost its end" in result.stdout


# --- a lake that was tampered with: everything at once, each at its own offset


def chosen(lake: Lake) -> dict[str, dict[str, Any]]:
    """The records that are tampered with, by what is done to them; all of partition 0."""
    rows = lake.table("channel").where("partition = 0 and offset > 10").orderBy("offset").collect()
    changed = {row["offset"] for row in lake.table("transition").where("partition = 0").collect()}
    accepted = [row.asDict() for row in rows if row["verdict"] == "accepted" and row["offset"] in changed]
    refused = [row.asDict() for row in rows if row["verdict"] == "refused"]
    names = (
        "two owners",
        "a token that goes back",
        "a verdict that differs",
        "a move that is missing",
        "another record",
    )
    found = dict(zip(names, accepted[5:30:5], strict=True))
    return found | {"an accepted record that the law refuses": refused[3]}


def steal(lake: Lake) -> None:
    """Let the state of partition 0 say that a bundle is another's."""
    rows = lake.table("channel_state").where("partition = 0").orderBy("chunk").collect()
    state = stolen(unpacked(0, [bytes(row["data"]) for row in rows]))
    wrong = lake.spark.createDataFrame(list(packed(state, rows[0]["batch"], 0)), CHANNEL_STATE)
    lake.remove("channel_state", "partition = 0")
    wrong.write.format("delta").mode("append").save(lake.path("channel_state"))


@pytest.fixture(scope="module")
def tampered(place: Path, spark: SparkSession) -> tuple[dict[str, dict[str, Any]], Result]:
    """What was tampered with, and what the audit says."""
    root = place / "tampered"
    shutil.copytree(place / "lake", root)
    lake = Lake(spark, str(root))
    rows = chosen(lake)
    at = {name: f"partition = 0 and offset = {row['offset']}" for name, row in rows.items()}

    def sql(text: str, table: str, name: str) -> None:
        spark.sql(f"{text.format(f'delta.`{root}/tables/{table}`')} WHERE {at[name]}")

    sql("UPDATE {} SET holder = 'thief:1', holder_incarnation = 9", "transition", "two owners")
    sql("UPDATE {} SET token = 0", "transition", "a token that goes back")
    sql("UPDATE {} SET verdict = 'refused', refusal = 'stale'", "channel", "a verdict that differs")
    sql("DELETE FROM {}", "transition", "a move that is missing")
    sql("UPDATE {} SET id = 'another'", "channel", "another record")
    sql("UPDATE {} SET verdict = 'accepted', refusal = null", "channel", "an accepted record that the law refuses")
    spark.sql(
        f"DELETE FROM delta.`{root}/tables/bronze` "
        f"WHERE topic = '{CHANNEL_TOPIC}' AND partition = 1 AND offset = {HOLE}"
    )
    steal(lake)
    return rows, run("audit", "--lake", str(root), "-o", "json")


def test_the_exit_code_says_that_something_is_broken(tampered: tuple[dict[str, dict[str, Any]], Result]):
    assert tampered[1].exit_code == 1


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("two owners", "holder is 'thief:1', not "),
        ("a token that goes back", "token is 0, not "),
        ("a verdict that differs", "verdict is 'refused', not 'accepted'"),
        ("a move that is missing", "transition has 0 rows of it, not "),
        ("another record", "id is 'another', not "),
        ("an accepted record that the law refuses", "verdict is 'accepted', not 'refused'"),
    ],
)
def test_what_was_tampered_with_is_named_by_offset_and_record(
    tampered: tuple[dict[str, dict[str, Any]], Result], what: str, says: str
):
    row = tampered[0][what]
    (found,) = {
        (v["id"], v["invariant"])
        for v in json.loads(tampered[1].stdout)["violations"]
        if (v["partition"], v["offset"]) == (0, row["offset"])
    }
    assert found == (row["id"], "recorded")
    details = [v for v in json.loads(tampered[1].stdout)["violations"] if v["offset"] == row["offset"]]
    assert any(says in v["detail"] and row["action"] in v["record"] for v in details)


def test_an_offset_that_is_passed_over_and_a_wrong_state_are_named(
    tampered: tuple[dict[str, dict[str, Any]], Result],
):
    violations = json.loads(tampered[1].stdout)["violations"]
    hole = next(v for v in violations if v["invariant"] == "log")
    assert (hole["partition"], hole["offset"]) == (1, HOLE)
    assert f"offset {HOLE} is not there" in hole["detail"]
    states = [v for v in violations if v["invariant"] == "snapshot" and v["partition"] == 0]
    assert [v["offset"] for v in states] == [END[0]]
    assert "thief:1#9" in states[0]["detail"]


def test_nothing_else_is_found(tampered: tuple[dict[str, dict[str, Any]], Result]):
    offsets = {v["offset"] for v in json.loads(tampered[1].stdout)["violations"] if v["partition"] == 0}
    assert offsets == {END[0], *(row["offset"] for row in tampered[0].values())}


def test_people_get_a_table_with_offset_and_record(place: Path, tampered: tuple[dict[str, dict[str, Any]], Result]):
    result = run("audit", "--lake", str(place / "tampered"))
    assert result.exit_code == 1
    row = tampered[0]["a verdict that differs"]
    line = next(line for line in result.stdout.splitlines() if line.split()[:2] == ["0", str(row["offset"])])
    assert "verdict is 'refused', not 'accepted'" in line
    assert f"{row['role']} {row['actor']}#" in line
    assert "every invariant holds" not in result.stdout
