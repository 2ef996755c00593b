"""What is decoded is what brokers decode: the same records are accepted, with the same values, whatever the bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from math import isnan
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.cluster.audit_log import AuditEntry, Result
from loadmanager.decisions.codec import NewerDecision
from loadmanager.decisions.codec import decode as decode_decision
from loadmanager.decisions.record import DecisionRecord, summary_of
from loadmanager.history.ingest.records import DECODED, decoded
from loadmanager.history.schemas import RAW
from loadmanager.model.load import BrokerLoadData, TopBundlesLoadData, decode_broker_load, decode_top_bundles
from tests.history.decoding.records import as_json, broker_loads, damaged, decisions, sealed, top_bundles

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = 4 * 10**12
"""The latest time that a record can have: the log takes all of them a day before."""

APPENDED = EPOCH + timedelta(milliseconds=LAST_MS, days=-1)
LONG = range(-(2**63), 2**63)


def decode(
    topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
) -> list[dict[str, Any]]:
    """The rows of DECODED that records of a topic give, one a record."""
    count = len(values)
    columns = {
        "topic": pa.array([topic] * count, pa.string()),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "key": pa.array([b"b1"] * count if keys is None else keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "appended_at": pa.array([APPENDED] * count, pa.timestamp("us", "UTC")),
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=to_arrow_schema(RAW))
    found = list(decoded([batch]))
    assert all(each.schema == to_arrow_schema(DECODED) for each in found)
    return [row for each in found for row in each.to_pylist()]


def fits(*numbers: int, at_ms: int) -> bool:
    """Whether 64 bits hold the numbers, and the time can be true."""
    return all(number in LONG for number in numbers) and 0 <= at_ms <= LAST_MS


def same(found: object, expected: object) -> bool:
    """Equal, where not-a-number equals itself."""
    match found, expected:
        case dict(), dict():
            return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in found)
        case list(), list():
            return len(found) == len(expected) and all(map(same, found, expected))
        case float(), float():
            return found == expected or (isnan(found) and isnan(expected))
        case _:
            return found == expected


def check(
    topic: str,
    column: str,
    values: Sequence[bytes],
    production: Callable[[bytes], Any],
    expected: Callable[[Any], tuple[bool, dict[str, Any]]],
) -> None:
    rows = decode(topic, values)
    assert [row["offset"] for row in rows] == list(range(len(values)))
    for value, row in zip(values, rows, strict=True):
        try:
            record = production(value)
        except Exception as error:  # noqa: BLE001 - as brokers do
            kind = "newer" if isinstance(error, NewerDecision) else "corrupt"
            assert (row["kind"], row[column], row["value"]) == (kind, None, value)
            assert row["reason"]
            continue
        held, content = expected(record)
        if held:
            assert (row["kind"], row["reason"], row["value"]) == (None, None, None)
            assert same(row[column], content)
        else:
            assert (row["kind"], row[column], row["value"]) == ("corrupt", None, value)
            assert re.search("cannot be held by its column|its time is", row["reason"])


def cost(load: Any) -> dict[str, Any]:
    names = (
        "keys",
        "sessions",
        "in_rate_msg_s",
        "out_rate_msg_s",
        "in_rate_bytes_s",
        "out_rate_bytes_s",
        "cpu_percent",
    )
    return {name: getattr(load, name) for name in names}


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def broker_load(record: BrokerLoadData) -> tuple[bool, dict[str, Any]]:
    held = fits(record.bundles, record.keys, record.sessions, at_ms=record.sampled_ms)
    row = msgspec.structs.asdict(record)
    broker, sampled_ms, _ = row.pop("broker"), row.pop("sampled_ms"), row.pop("io")
    row["capacity"] = list(row["capacity"].items())
    return held, row | {
        "broker": broker.name,
        "incarnation": broker.incarnation,
        "at": at(sampled_ms) if held else None,
    }


def top(record: TopBundlesLoadData) -> tuple[bool, dict[str, Any]]:
    loads = [record.total, *(each.load for each in record.bundles)]
    held = fits(record.count, *(n for load in loads for n in (load.keys, load.sessions)), at_ms=record.sampled_ms)
    return held, {
        "broker": record.broker.name,
        "incarnation": record.broker.incarnation,
        "at": at(record.sampled_ms) if held else None,
        "count": record.count,
        "total": cost(record.total),
        "bundles": [
            {"rank": n, "bundle": str(each.bundle), "namespace": each.bundle.namespace, "load": cost(each.load)}
            for n, each in enumerate(record.bundles)
        ],
    }


def decision(record: DecisionRecord) -> tuple[bool, dict[str, Any]]:
    held = fits(record.policies_revision, at_ms=record.at_ms)
    row = msgspec.structs.asdict(summary_of(record, 0))
    del row["offset"], row["at_ms"]
    made = [
        {
            "ordinal": n,
            "bundle": str(move.bundle),
            "source": move.source.name,
            "destination": None if move.destination is None else move.destination.name,
            "stage": move.stage.value,
            "reason": move.reason,
            "gain": move.gain if move.gain != 0 else None,
            "outcome": record.outcomes[n].outcome if n < len(record.outcomes) else None,
            "detail": record.outcomes[n].detail if n < len(record.outcomes) else None,
        }
        for n, move in enumerate(record.decision.moves)
    ]
    return held, row | {
        "epoch": record.epoch,
        "round": record.round,
        "at": at(record.at_ms) if held else None,
        "settings": msgspec.json.encode(record.settings).decode(),
        "digest": record.digest,
        "policies_revision": record.policies_revision,
        "made": made,
    }


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(damaged(as_json(broker_loads)), min_size=1, max_size=4))
def test_load_reports_of_brokers_are_what_brokers_read(values):
    check("load-brokers", "broker_load", values, decode_broker_load, broker_load)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(damaged(as_json(top_bundles)), min_size=1, max_size=4))
def test_load_reports_of_bundles_are_what_the_leader_reads(values):
    check("load-bundles", "top_bundles", values, decode_top_bundles, top)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(damaged(decisions), min_size=1, max_size=4))
def test_decisions_are_what_the_leader_reads(values):
    check("decisions", "decision", values, decode_decision, decision)


TOKENS = (
    "1",
    "-1",
    "1.5",
    "1.0",
    "1e3",
    "1e999",
    "01",
    "1.",
    "+1",
    '"5"',
    "'5'",
    '""',
    "true",
    "null",
    "NaN",
    "[]",
    "{}",
)
FIELDS = ("sampled_ms", "keys", "count", "cpu_percent", "capacity", "bundles", "total", "broker", "spread", "new")


def test_each_field_takes_the_same_tokens_as_brokers_take():
    texts = [f'{{"broker":["b1",1],"sampled_ms":5,"{field}":{token}}}' for field in FIELDS for token in TOKENS]
    inner = ('"total":{"in_rate_msg_s":%s}', '"bundles":[[["t/n",0,%s],{}]]', '"bundles":[[["t/n",0,1],{"keys":%s}]]')
    texts += [f'{{"broker":["b1",1],"sampled_ms":5,{form % token}}}' for form in inner for token in TOKENS]
    values = [text.encode() for text in texts]
    check("load-brokers", "broker_load", values, decode_broker_load, broker_load)
    check("load-bundles", "top_bundles", values, decode_top_bundles, top)


@pytest.mark.parametrize(
    "ms", [-(2**63), -62_135_596_800_000, -1, 0, LAST_MS, LAST_MS + 1, 253_402_300_799_999, 10**30]
)
def test_times_are_taken_from_1970_to_a_day_after_the_log_took_the_record(ms):
    value = b'{"broker":["b1",1],"sampled_ms":%d}' % ms
    check("load-brokers", "broker_load", [value], decode_broker_load, broker_load)


def test_one_record_that_does_not_fit_takes_no_other_with_it():
    good = b'{"broker":["b1",1],"sampled_ms":5}'
    rows = decode("load-brokers", [good, good.replace(b"5", b"9" * 30), b'{"broker":["b1",1],"sampled_ms":6}'])
    assert [row["kind"] for row in rows] == [None, "corrupt", None]
    assert [row["broker_load"] and row["broker_load"]["at"] for row in rows] == [at(5), None, at(6)]
    assert "its time is more than a day after the log took it" in rows[1]["reason"]


def test_a_deletion_is_no_record_and_no_fault():
    [row] = decode("load-brokers", [None])
    assert (row["kind"], row["broker_load"], row["key"]) == (None, None, b"b1")
    [row] = decode("group-lag", [None], [b"shop/orders/billing\norders\n0"])
    assert (row["kind"], row["group_lag"]) == (None, None), "the group is gone"


@pytest.mark.parametrize("key", [None, b"", b"\xff"])
def test_a_load_report_without_a_brokers_name_is_unreadable(key):
    [row] = decode("load-brokers", [b'{"broker":["b1",1],"sampled_ms":5}'], [key])
    assert (row["kind"], row["reason"]) == ("corrupt", "its key is not a valid name")


def test_a_decision_of_a_later_release_is_kept_for_that_one():
    [row] = decode("decisions", [sealed(b"whatever", version=2)])
    assert row["kind"] == "newer"
    assert "ask a newer broker" in row["reason"]


def test_the_channel_is_not_decoded_here():
    assert decode("bundle-state", [b"whatever"]) == []


def test_an_audit_entry_becomes_a_row():
    state = {"owner": "b:1", "cuts": [1, 2]}
    entry = AuditEntry(
        id="a-1", at_ms=5, principal="ann", how="token", address="10.0.0.1", broker="b:1", action="unload_bundle",
        about="t/n/0x00000000_0x80000000", namespace="t/n", asked={"force": True}, before=state, result=Result.REFUSED,
        status=409, detail="it moves",
    )  # fmt: skip
    bare = AuditEntry(
        id="a-2",
        at_ms=6,
        principal="ben",
        how="",
        address="",
        broker="b:1",
        action="pause",
        result=Result.DONE,
        status=200,
    )  # fmt: skip
    first, second = decode("audit", [msgspec.json.encode(entry), msgspec.json.encode(bare)])
    fields = ("id", "principal", "how", "address", "broker", "action", "about", "namespace", "status", "detail")
    for row, asked in ((first["audit"], entry), (second["audit"], bare)):
        assert {name: row[name] for name in fields} == {name: getattr(asked, name) for name in fields}
        assert (row["at"], row["result"]) == (at(asked.at_ms), asked.result.value)
        found = {name: None if row[name] is None else json.loads(row[name]) for name in ("asked", "before", "after")}
        assert found == {name: getattr(asked, name) for name in found}
    [row] = decode("audit", [b'{"at_ms":5,"principal":"ann"}'])
    assert (row["kind"], row["audit"]) == ("corrupt", None)


def test_topics_to_come_have_a_format():
    lag = b'{"at_ms":5,"group":"g","topic":"t","queue":3,"lag":7,"consumer":"c","generation":2}'
    [row] = decode("group-lag", [lag])
    columns = {"group": "g", "topic": "t", "queue": 3, "lag": 7, "consumer": "c", "generation": 2}
    assert row["group_lag"] == {"at": at(5), **columns}
    for free in (lag.replace(b'"c"', b'""'), lag.replace(b'"consumer":"c",', b"")):
        assert decode("group-lag", [free])[0]["group_lag"] == {"at": at(5), **columns, "consumer": None}
    [row] = decode("group-lag", [lag.replace(b"3", str(2**31).encode())])
    assert (row["kind"], row["group_lag"]) == ("corrupt", None)
