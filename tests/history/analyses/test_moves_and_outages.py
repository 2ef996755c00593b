"""What the channel tells: gaps, transfers, timelines and failovers, against a reading of the same records in Python."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import DEFAULTS
from loadmanager.history.lake import ALWAYS, Window
from tests.history.analyses.making import Chain, Row, answers, at, percentile, since, tables

A, B, C = (f"t/n/0x{number}0000000_0x{number + 1}0000000" for number in range(3))
SERVED = ("assigned", "transferring", "splitting")


def gaps_of(rows: list[Row]) -> list[tuple[Any, ...]]:
    """(bundle, how, source, destination, stopped, served): read record by record."""
    found = []
    for bundle in sorted({row["bundle"] for row in rows}):
        stopped, begun = None, None
        for row in sorted((row for row in rows if row["bundle"] == bundle), key=lambda row: row["offset"]):
            if row["action"] in ("transfer", "unload", "revoke"):
                begun = {"revoke": "failover"}.get(row["action"], row["action"])
            was, now = row["state_before"] in SERVED, row["state"] in SERVED
            if was and not now:
                stopped = (begun, row["holder_before"], row["holder_before_incarnation"], row["appended_at"])
            if now and not was and row["state_before"] is not None:
                if stopped is not None:
                    how, source, number, since_ = stopped
                    found.append((bundle, how, source, number, row["holder"], row["holder_incarnation"],
                                  since_, row["appended_at"]))  # fmt: skip
                stopped = None
    return found


def test_moves_of_random_logs_are_those_read_record_by_record(spark: SparkSession) -> None:
    dice, rows = random.Random(5), []
    for partition in range(2):
        chain = Chain(partition)
        for number in range(6):
            chain.wander(f"t/n{partition}/0x{number}0000000_0x{number + 1}0000000", 120, dice)
        died = f"t/n{partition}/0x70000000_0x80000000"
        chain.born(0, died, "b0")
        chain.step(50, died, "revoke", "revoking", "b0")
        chain.step(53, died, "release", "assigning", "b1")
        chain.step(54, died, "return", "assigned", "b1")
        rows += chain.rows
    expected = gaps_of(rows)
    assert len({each[1] for each in expected}) == 3
    assert len(expected) > 100
    dice.shuffle(rows)
    found = ANALYSES["transfers"].run(tables(spark, transition=rows), ALWAYS, DEFAULTS).collect()
    got = [
        (row["bundle"], row["how"], row["source"], row["source_incarnation"], row["destination"],
         row["destination_incarnation"], at(since(row["stopped_at"])), at(since(row["served_at"])))
        for row in found
    ]  # fmt: skip
    assert sorted(got) == sorted(expected)
    for row in found:
        assert row["gap_s"] == pytest.approx(since(row["served_at"]) - since(row["stopped_at"]))
    returned = [returned_of(each, expected) for each in expected]
    assert sum(returned) > 3
    assert sum(row["returned"] for row in found) == sum(returned)

    gaps = answers(ANALYSES["gaps"].run(tables(spark, transition=rows), ALWAYS, DEFAULTS), "how", "why")
    for (how, _why), row in gaps.items():
        mine = [r["gap_s"] for r in found if (r["how"], r["why"]) == (how, _why)]
        assert row["moves"] == len(mine)
        for part in (50, 90, 99):
            assert row[f"p{part}_s"] == pytest.approx(percentile(mine, part / 100))
        assert (row["max_s"], row["sum_s"]) == pytest.approx((max(mine), sum(mine)))

    days = answers(ANALYSES["churn"].run(tables(spark, transition=rows), ALWAYS, DEFAULTS), "day")
    assert sum(row["planned"] + row["failovers"] for row in days.values()) == len(found)
    assert sum(row["returned"] for row in days.values()) == sum(returned)
    first = [row for row in found if since(row["served_at"]) < 86_400]
    assert days[min(days)]["bundles"] == len({row["bundle"] for row in first})
    planned = [row for row in first if row["how"] != "failover"]
    some = days[min(days)]
    assert (some["planned"], some["failovers"]) == (len(planned), len(first) - len(planned))
    assert some["planned_a_bundle"] == pytest.approx(len(planned) / len({row["bundle"] for row in planned}))
    assert some["returned_part"] == pytest.approx(sum(row["returned"] for row in planned) / len(planned))
    assert some["gap_s"] == pytest.approx(sum(row["gap_s"] for row in first))


def returned_of(move: tuple[Any, ...], moves: list[tuple[Any, ...]]) -> bool:
    bundle, how, source, _, destination, _, _, served = move
    if how == "failover" or source == destination:
        return False
    return any(
        other[0] == bundle and other[1] != "failover" and other[2] == destination
        and 0 <= (served - other[7]).total_seconds() <= DEFAULTS.rest_s
        for other in moves
    )  # fmt: skip


def test_why_a_bundle_moved_and_what_was_promised(spark: SparkSession) -> None:
    chain = Chain()
    for bundle in (A, B, C):
        chain.born(0, bundle, "a")
    chain.transfer(100, A, "b", gap_s=0.5, cause="3.7")
    chain.transfer(200, B, "b", gap_s=0.25, role="admin")
    chain.transfer(300, C, "b", gap_s=2.0, role="broker")
    chain.transfer(900, A, "a", gap_s=1.0, cause="3.9")
    chain.step(1000, B, "revoke", "revoking", "b")
    chain.step(1003, B, "release", "assigning", "c")
    chain.step(1003.5, B, "return", "assigned", "c")
    begun = {"decision": "3.7", "bundle": A, "stage": "overload", "gain": 0.4, "ordinal": 1, "outcome": "begun"}
    later = begun | {"ordinal": 2, "stage": "balance", "gain": 7.0}
    refused = begun | {"ordinal": 0, "stage": "drain", "gain": 9.0, "outcome": "refused"}
    promised = [refused, later, begun, begun, refused | {"ordinal": 3, "outcome": None}]
    table = tables(spark, transition=chain.rows, move=promised)
    found = answers(ANALYSES["transfers"].run(table, ALWAYS, DEFAULTS), "bundle", "why")
    assert set(found) == {(A, "overload"), (A, "leader"), (B, "admin"), (B, "failover"), (C, "handed over")}
    one = found[A, "overload"]
    assert (one["gap_s"], one["duration_s"], one["gain"], one["decision"]) == (0.5, 1.5, 0.4, "3.7")
    assert found[B, "failover"]["gap_s"] == 3.5
    # back within its rest time
    assert [key for key, row in found.items() if row["returned"]] == [(A, "leader")]
    window = Window(at(850), at(1001))
    assert set(answers(ANALYSES["transfers"].run(table, window, DEFAULTS), "bundle")) == {A}
    short = msgspec.structs.replace(DEFAULTS, rest_s=600.0)
    assert not any(row["returned"] for row in ANALYSES["transfers"].run(table, window, short).collect())


def test_a_cancelled_move_a_split_and_a_merge_are_no_gap(spark: SparkSession) -> None:
    chain = Chain()
    chain.born(0, A, "a")
    chain.step(5, A, "transfer", "transferring", "a", target="b")
    chain.step(9, A, "cancel", "assigned", "a")
    chain.step(10, A, "split", "splitting", "a")
    chain.step(11, A, "create", None)
    chain.step(11, B, "create", "assigned", "a")
    chain.step(12, B, "merge", None)
    chain.step(12, A, "merge", "assigned", "a")
    table = tables(spark, transition=chain.rows)
    assert ANALYSES["transfers"].run(table, ALWAYS, DEFAULTS).count() == 0
    assert ANALYSES["outages"].run(table, ALWAYS, DEFAULTS).count() == 0


def test_outages_that_last_that_ended_and_that_ended_with_the_bundle(spark: SparkSession) -> None:
    chain = Chain()
    for bundle in (A, B, C):
        chain.born(0, bundle, "a#4")
    chain.step(50, A, "unload", "releasing", "a#4")
    chain.step(51, A, "release", "unassigned")
    for bundle in (B, C):
        chain.step(60, bundle, "revoke", "revoking", "a#4")
        chain.step(63, bundle, "release", "assigning", "b")
    chain.step(64, B, "return", "assigned", "b")
    chain.step(65, C, "revoke", "revoking", "b")
    chain.step(70, A, "delete-namespace", None)
    chain.step(90, A, "create-namespace", "unassigned")
    chain.step(91, A, "own", "assigning", "a#5")
    chain.step(92, A, "return", "assigned", "a#5")
    table = tables(spark, transition=chain.rows)
    found = answers(ANALYSES["outages"].run(table, ALWAYS, DEFAULTS), "bundle")
    assert {name: row["seconds"] for name, row in found.items()} == {A: 20.0, B: 4.0, C: None}
    assert (found[A]["how"], found[A]["destination"]) == ("unload", None)
    assert (found[B]["how"], found[B]["source_incarnation"], found[B]["destination"]) == ("failover", 4, "b")
    # whoever looks while they last
    assert set(answers(ANALYSES["outages"].run(table, Window(at(62), at(63.5)), DEFAULTS), "bundle")) == {A, B, C}
    assert set(answers(ANALYSES["outages"].run(table, Window(at(75)), DEFAULTS), "bundle")) == {C}

    deaths = answers(ANALYSES["failovers"].run(table, ALWAYS, DEFAULTS), "broker", "incarnation")
    assert set(deaths) == {("a", 4), ("b", 1)}
    one = deaths["a", 4]
    assert (one["bundles"], one["served"], one["max_s"], since(one["revoked_at"])) == (2, 1, 4.0, 60)
    assert (since(one["restored_at"]), since(one["back_at"])) == (64, 91)
    assert (deaths["b", 1]["served"], deaths["b", 1]["p50_s"], deaths["b", 1]["back_at"]) == (0, None, None)


def test_a_bundle_that_was_deleted_is_not_served_by_what_has_its_name_later(spark: SparkSession) -> None:
    chain = Chain()
    chain.born(0, A, "a")
    chain.step(50, A, "revoke", "revoking", "a")
    chain.step(53, A, "release", "unassigned")
    chain.step(60, A, "delete-namespace", None)
    chain.step(90, A, "create-namespace", "unassigned")
    chain.step(91, A, "own", "assigning", "b")
    chain.step(92, A, "return", "assigned", "b")
    table = tables(spark, transition=chain.rows)
    [death] = ANALYSES["failovers"].run(table, ALWAYS, DEFAULTS).collect()
    assert (death["bundles"], death["served"], death["restored_at"], death["max_s"]) == (1, 0, None, None)
    [outage] = ANALYSES["outages"].run(table, ALWAYS, DEFAULTS).collect()
    assert (outage["seconds"], outage["destination"]) == (10.0, None)


def test_who_holds_a_bundle_is_known_where_nothing_changed_in_the_window(spark: SparkSession) -> None:
    chain = Chain()
    chain.born(0, A, "a")
    chain.born(10, B, "b")
    table = tables(spark, transition=chain.rows)
    found = answers(ANALYSES["ownership"].run(table, Window(at(500)), DEFAULTS), "bundle")
    for bundle, holder in ((A, "a"), (B, "b")):
        row = found[bundle]
        assert (row["state"], row["holder"], row["open"], row["seconds"]) == ("assigned", holder, True, 0.0)
        assert since(row["since"]) == since(row["until"]) == 500
    ended = answers(ANALYSES["ownership"].run(table, Window(at(500), at(600)), DEFAULTS), "bundle")
    assert {name: row["seconds"] for name, row in ended.items()} == {A: 100.0, B: 100.0}
    states = answers(ANALYSES["time_in_state"].run(table, Window(at(500)), DEFAULTS), "state")
    assert (states["assigned"]["stays"], states["assigned"]["part"]) == (2, None)


def test_the_timeline_has_no_holes_and_adds_up(spark: SparkSession) -> None:
    chain, dice = Chain(), random.Random(9)
    for name in (A, B):
        chain.wander(name, 60, dice)
    last = max(row["appended_at"] for row in chain.rows)
    table = tables(spark, transition=chain.rows)
    for window in (ALWAYS, Window(at(900), at(2500)), Window(end=at(1000))):
        rows = ANALYSES["ownership"].run(table, window, DEFAULTS).collect()
        begin, end = since(window.begin or at(0)), since(window.end or last)
        for name in (A, B):
            mine = sorted((since(r["since"]), since(r["until"])) for r in rows if r["bundle"] == name)
            assert mine[0][0] == begin
            assert mine[-1][1] == end
            assert all(before[1] == after[0] for before, after in itertools.pairwise(mine))
        assert sum(row["open"] for row in rows) == 2
    rows = ANALYSES["ownership"].run(table, ALWAYS, DEFAULTS).collect()
    states = answers(ANALYSES["time_in_state"].run(table, ALWAYS, DEFAULTS), "state")
    for state, row in states.items():
        mine = [r["seconds"] for r in rows if r["state"] == state]
        ended = [r["seconds"] for r in rows if r["state"] == state and not r["open"]]
        assert (row["stays"], row["seconds"]) == (len(mine), pytest.approx(sum(mine)))
        assert row["p90_s"] == pytest.approx(percentile(ended, 0.9))
    assert sum(row["part"] for row in states.values()) == pytest.approx(1.0)


def test_leaders(spark: SparkSession) -> None:
    def lead(epoch: int, actor: str, seconds: float, partition: int, verdict: str = "accepted") -> Row:
        return {"partition": partition, "offset": epoch, "appended_at": at(seconds), "action": "lead", "epoch": epoch,
                "actor": actor, "actor_incarnation": 1, "verdict": verdict}  # fmt: skip

    rows = [
        lead(1, "a", 0, 0),
        lead(1, "a", 2, 1),
        lead(4, "b", 60, 0),
        lead(4, "b", 61, 1),
        lead(3, "c", 62, 0, "refused"),
    ]
    found = answers(ANALYSES["leaders"].run(tables(spark, channel=rows), ALWAYS, DEFAULTS), "epoch")
    assert [(row["leader"], row["partitions"], row["took_s"], row["seconds"]) for row in found.values()] == [
        ("a", 2, 2.0, 60.0), ("b", 2, 1.0, None)]  # fmt: skip
