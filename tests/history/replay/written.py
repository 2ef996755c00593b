"""The history that a run of the playground would have left: as rows of silver, and as rows that a window gets.

Round r of the run is what a replay finds at the time of round r: its moves and the reports after them come just before.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow
from pyspark.sql import SparkSession

from bench.generating.arrow import schema_of
from loadmanager.history import minutes
from loadmanager.history.duck import speak_spark
from loadmanager.history.lake import Lake
from loadmanager.history.minutes import Reach
from loadmanager.history.replay.game import LISTED, OWNERSHIP, REPORT, RULES, TOTAL, Frame
from loadmanager.history.schemas import TABLES
from loadmanager.strategies.playground.game import Run
from loadmanager.strategies.playground.scenario import BYTES_IN, BYTES_OUT, CPU, MESSAGES, broker_names
from loadmanager.strategies.playground.traffic import owners_by_round

BEGIN = datetime(2026, 11, 2, tzinfo=UTC)
BEGIN_US = int(BEGIN.timestamp()) * 1_000_000
SECOND = 1_000_000
GAP_S = 0.05
TTL_S = 600.0
Row = dict[str, Any]
Rates = dict[str, float]
EVENTS = pyarrow.schema(
    [
        ("kind", pyarrow.int8()),
        ("us", pyarrow.int64()),
        ("until_us", pyarrow.int64()),
        ("nth", pyarrow.int64()),
        ("ordinal", pyarrow.int32()),
    ]
    + [("broker", pyarrow.string()), ("bundle", pyarrow.string())]
    + [("gone", pyarrow.bool_()), ("source", pyarrow.string())]
    + [("action", pyarrow.string()), ("role", pyarrow.string())]
    + [(name, pyarrow.float64()) for name in ("cpu_percent", "memory_percent", "in_rate_bytes_s", "out_rate_bytes_s")]
    + [(name, pyarrow.float64()) for name in ("rate_msg_s", "cores", "memory_bytes", "in_capacity_bytes_s")]
    + [(name, pyarrow.float64()) for name in ("out_capacity_bytes_s", "capacity_msg_s")]
    + [("data", pyarrow.binary())]
)


class Report(msgspec.Struct):
    """One report of a broker: what it uses, of what, and what its bundles cost."""

    us: int
    broker: str
    cpu_percent: float
    cores: float
    listed: dict[str, Rates]
    total: Rates
    count: int = 0
    incarnation: int = 1
    gone: bool = False


class Step(msgspec.Struct):
    """One transition."""

    us: int
    bundle: str
    state: str | None
    action: str
    holder: str | None = None
    target: str | None = None
    before: str | None = None
    source: str | None = None
    role: str = "leader"
    incarnation: int = 1


class History(msgspec.Struct):
    """What topics would hold."""

    reports: list[Report]
    steps: list[Step]
    decisions: list[tuple[int, bytes]] = []
    """When, and the record."""

    def table(self) -> pyarrow.Table:
        """The rows as a window gets them."""
        until = in_force(self, Reach(round(TTL_S * SECOND)))
        rows = [row for number, report in enumerate(self.reports) for row in _report_events(report, until.get(number))]
        rows += [_step_event(step, *place) for step, place in self.placed()]
        rows += [{"kind": RULES, "us": us, "nth": 0, "data": data} for us, data in self.decisions[:1]]
        return pyarrow.Table.from_pylist(rows, schema=EVENTS)

    def placed(self) -> list[tuple[Step, tuple[int, int]]]:
        """Each step with its offset and ordinal: what happened at one instant is one record."""
        times = sorted({step.us for step in self.steps})
        return [(step, (times.index(step.us), number)) for number, step in enumerate(self.steps)]

    def save(self, lake: Lake) -> None:
        """The rows as silver."""
        rows: dict[str, list[Row]] = {"broker_load": [], "bundle_total": [], "bundle_load": []}
        for offset, report in enumerate(self.reports):
            for table, row in _report_rows(report, offset):
                rows[table].append(row)
        rows["transition"] = [_step_row(step, *place) for step, place in self.placed()]
        for offset, (us, data) in enumerate(self.decisions):
            origin: Row = {"partition": 0, "offset": offset, "appended_at": at(us + SECOND), "day": at(us).date()}
            rows.setdefault("decision", []).append({**origin, "at": at(us), "has_model": True})
            rows.setdefault("bronze", []).append({**origin, "topic": "decisions", "value": data})
        for table, found in rows.items():
            if found:
                save(lake.spark, lake, table, found)


def save(spark: SparkSession, lake: Lake, table: str, rows: list[Row]) -> None:
    """Appends rows; columns that they lack are null."""
    schema = TABLES[table]
    values = [tuple(row.get(name) for name in schema.names) for row in rows]
    spark.createDataFrame(values, schema).coalesce(1).write.format("delta").mode("append").save(lake.path(table))


def frame(rounds: int, interval_s: float = 60.0) -> Frame:
    return Frame(BEGIN_US, int(interval_s * SECOND), rounds)


def written(run: Run, *, top: int = 1_000, begin_us: int = BEGIN_US) -> History:
    """Every broker reports in every round; each move goes through all its states."""
    scenario, owner = run.scenario, owners_by_round(run)
    names, step_us = broker_names(scenario.brokers), int(scenario.interval_s * SECOND)
    steps = [
        Step(begin_us - 3600 * SECOND, str(bundle), "assigned", "return", names[int(home)], before="assigning")
        for bundle, home in zip(scenario.bundles, scenario.home, strict=True)
    ]
    for each in run.moved:
        us = begin_us + each.round * step_us - 2 * SECOND
        bundle, source, to = str(scenario.bundles[each.bundle]), names[each.source], names[each.destination]
        who = "broker" if scenario.draining[each.round, each.source] else "leader"
        made = _unload(us, bundle, source, to) if each.how == "unload" else _transfer(us, bundle, source, to, who)
        steps += list(made)
    reports = [
        _report(run, at, broker, owner[at], top, begin_us + at * step_us - SECOND)
        for at in range(scenario.rounds)
        for broker in np.flatnonzero(scenario.present[at]).tolist()
    ]
    reports += [
        Report(begin_us + at * step_us - SECOND, names[broker], 0.0, 1.0, {}, {}, gone=True)
        for at, broker in np.argwhere(~scenario.present).tolist()
        if at and scenario.present[at - 1, broker]
    ]
    return History(reports, steps)


def _transfer(us: int, bundle: str, source: str, to: str, who: str) -> Iterator[Step]:
    gap = int(GAP_S * SECOND)
    yield Step(us, bundle, "transferring", "transfer", source, to, "assigned", source, who)
    yield Step(us + gap, bundle, "releasing", "ready", source, to, "transferring", source, "broker")
    yield Step(us + gap + gap // 2, bundle, "assigning", "release", to, None, "releasing", source, "broker")
    yield Step(us + 2 * gap, bundle, "assigned", "return", to, None, "assigning", to, "broker")


def _unload(us: int, bundle: str, source: str, to: str) -> Iterator[Step]:
    gap = int(GAP_S * SECOND)
    yield Step(us, bundle, "releasing", "unload", source, None, "assigned", source)
    yield Step(us + gap, bundle, "unassigned", "release", None, None, "releasing", source, "broker")
    yield Step(us + 2 * gap, bundle, "assigning", "own", to, None, "unassigned", None, "broker")
    yield Step(us + 3 * gap, bundle, "assigned", "return", to, None, "assigning", to, "broker")


def rates(load: Any) -> Rates:
    """What a service measures of a load in natural units."""
    return {
        "cpu_percent": float(load[CPU]) * 100,
        "in_rate_bytes_s": float(load[BYTES_IN]),
        "out_rate_bytes_s": float(load[BYTES_OUT]),
        "rate_msg_s": float(load[MESSAGES]),
    }


def _report(run: Run, at: int, broker: int, owner: Any, top: int, us: int) -> Report:
    scenario = run.scenario
    mine, loads = np.flatnonzero(owner == broker), scenario.loads(at, owner)
    hottest = mine[np.argsort(-loads[mine, CPU], kind="stable")][:top]
    cores = float(scenario.capacity[broker, CPU])
    used = float(loads[mine, CPU].sum() + scenario.foreign[at, broker, CPU])
    listed = {str(scenario.bundles[row]): rates(loads[row]) for row in hottest.tolist()}
    name = broker_names(scenario.brokers)[broker]
    starts = 1 + int(np.count_nonzero(scenario.present[1 : at + 1, broker] > scenario.present[:at, broker]))
    total = rates(loads[mine].sum(axis=0))
    return Report(us, name, 100 * used / cores, cores, listed, total, len(mine), starts)


def in_force(history: History, reach: Reach) -> dict[int, int]:
    """Until when each report is in force, of those that are at all."""
    reports = [row for offset, report in enumerate(history.reports) for _, row in _report_rows(report, offset)[:1]]
    with duckdb.connect() as db:
        speak_spark(db)
        for name, table, rows in (
            ("report", "broker_load", reports),
            ("transition", "transition", [_step_row(step, *place) for step, place in history.placed()]),
        ):
            db.register(name, pyarrow.Table.from_pylist(rows, schema=schema_of(table)))
        found = db.sql(minutes.in_force(reach)).fetchall()
    return {offset: end_us for _, offset, _, _, begin_us, end_us in found if end_us > begin_us}


def _report_events(report: Report, until_us: int | None) -> Iterator[Row]:
    base: Row = {"us": report.us, "nth": 0, "broker": report.broker}
    if report.gone:
        return
    if until_us is not None:
        own = {**report.total, "cpu_percent": report.cpu_percent, "cores": report.cores}
        yield {**base, "kind": REPORT, "until_us": until_us, **own}
    yield {**base, "kind": TOTAL, **report.total}
    for bundle, measured in report.listed.items():
        yield {**base, "kind": LISTED, "bundle": bundle, **measured}


def _step_event(step: Step, offset: int, ordinal: int) -> Row:
    place = step.target if step.state in ("transferring", "releasing") else step.holder
    if step.state in ("unassigned", "revoking", None):
        place = None
    return {
        "kind": OWNERSHIP, "us": step.us, "nth": offset, "ordinal": ordinal, "broker": place, "bundle": step.bundle,
        "gone": step.state is None, "source": step.source,
        "action": step.action, "role": step.role,
    }  # fmt: skip


def at(us: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def _report_rows(report: Report, offset: int) -> list[tuple[str, Row]]:
    origin: Row = {"partition": 0, "offset": offset, "appended_at": at(report.us), "day": at(report.us).date()}
    if report.gone:
        return [("broker_load", {**origin, "broker": report.broker})]
    base = {**origin, "broker": report.broker, "incarnation": report.incarnation, "at": at(report.us)}
    own = {**base, **_silver(report.total), "cpu_percent": report.cpu_percent, "capacity": {"cpu": report.cores}}
    listed = [
        ("bundle_load", {**base, **_silver(measured), "bundle": bundle, "rank": rank})
        for rank, (bundle, measured) in enumerate(report.listed.items())
    ]
    return [("broker_load", own), ("bundle_total", {**base, **_silver(report.total), "count": report.count}), *listed]


def _silver(measured: Rates) -> Row:
    half = measured["rate_msg_s"] / 2
    others = {name: value for name, value in measured.items() if name != "rate_msg_s"}
    return {**others, "in_rate_msg_s": half, "out_rate_msg_s": half}


def _step_row(step: Step, offset: int, ordinal: int) -> Row:
    return {
        "partition": 0, "offset": offset, "appended_at": at(step.us), "at": at(step.us), "day": at(step.us).date(),
        "ordinal": ordinal, "id": str(offset), "action": step.action, "bundle": step.bundle,
        "state_before": step.before, "state": step.state, "holder_before": step.source,
        "holder_before_incarnation": step.incarnation,
        "holder": step.holder, "holder_incarnation": 1, "target": step.target, "target_incarnation": 1,
        "role": step.role,
    }  # fmt: skip
