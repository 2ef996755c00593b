"""Gold is the same in whatever order and portions the reports and the channel's log come.

On DuckDB, with the texts and the rules of `ingest/gold.py`.
"""

from __future__ import annotations

from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from bench.generating.arrow import schema_of
from loadmanager.history.duck import Connection, speak_spark
from loadmanager.history.ingest.gold import affected, deciding
from loadmanager.history.minutes import EVER, MINUTE_US, Reach, Span, broker_minutes, bundle_minutes, in_force, named

S_US = 1_000_000
TTL_US = 5 * MINUTE_US
LAST_US = 60 * MINUTE_US
BROKERS, BUNDLES = "abc", "xy"

Row = dict[str, Any]
Minutes = dict[tuple[Any, ...], tuple[float, float]]
"""Minute, broker, and incarnation or bundle, to the seconds covered and the mean."""


def us(minute: float) -> int:
    return round(minute * MINUTE_US)


def report(broker: str, at_us: int, bundles: str = "", incarnation: int = 1) -> Row:
    return {"broker": broker, "at": at_us, "appended_at": at_us, "incarnation": incarnation, "names": bundles}


def deletion(broker: str, at_us: int) -> Row:
    return {"broker": broker, "at": None, "appended_at": at_us, "incarnation": None, "names": ""}


def change(bundle: str, at_us: int, before: str | None, after: str | None, state: str | None = "assigned") -> Row:
    action = "return" if state else "delete"
    return {"action": action, "bundle": bundle, "appended_at": at_us, "state": state, "holder": after} | {
        "state_before": "releasing", "holder_before": before, "holder_before_incarnation": before and 1
    }  # fmt: skip


def revoke(broker: str, at_us: int, incarnation: int = 1, bundle: str = "z") -> Row:
    return {"action": "revoke", "bundle": bundle, "appended_at": at_us, "state": "revoking", "holder": broker} | {
        "state_before": "assigned", "holder_before": broker, "holder_before_incarnation": incarnation
    }  # fmt: skip


class World:
    """What was delivered so far, and the gold that was made of it."""

    def __init__(self, db: Connection, reports: list[Row], changes: list[Row]) -> None:
        self._db = db
        self._all = (
            [each | {"partition": 0, "offset": offset} for offset, each in enumerate(reports)],
            [each | {"partition": 0, "offset": offset, "ordinal": 0} for offset, each in enumerate(changes)],
        )
        self._seen: tuple[set[int], int] = (set(), 0)
        self._horizon: int | None = None
        self.gold: dict[str, Minutes] = {"broker": {}, "bundle": {}}

    def whole(self) -> dict[str, Minutes]:
        """Gold of all there is, at once."""
        horizon = max(each["at"] for each in self._all[0] if each["at"] is not None)
        return {kind: self._made(kind, *self._all, horizon, [EVER]) for kind in self.gold}

    def deliver(self, numbers: set[int], until: int) -> None:
        """These reports, and the channel's log up to a record; gold follows as in `gold.py`."""
        seen, known = self._seen
        new, log = [self._all[0][each] for each in sorted(numbers - seen)], self._all[1][known:until]
        self._seen = (seen | numbers, max(known, until))
        reports, changes = [self._all[0][each] for each in sorted(self._seen[0])], self._all[1][: self._seen[1]]
        times = [each["at"] for each in new if each["at"] is not None]
        horizon = max(times + ([] if self._horizon is None else [self._horizon]), default=None)
        if horizon is None:
            self._seen = (seen | numbers, known)
            assert not times
            return
        hours = [(at, at) for at in times + [each["appended_at"] for each in new if each["at"] is None]]
        hours += [(each["appended_at"], each["appended_at"]) for each in log if each["action"] == "revoke"]
        self._fill("transition", log)
        held = [
            (since, horizon if to is None else to)
            for since, to in self._db.sql(f"SELECT since_us, until_us FROM ({named()})").fetchall()
        ]
        for kind, spans in (
            (kind, affected(hours, TTL_US, self._horizon or 0, horizon, held if kind == "bundle" else ()))
            for kind in self.gold
        ):
            wider, whole = deciding(spans, TTL_US)
            near = [each for each in reports if any(is_in(each, span) for span in wider)]
            made = self._made(kind, near, [each for each in changes if is_in(each, whole)], horizon, spans)
            kept = {
                key: row for key, row in self.gold[kind].items() if not any(s.begin <= key[0] < s.end for s in spans)
            }
            self.gold[kind] = kept | made
        self._horizon = horizon

    def _made(self, kind: str, reports: list[Row], changes: list[Row], horizon: int, spans: list[Span]) -> Minutes:
        self._fill("broker_load", [each | {"cpu_percent": float(each["offset"])} for each in reports])
        loads = [
            {"partition": 0, "offset": each["offset"], "bundle": bundle, "in_rate_msg_s": float(each["offset"])}
            for each in reports
            for bundle in each["names"]
        ]
        self._fill("bundle_load", loads)
        self._fill("transition", changes)
        self._db.execute("CREATE OR REPLACE TEMP VIEW report AS SELECT * FROM broker_load")
        self._db.execute(f"CREATE OR REPLACE TEMP VIEW in_force AS {in_force(Reach(TTL_US, horizon))}")
        text, of, mean = (
            (broker_minutes(spans), "incarnation", "cpu_percent")
            if kind == "broker"
            else (bundle_minutes(spans), "bundle", "in_rate_msg_s")
        )
        rows = self._db.sql(f"SELECT minute_us, broker, {of}, covered_s, {mean} FROM ({text})").fetchall()
        return {(minute, broker, of): (covered, round(mean, 6)) for minute, broker, of, covered, mean in rows}

    def _fill(self, table: str, rows: list[Row]) -> None:
        self._db.register(table, pa.Table.from_pylist(rows, schema_of(table)))


