"""What raw records become on Spark: rows of each table, by the one pass of decoding that several tables share."""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from loadmanager.cluster.audit_log import AuditEntry, Result
from loadmanager.decisions.codec import encode
from loadmanager.decisions.record import DecisionRecord, Outcome
from loadmanager.history.ingest import records
from loadmanager.history.schemas import QUARANTINE, RAW, TABLES
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import BrokerLoadData, LoadedBundle, TopBundlesLoadData
from loadmanager.strategies.rebalancing.decision import Decision, Move
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

B1, B2 = BrokerId("b1:1", 7), BrokerId("b2:1", 8)
LOW, HIGH = Bundle("t/n", 0, 2**31), Bundle("t/n", 2**31, 2**32 - 1)
AT_MS = 1_700_000_000_000
AT, APPENDED = datetime.fromtimestamp(AT_MS / 1000, UTC), datetime(2023, 11, 15, 1, tzinfo=UTC)

REPORT = BrokerLoadData(B1, AT_MS, cpu_percent=12.5, bundles=2, capacity={"cpu": 4.0})
TOP = TopBundlesLoadData(
    B1,
    AT_MS,
    (LoadedBundle(HIGH, BundleLoad(keys=3, cpu_percent=9.0)), LoadedBundle(LOW, BundleLoad(in_rate_msg_s=1.5))),
    BundleLoad(keys=5, in_rate_msg_s=2.5),
    count=4,
)
ROUND = DecisionRecord(
    id="3.17",
    at_ms=AT_MS,
    leader=B2,
    strategy="transfer",
    settings={"balancing_tolerance": "default"},
    decision=Decision(
        (Move(LOW, B1, B2, "less", gain=0.25), Move(HIGH, B1, None, "drain")), "uneven", spread_before=0.5
    ),
    outcomes=(Outcome("begun"),),
)
ASKED = AuditEntry(
    id="a-1", at_ms=AT_MS, principal="ann", how="token", address="", broker="b1:1", action="drain", asked={"by": 1},
    result=Result.DONE, status=202,
)  # fmt: skip
RECORDS = [
    ("load-brokers", b"b1:1", msgspec.json.encode(REPORT)),
    ("load-brokers", b"b1:1", None),
    ("load-brokers", b"b1:1", b"damaged"),
    ("load-bundles", b"b1:1", msgspec.json.encode(TOP)),
    ("load-bundles", b"b1:1", None),
    ("decisions", None, encode(ROUND)),
    ("audit", None, msgspec.json.encode(ASKED)),
    ("group-lag", None, msgspec.json.encode({"at_ms": AT_MS, "group": "g", "topic": "t", "queue": 1, "lag": 2})),
    ("bundle-state", b"x", b"not ours to read"),
]


@pytest.fixture(scope="module")
def raw(spark: SparkSession) -> DataFrame:
    rows = [(topic, 0, offset, key, value, APPENDED) for offset, (topic, key, value) in enumerate(RECORDS)]
    return spark.createDataFrame(rows, RAW)


@pytest.fixture(scope="module")
def rows(raw: DataFrame) -> Generator[DataFrame]:
    """Decoded once."""
    kept = records.decode(raw).persist()
    yield kept
    kept.unpersist()


def table(name: str, rows: DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, in order, without what every row has."""
    found = getattr(records, name)(rows)
    assert found.schema.simpleString() == TABLES[name].simpleString()
    ordered = sorted(
        found.collect(), key=lambda row: (row.offset, row.asDict().get("rank", row.asDict().get("ordinal")))
    )
    return [
        {key: value for key, value in row.asDict().items() if key not in ("partition", "appended_at")}
        for row in ordered
    ]


def test_each_record_is_rows_of_its_tables(rows):
    report, gone = table("broker_load", rows)
    assert (report["broker"], report["incarnation"], report["cpu_percent"], report["bundles"]) == ("b1:1", 7, 12.5, 2)
    assert (report["capacity"], report["keys"]) == ({"cpu": 4.0}, 0)
    assert report["at"].astimezone(UTC) == AT
    assert report["day"] == AT.date()
    assert (gone["broker"], gone["day"], gone["at"], gone["incarnation"]) == ("b1:1", APPENDED.date(), None, None)

    hot, cold = table("bundle_load", rows)
    assert (hot["bundle"], hot["namespace"], hot["rank"], hot["keys"], hot["cpu_percent"]) == (
        str(HIGH),
        "t/n",
        0,
        3,
        9.0,
    )
    assert (cold["bundle"], cold["rank"], cold["in_rate_msg_s"], cold["broker"]) == (str(LOW), 1, 1.5, "b1:1")
    [total] = table("bundle_total", rows)
    assert (total["count"], total["keys"], total["in_rate_msg_s"], total["offset"]) == (4, 5, 2.5, 3)

    [decision] = table("decision", rows)
    assert (decision["id"], decision["epoch"], decision["round"], decision["leader"]) == ("3.17", 3, 17, "b2:1")
    assert (decision["moves"], decision["begun"], decision["spread_before"]) == (2, 1, 0.5)
    first, second = table("move", rows)
    assert (first["decision"], first["bundle"], first["destination"], first["gain"]) == ("3.17", str(LOW), "b2:1", 0.25)
    assert (first["outcome"], first["ordinal"]) == ("begun", 0)
    assert (second["destination"], second["gain"], second["outcome"], second["ordinal"]) == (None, None, None, 1)

    [audit] = table("audit", rows)
    assert (audit["principal"], audit["action"], audit["asked"], audit["before"]) == ("ann", "drain", '{"by":1}', None)
    assert (audit["result"], audit["status"], audit["offset"]) == ("done", 202, 6)
    [lag] = table("group_lag", rows)
    assert (lag["group"], lag["topic"], lag["queue"], lag["lag"]) == ("g", "t", 1, 2)


def test_what_cannot_be_read_is_kept_as_it_is_with_the_reason(rows):
    bad = records.unreadable(rows)
    assert bad.schema.simpleString() == QUARANTINE.simpleString()
    [row] = bad.collect()
    assert (row.topic, row.offset, bytes(row.key), bytes(row.value)) == ("load-brokers", 2, b"b1:1", b"damaged")
    assert (row.kind, row.day) == ("corrupt", APPENDED.date())
    assert "malformed" in row.reason


def test_raw_records_give_the_same_rows_as_decoded_ones(raw, rows):
    assert table("bundle_total", raw) == table("bundle_total", rows)
