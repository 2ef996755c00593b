"""A generated history is one that could have been: the same whoever makes it, lawful, and without holes."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from bench.generating import World, generated, write
from bench.generating.generated import MAKERS
from bench.generating.loads import stage
from bench.generating.reports import of_day
from bench.generating.world import DAY_MS, MINUTE_MS, away
from loadmanager.history.lake import Lake
from loadmanager.history.schemas import TABLES
from statechannel.law.record import Action
from statechannel.law.transitions import State, rows

WORLD = World(brokers=4, bundles=10, days=3, top=2)


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


def test_minutes_cover_all_the_time_but_the_gaps() -> None:
    covered = defaultdict(float)
    for row in made("bundle_minute"):
        covered[row["minute"], row["bundle"]] += row["covered_s"]
    assert len(covered) == WORLD.bundles * WORLD.days * 1440
    short = [seconds for seconds in covered.values() if seconds != 60.0]
    moved = sum(row["action"] in ("transfer", "revoke") for row in made("transition"))
    assert 0 < len(short) <= moved
    assert min(short) > 56


def test_what_brokers_carry_is_what_their_bundles_cost() -> None:
    minutes = defaultdict(float)
    held = {}
    for day in range(WORLD.days):
        begin_ms = WORLD.begin_ms + day * DAY_MS
        at_ms = begin_ms + np.arange(1440) * MINUTE_MS
        held.update(zip(at_ms.tolist(), of_day(WORLD, day).owners(at_ms).tolist(), strict=True))
    names, bundles = stage(WORLD).brokers, {name: row for row, name in enumerate(stage(WORLD).bundles)}
    for row in made("bundle_minute"):
        moment = round(row["minute"].timestamp() * 1000)
        owner = names[held[moment][bundles[row["bundle"]]]]
        if row["broker"] == owner:
            minutes[row["minute"], owner] += row["in_rate_msg_s"]
    for row in made("broker_minute"):
        assert row["in_rate_msg_s"] == pytest.approx(minutes[row["minute"], row["broker"]])


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
    for name in ("transition", "broker_minute"):
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
    assert written == {name: len(made(name)) for name in MAKERS}
    for name in MAKERS:
        assert lake.stored(name) == TABLES[name]
        assert lake.table(name).count() == written[name]
    lake.prepare("channel")  # as the ingest does before it writes