def is_in(row: Row, span: Span) -> bool:
    at = row["appended_at"] if row.get("at") is None else row["at"]
    return span.begin <= at < span.end


@pytest.fixture
def db() -> Connection:
    made = duckdb.connect(config={"threads": 1})
    speak_spark(made)
    return made


def history(rng: Random) -> tuple[list[Row], list[Row]]:
    """Brokers report what they hold or lost within the time to live; anything else may happen at any time."""
    changes: list[Row] = []
    holding: dict[str, list[tuple[int, str | None]]] = {}
    for bundle in BUNDLES:
        holder = rng.choice((None, *BROKERS))
        holding[bundle] = [(-LAST_US, holder)]
        for at_us in sorted(rng.sample(range(0, LAST_US, S_US), rng.randrange(5))):
            after = None if rng.random() < 0.2 else rng.choice(BROKERS)
            if after != holder:
                changes.append(change(bundle, at_us, holder, after, None if after is None else "assigned"))
                holding[bundle].append((at_us, after))
                holder = after
    died = rng.sample(range(0, LAST_US, S_US), rng.randrange(5))
    changes += [revoke(rng.choice(BROKERS), at_us, rng.randrange(1, 3)) for at_us in died]
    changes.sort(key=lambda each: each["appended_at"])
    reports: list[Row] = []
    for broker in BROKERS:
        for at_us in rng.sample(range(0, LAST_US, S_US), rng.randrange(2, 25)):
            bundles = "".join(
                bundle
                for bundle, names in holding.items()
                if any(
                    name == broker and since <= at_us < until + rng.randrange(TTL_US)
                    for (since, name), (until, _) in zip(names, [*names[1:], (LAST_US, None)], strict=True)
                )
            )
            gone = rng.random() < 0.15
            reports.append(deletion(broker, at_us) if gone else report(broker, at_us, bundles, rng.randrange(1, 3)))
    return reports, changes


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 50))])
def test_portions_and_their_order_change_nothing(db: Connection, seed: int):
    rng = Random(seed)
    reports, changes = history(rng)
    rng.shuffle(reports)
    world = World(db, reports, changes)
    coming = list(range(len(reports)))
    rng.shuffle(coming)
    cuts = sorted(rng.sample(range(len(reports)), 3))
    known = 0
    for first, last in zip([0, *cuts], [*cuts, len(reports)], strict=True):
        known = rng.randrange(known, len(changes) + 1)
        world.deliver(set(coming[first:last]), known)
    world.deliver(set(coming), len(changes))
    assert world.gold == world.whole()


def every(minutes: int, broker: str, bundles: str) -> list[Row]:
    return [report(broker, us(minute), bundles) for minute in range(minutes)]


@pytest.mark.parametrize(
    ("reports", "changes", "late"),
    [
        # a dead incarnation reports once more near the end of its time to live
        ([report("a", us(1)), report("a", us(6.5)), report("b", us(40))], [revoke("a", us(2))], None),
        # a deletion, and after it a report that was measured before
        ([report("a", us(1)), report("a", us(5.5)), report("b", us(40)), deletion("a", us(2))], [], 3),
        # the second revoke of an incarnation that lived on
        ([report("a", us(m)) for m in (1, 20, 30)], [revoke("a", us(2)), revoke("a", us(21))], None),
        # a new holder, long before
        (
            every(40, "a", "x")[:10] + every(40, "b", "x")[10:],
            [change("x", us(0), None, "a"), change("x", us(10), "a", "b")],
            None,
        ),
    ],
)  # fmt: skip
def test_the_last_record_alone_changes_all_that_it_decides(
    db: Connection, reports: list[Row], changes: list[Row], late: int | None
):
    world = World(db, reports, changes)
    world.deliver(set(range(len(reports))) - {late}, len(changes) - (late is None))
    before = dict(world.gold)
    world.deliver(set(range(len(reports))), len(changes))
    assert world.gold == world.whole()
    assert world.gold != before


def test_a_change_between_two_spans_is_seen(db: Connection):
    reports = every(18, "a", "x") + every(60, "b", "x")[18:50] + every(60, "c", "x")[50:]
    late = {2, 52}
    changes = [
        change("x", us(minute), *brokers) for minute, *brokers in ((1, "z", "a"), (18, "a", "b"), (50, "b", "c"))
    ]
    world = World(db, reports, changes)
    world.deliver(set(range(len(reports))) - late, 3)
    world.deliver(late, 3)
    assert world.gold == world.whole()
