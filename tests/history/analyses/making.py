"""Small tables for the tests of the analyses: rows as dicts, what is not named is null."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from loadmanager.history.schemas import TABLES
from statechannel.law.record import Action
from statechannel.law.transitions import TABLE, State, Then, Who

START = datetime(2026, 1, 5, tzinfo=UTC)
Row = dict[str, Any]


def at(seconds: float) -> datetime:
    """So long after START."""
    return START + timedelta(seconds=seconds)


def since(moment: datetime) -> float:
    """The inverse, of what Spark's collect() hands back: local time without a zone."""
    return (moment.astimezone(UTC) - START).total_seconds()


def tables(spark: SparkSession, **rows: Iterable[Mapping[str, Any]]) -> Callable[[str], DataFrame]:
    """These rows; all other tables are empty."""

    def table(name: str) -> DataFrame:
        schema = TABLES[name]
        values = [tuple(row.get(field) for field in schema.names) for row in rows.get(name, ())]
        return spark.createDataFrame(values, schema)

    return table


def answers(frame: DataFrame, key: str, *more: str) -> dict[Any, Row]:
    """The rows by key."""
    found = [row.asDict() for row in frame.collect()]
    by = {tuple(row[each] for each in (key, *more)) if more else row[key]: row for row in found}
    assert len(by) == len(found), "the key is not one"
    return by


class Chain:
    """Transitions of bundles, written by hand or at random; each step follows the law of `transitions.py`."""

    def __init__(self, partition: int = 0) -> None:
        self.rows: list[Row] = []
        self._partition = partition
        self._offset = 0
        self._now: dict[str, Row] = {}

    def step(
        self, seconds: float, bundle: str, action: str, state: str | None, holder: str | None = None, **more: Any
    ) -> None:
        """One accepted record. `holder` is `name` or `name#incarnation`."""
        name, _, number = (holder or "").partition("#")
        before = self._now.get(bundle, {})
        self._offset += 3
        row = {
            "partition": self._partition,
            "offset": self._offset,
            "ordinal": 0,
            "appended_at": at(seconds),
            "at": at(seconds),
            "action": action,
            "bundle": bundle,
            "namespace": bundle.rpartition("/")[0],
            "state_before": before.get("state"),
            "state": state,
            "holder_before": before.get("holder"),
            "holder_before_incarnation": before.get("holder_incarnation"),
            "holder": name or None,
            "holder_incarnation": int(number or 1) if name else None,
            "actor": "leader",
            "role": "leader",
            "cause": "",
            **more,
        }
        self.rows.append(row)
        self._now[bundle] = row

    def born(self, seconds: float, bundle: str, holder: str) -> None:
        """Created, and served by its first holder."""
        self.step(seconds, bundle, "create-namespace", "unassigned")
        self.step(seconds, bundle, "own", "assigning", holder)
        self.step(seconds, bundle, "return", "assigned", holder)

    def transfer(self, seconds: float, bundle: str, to: str, *, gap_s: float, **more: Any) -> None:
        """Asked for at `seconds`; ready a second later."""
        source = self._now[bundle]["holder"]
        self.step(seconds, bundle, "transfer", "transferring", source, target=to, **more)
        self.step(seconds + 1, bundle, "ready", "releasing", source)
        self.step(seconds + 1 + gap_s / 2, bundle, "release", "assigning", to)
        self.step(seconds + 1 + gap_s, bundle, "return", "assigned", to)

    def wander(self, bundle: str, steps: int, dice: random.Random) -> None:
        """A random walk along the rows of the law; some records come at the same instant."""
        names = [f"b{number}#{incarnation}" for number in range(3) for incarnation in (1, 2)]
        self.step(0, bundle, "create-namespace", "unassigned")
        state, holder, target, now = State.UNASSIGNED, None, None, 0.0
        for _ in range(steps):
            row = dice.choice([row for row in TABLE if row.state is state and row.action is not Action.SPLIT])
            to = dice.choice([name for name in names if name != holder])
            match row.then:
                case Then.HOLD_TO:
                    holder, target = to, None
                case Then.HOLD_TARGET:
                    holder, target = target or to, None
                case Then.AIM_TO:
                    target = to
                case Then.KEEP:
                    target = None
                case Then.NOBODY:
                    holder = target = None
                case Then.KEEP_BOTH:
                    pass
            now += dice.choice([0.0, 0.25, 1.5, 400.0])
            who = dice.choice(sorted(row.by))
            role = {Who.LEADER: "leader", Who.ADMIN: "admin"}.get(who, "broker")
            self.step(now, bundle, str(row.action), str(row.next), holder, role=role)
            state = row.next


def percentile(values: Sequence[float], part: float) -> float:
    """Linear between neighbours, as SQL's percentile."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
