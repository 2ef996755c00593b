"""A generated history is one that could have been: the same whoever makes it, lawful, and without holes."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pytest
from pyspark.sql import SparkSession

from bench.generating import World, generated, write
from bench.generating.generated import GOLD, MAKERS, TTL_US
from bench.generating.loads import stage
from bench.generating.world import away
from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history.duck import connected
from loadmanager.history.ingest import refresh_gold
from loadmanager.history.ingest.positions import SILVER, Mark, advance
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import TABLES
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC
from statechannel.law.record import Action
from statechannel.law.transitions import State, rows

WORLD = World(brokers=4, bundles=10, days=3, top=2)
WHOLE = msgspec.structs.replace(WORLD, top=10)
TOPICS = {
    BROKERS_TOPIC: ["broker_load"],
    BUNDLES_TOPIC: ["bundle_total", "bundle_load"],
    CHANNEL_TOPIC: ["transition"],
}


@functools.cache
def made(table: str, world: World = WORLD) -> list[dict[str, Any]]:
    return [row for day in range(world.days) for batch in MAKERS[table](world, day) for row in batch.to_pylist()]


def test_the_channel_keeps_the_law_and_every_bundle_has_one_history() -> None:
    histories = defaultdict(list)
    for row in sorted(made("transition"), key=lambda row: (row["partition"], row["offset"])):
        histories[row["bundle"]].append(row)
    assert len(histories) == WORLD.bundles
    assert any(row["action"] == "revoke" for history in histories.values() for row in history)
    for history in histories.values():
        assert [row["action"] for row in history[:3]] == ["create-namespace", "own", "return"]
        for before, after in itertools.pairwise(history):
            assert before["appended_at"] <= after["appended_at"]
            for name in ("state", "holder", "holder_incarnation"):
                earlier = name.replace("holder", "holder_before") if name != "state" else "state_before"
                assert after[earlier] == before[name]
            legal = rows(State(after["state_before"]), Action(after["action"]))
            assert State(after["state"]) in {row.next for row in legal}


def test_nothing_is_given_to_a_broker_that_is_away() -> None:
    names = list(stage(WORLD).brokers)
    for row in made("transition"):
        if row["action"] in ("own", "release", "return") and row["holder"] is not None:
            at_ms = np.array([round(row["appended_at"].timestamp() * 1000)])
            assert not away(WORLD, at_ms)[0, names.index(row["holder"])]


@pytest.fixture(scope="module")
def gold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    root = tmp_path_factory.mktemp("gold")
    dict(write(root, WHOLE))
    with connected(root, root / "scratch", "broker_minute bundle_minute transition") as db:
        yield db


def test_no_minute_has_more_bundles_than_there_are_and_each_has_one_owner(
    gold: duckdb.DuckDBPyConnection,
) -> None:
    assert (
        gold.sql(
            "SELECT minute, bundle, sum(covered_s) FROM bundle_minute GROUP BY ALL HAVING sum(covered_s) > 60 + 1e-9"
        ).fetchall()
        == []
    )
    assert (
        gold.sql(
            "SELECT minute, sum(bundles * covered_s) / 60 AS n FROM broker_minute GROUP BY minute "
            f"HAVING n > {WHOLE.bundles + 1}"
        ).fetchall()
        == []
    )
    twice = "SELECT DISTINCT minute, bundle FROM bundle_minute GROUP BY minute, bundle HAVING count(*) > 1"
    moved = "SELECT date_trunc('minute', appended_at), bundle FROM transition WHERE holder_before <> holder"
    assert gold.sql(f"{twice} EXCEPT {moved}").fetchall() == []
    assert gold.sql(f"{twice} INTERSECT {moved}").fetchall() != [], "a minute of a move has both owners"


def test_a_broker_that_died_is_not_there_until_it_is_back(gold: duckdb.DuckDBPyConnection) -> None:
    found = gold.sql(
        "SELECT strftime(minute, '%H:%M'), round(sum(covered_s) / 60, 6) FROM broker_minute "
        "WHERE hour(minute) = 12 GROUP BY minute"
    ).fetchall()
    there: dict[str, set[float]] = defaultdict(set)
    for minute, brokers in found:
        there[minute].add(brokers)
    away = {f"12:{minute}" for minute in range(31, 40)}
    assert {minute for minute, brokers in there.items() if min(brokers) < WHOLE.brokers} == away | {"12:30", "12:40"}
    assert all(there[minute] == {WHOLE.brokers - 1} for minute in away)


def test_what_brokers_carry_is_what_their_bundles_cost(gold: duckdb.DuckDBPyConnection) -> None:
    """But in the minutes between a move and both brokers' next reports."""
    [(minutes, equal)] = gold.sql(
        "SELECT count(*), count(CASE WHEN abs(a.rate - b.rate) < 1e-6 * a.rate THEN 1 END) FROM "
        "(SELECT minute, broker, sum(in_rate_msg_s * covered_s) AS rate FROM broker_minute GROUP BY ALL) a JOIN "
        "(SELECT minute, broker, sum(in_rate_msg_s * covered_s) AS rate FROM bundle_minute GROUP BY ALL) b "
        "USING (minute, broker)"
    ).fetchall()
    assert 0.97 * minutes < equal < minutes


