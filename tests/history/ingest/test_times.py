"""Times that cannot be true: such a report is in the quarantine, and gold goes on."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from loadmanager.history.ingest import refresh_gold
from loadmanager.history.ingest.batch import Batches, Plan
from loadmanager.history.ingest.failpoints import NEVER
from loadmanager.history.sources import SqliteSource
from loadmanager.history.utc import AHEAD_US
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC
from statechannel.law.record import BrokerId
from statechannel.ports import Payload
from tests.history.ingest import material

TTL_S = 300.0
LAST_MS = 253_402_300_799_999
"""The end of the year 9999."""
FIRST_MS = -62_135_596_800_000
"""The beginning of the year 1."""

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
