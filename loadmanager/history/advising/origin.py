"""Where the data of advice comes from (which cluster, time and versions of tables), and what advice promises."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from pyspark.sql import functions as f

from loadmanager.history.lake import Pinned, Window
from loadmanager.history.replay.ranking import Interval
from loadmanager.leader.plans.advice import Advice, Change, Expected, Measure, Provenance, sealed
from loadmanager.model.registration import VERSION

JOB = "history advise"


class Origin(msgspec.Struct, frozen=True):
    """The origin of the data, and how long advice made of it is of use."""

    cluster: str
    data_from_ms: int
    data_to_ms: int
    life_ms: int
    versions: dict[str, int]

    def advice(self, change: Change, reason: str, expected: Expected, method: str, tables: Iterable[str]) -> Advice:
        """Advice with its provenance and its id; the same data give the same id."""
        read = {name: self.versions[name] for name in sorted(tables) if name in self.versions}
        provenance = Provenance(self.cluster, self.data_from_ms, self.data_to_ms, JOB, VERSION, method, read)
        return sealed(Advice(change, reason, expected, provenance, self.data_to_ms + self.life_ms))


def origin_of(lake: Pinned, window: Window, cluster: str, life_s: float, tables: Iterable[str]) -> Origin | None:
    """The origin of the brokers' reports in the window; None if it has fewer than two times of reports."""
    at = f.unix_millis("at")
    found = lake.table("broker_load", window).agg(f.min(at).alias("first"), f.max(at).alias("last")).collect()[0]
    if found["first"] is None or found["first"] == found["last"]:
        return None
    return Origin(cluster, found["first"], found["last"], round(life_s * 1000), lake.versions(tables))


def promised(measure: Measure, before: float, gain: Interval) -> Expected:
    """What advice promises of a measure, which is not below 0; its interval has the promised gain in it."""
    after = max(0.0, before - gain.mean)
    return Expected(measure, before, after, min(gain.low, before - after), max(gain.high, before - after))