@pytest.mark.slow
def test_reports_name_the_hottest_first() -> None:
    reports = defaultdict(list)
    for row in made("bundle_load"):
        reports[row["at"], row["broker"]].append(row["rank"])
    assert {tuple(ranks) for ranks in reports.values()} <= {(0, 1), (0,)}
    totals = {(row["at"], row["broker"]): row["count"] for row in made("bundle_total")}
    assert {key for key, count in totals.items() if count} == set(reports)


def test_each_move_is_decided_once() -> None:
    decided = {row["id"]: row["begun"] for row in made("decision")}
    moves = defaultdict(int)
    for row in made("move"):
        moves[row["decision"]] += 1
    assert decided == moves
    caused = {row["cause"] for row in made("transition") if row["action"] == "transfer"}
    assert caused == set(decided)


def test_another_seed_is_another_world_and_impossible_ones_are_refused() -> None:
    assert made("move", World(brokers=4, bundles=10, days=1, seed=2)) != made(
        "move", World(brokers=4, bundles=10, days=1)
    )
    impossible: list[dict[str, Any]] = [{"brokers": 1}, {"bundles": 0}, {"days": 0}, {"dwell_h": (12, 24)}]
    for wrong in impossible:
        with pytest.raises(ValueError, match=r"world|dwell_h"):
            World(**wrong)


def test_executors_make_the_same_rows(spark: SparkSession) -> None:
    tables = generated(spark, WORLD)
    for name in ("transition", "broker_load"):
        frame = tables(name)
        assert frame.schema == TABLES[name]
        keys = ("offset", "id") if name == "transition" else ("broker", "cpu_percent")
        found = sorted(tuple(row[key] for key in keys) for row in frame.select(*keys).collect())
        assert found == sorted(tuple(row[key] for key in keys) for row in made(name))
    channel = tables("channel")
    assert channel.schema.names == TABLES["channel"].names
    actions = {row["action"]: row["count"] for row in channel.groupBy("action").count().collect()}
    assert actions["lead"] == WORLD.days * WORLD.partitions
    assert tables("group_lag").count() == 0


def test_a_lake_is_written_without_spark_and_read_by_it(lake: Lake) -> None:
    written = dict(write(Path(lake.root), WORLD))
    assert {name: written[name] for name in MAKERS} == {name: len(made(name)) for name in MAKERS}
    for name in written:
        assert lake.stored(name) == TABLES[name]
        assert lake.table(name).count() == written[name]
    lake.prepare("channel")  # as the ingest does before it writes


def test_the_ingest_makes_the_same_gold_though_the_channel_lags_behind(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    dict(write(tmp_path / "whole", WHOLE))
    whole = Lake(spark, str(tmp_path / "whole"))
    moments = [
        f"TIMESTAMP'{moment} UTC'" for moment in ("2026-01-05 12:31:07", "2026-01-05 12:33:00", "2026-01-09 00:00:00")
    ]
    for number, moment in enumerate(moments):
        for topic, tables in TOPICS.items():
            if topic == CHANNEL_TOPIC and number == 1:
                continue
            for name in tables:
                rows = whole.table(name).where(f"appended_at < {moment}")
                there = lake.table(name).select("partition", "offset")
                lake.append(name, rows.join(there, ["partition", "offset"], "left_anti"), Once("test", number))
            last = lake.table(tables[0]).groupBy("partition").agg({"offset": "max"}).collect()
            silver = [Mark(topic, partition, offset + 1, 1, 0) for partition, offset in last]
            advance(lake, SILVER, 3 * number + list(TOPICS).index(topic), silver)
        refresh_gold(lake, TTL_US / 1e6)
    for name in GOLD:
        found, expected = rows_of(lake, name), rows_of(whole, name)
        assert found.keys() == expected.keys()
        assert np.array(list(map(found.get, expected)), float) == pytest.approx(np.array([*expected.values()], float))


def rows_of(lake: Lake, name: str) -> dict[tuple[Any, ...], Any]:
    """By what tells rows apart."""
    keys = TABLES[name].names[:4] if name == "bundle_minute" else TABLES[name].names[:3]
    rows = lake.table(name).selectExpr(*keys, "covered_s", "in_rate_msg_s", "cpu_percent").collect()
    return {tuple(row)[: len(keys)]: tuple(row)[len(keys) :] for row in rows}
