"""Times that cannot be true: such a report is in the quarantine, and gold goes on, also in a lake that has one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import msgspec
import pytest
from pyspark.sql.types import StructType

from loadmanager.history.ingest import refresh_gold
from loadmanager.history.ingest.batches import Batches, Plan
from loadmanager.history.ingest.failpoints import NEVER
from loadmanager.history.ingest.progress import SILVER, Mark, advance
from loadmanager.history.lake import Lake, Once
from loadmanager.history.plausible import AHEAD_US
from loadmanager.history.schemas import BROKER_LOAD
from loadmanager.history.sources import SqliteSource
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC
from statechannel.law.record import BrokerId
from statechannel.ports import Payload
from tests.history.ingest import material

TTL_S = 300.0
LAST_MS = 253_402_300_799_999
"""The end of the year 9999."""
FIRST_MS = -62_135_596_800_000
"""The beginning of the year 1."""

NOW = datetime(2026, 1, 1, tzinfo=UTC)
pytestmark = pytest.mark.timeout(600)


def reports(*times_ms: int) -> material.Log:
    """Of one broker, to both topics of load."""
    rng, broker = Random(1), BrokerId("b:1", 1)
    encode = msgspec.json.Encoder().encode
    made = {BROKERS_TOPIC: material.broker_load, BUNDLES_TOPIC: material.top_bundles}
    return {
        (topic, 0): [Payload(b"b:1", encode(make(rng, broker, at_ms))) for at_ms in times_ms]
        for topic, make in made.items()
    }


def test_reports_of_impossible_times_are_quarantined_and_stop_no_gold(spark, lake, tmp_path):
    base_ms, late_ms = material.BASE_MS, material.BASE_MS + AHEAD_US // 1000
    ahead_ms, behind_ms = late_ms + material.APART_MS, late_ms + 2 * material.APART_MS + 1  # offsets 1 and 2
    log = reports(base_ms, ahead_ms, behind_ms, LAST_MS, FIRST_MS, -1, base_ms + 90_000)
    run = Batches(lake.root, Plan(SqliteSource(tmp_path / "log.db"), material.PARTITIONS, NEVER), "run")
    run(material.raw(spark, log), 0)
    for topic in (BROKERS_TOPIC, BUNDLES_TOPIC):
        bad = lake.table("quarantine").where(f"topic = '{topic}'").orderBy("offset").collect()
        assert [(row["offset"], row["kind"]) for row in bad] == [(at, "corrupt") for at in (2, 3, 4, 5)]
        assert [row["reason"].split("(")[0] for row in bad] == [
            *["its time is more than a day after the log took it "] * 2, *["its time is before 1970 "] * 2
        ]  # fmt: skip
        assert all("correct its writer's clock" in row["reason"] for row in bad)
    assert sorted(row["offset"] for row in lake.table("broker_load").collect()) == [0, 1, 6]
    assert refresh_gold(lake, TTL_S)["broker_minute"] > 0
    assert {row["minute"].year for row in lake.table("broker_minute").collect()} == {2026}


def test_a_lake_that_has_the_year_9999_already_goes_on_with_gold(spark, lake):
    taken(lake, 0, NOW, NOW, LAST_MS, FIRST_MS)
    refresh_gold(lake, TTL_S)
    taken(lake, 1, NOW + timedelta(minutes=2), NOW + timedelta(minutes=2))
    refresh_gold(lake, TTL_S)
    assert minutes(lake) == [NOW, NOW + timedelta(minutes=1)]


def test_a_horizon_that_an_older_release_took_from_such_a_report_is_left(spark, lake):
    taken(lake, 0, NOW, NOW)
    far = datetime(2500, 1, 1, tzinfo=UTC)
    taken(lake, 1, NOW, far)
    old_gold = [(far, "b", 1, 60.0, 1, *[None] * 8, None, far.date())]
    lake.append("broker_minute", spark.createDataFrame(old_gold, lake.table("broker_minute").schema), Once("old", 0))
    advance(lake, "broker_minute", 0, [Mark(BROKERS_TOPIC, 0, 20, 0, int(far.timestamp()) * 1_000_000)])
    taken(lake, 2, NOW + timedelta(minutes=2), NOW + timedelta(minutes=2))
    refresh_gold(lake, TTL_S)
    assert minutes(lake) == [NOW, NOW + timedelta(minutes=1)]
    [until] = lake.table("progress").where("stage = 'broker_minute' AND batch = 1").select("until").distinct().collect()
    assert until["until"].replace(tzinfo=UTC) == (NOW + timedelta(minutes=2))


def taken(lake: Lake, batch: int, appended: datetime, *times: datetime | int) -> None:
    """Silver gets reports of these times (or milliseconds), as an older release wrote them."""
    values, schema = [], BROKER_LOAD
    for place, at in enumerate(times):
        known = {"partition": 0, "offset": 10 * batch + place, "broker": "b", "incarnation": 1, "cpu_percent": 5.0}
        at_ms = at if isinstance(at, int) else int(at.timestamp()) * 1000
        values.append((*(known.get(name) for name in schema.names), at_ms, appended))
    extended = StructType([*schema.fields]).add("at_ms", "long").add("now", "timestamp")
    wide = lake.spark.createDataFrame(values, extended)
    rows = wide.selectExpr(
        *(name for name in schema.names if name not in ("at", "appended_at", "day")),
        "timestamp_millis(at_ms) AS at", "now AS appended_at", "to_date(timestamp_millis(at_ms)) AS day",
    )  # fmt: skip
    lake.append("broker_load", rows, Once("test", batch))
    until_us = int(appended.timestamp()) * 1_000_000
    advance(lake, SILVER, batch, [Mark(BROKERS_TOPIC, 0, 10 * batch + 10, len(times), until_us)])


def minutes(lake: Lake) -> list[datetime]:
    """The minutes that gold has."""
    rows = lake.table("broker_minute").selectExpr("unix_seconds(minute) AS s").orderBy("s").collect()
    return [datetime.fromtimestamp(row["s"], UTC) for row in rows]
