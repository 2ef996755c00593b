"""From raw records to decoded ones, a batch at a time; an unreadable record gets a kind and a reason.

A record's topic selects its decoder. A record that its decoder refuses is unreadable, and is skipped, as in brokers.
Records of the channel are left out: they mean something only in their order.
"""

# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (pyarrow ships no types)
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from loadmanager.decisions.codec import NewerDecision
from loadmanager.decisions.codec import decode as decode_decision
from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.history.cycles import unsearched
from loadmanager.history.decoding.columns import Shape
from loadmanager.history.decoding.decisions import DECISION
from loadmanager.history.decoding.later import AUDIT, GROUP_LAG, decode_audit, decode_group_lag
from loadmanager.history.decoding.loads import BROKER_LOAD, TOP_BUNDLES
from loadmanager.history.plausible import refusal
from loadmanager.history.schemas import RAW, TABLES
from loadmanager.history.sources.topics import AUDIT_TOPIC, GROUP_LAG_TOPIC
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC, decode_broker_load, decode_top_bundles

ROWS_AT_ONCE = 2_000
"""So many records, with some thirty objects each, fit into a core's cache."""

CORRUPT, NEWER = "corrupt", "newer"


class Format(msgspec.Struct, frozen=True):
    """How the records of a topic are read, and what they become.

    `at_ms`: a record's time. `keyed`: the key must be a name; a record without a value deletes it.
    """

    column: str
    decode: Callable[[bytes], Any]
    shape: Shape
    at_ms: Callable[[Any], int] = attrgetter("at_ms")
    keyed: bool = False


FORMATS: Mapping[str, Format] = {
    BROKERS_TOPIC: Format("broker_load", decode_broker_load, BROKER_LOAD, attrgetter("sampled_ms"), keyed=True),
    BUNDLES_TOPIC: Format("top_bundles", decode_top_bundles, TOP_BUNDLES, attrgetter("sampled_ms"), keyed=True),
    DECISIONS_TOPIC: Format("decision", decode_decision, DECISION),
    AUDIT_TOPIC: Format("audit", decode_audit, AUDIT),
    GROUP_LAG_TOPIC: Format("group_lag", decode_group_lag, GROUP_LAG, keyed=True),
}


def _fields(table: str, without: Sequence[str] = ()) -> list[StructField]:
    apart = {"partition", "offset", "appended_at", "day", *without}
    return [field for field in TABLES[table].fields if field.name not in apart]


_LOAD_NAMES = ("keys", "sessions", "in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s")
_LOAD = StructType([TABLES["bundle_load"][name] for name in (*_LOAD_NAMES, "cpu_percent")])
_BUNDLE = StructType(
    [*(TABLES["bundle_load"][name] for name in ("rank", "bundle", "namespace")), StructField("load", _LOAD)]
)
_TOTAL = [TABLES["bundle_total"][name] for name in ("broker", "incarnation", "at", "count")]
_STRUCTS = {
    "broker_load": StructType(_fields("broker_load")),
    "top_bundles": StructType([*_TOTAL, StructField("total", _LOAD), StructField("bundles", ArrayType(_BUNDLE))]),
    "decision": StructType(
        [*_fields("decision"), StructField("made", ArrayType(StructType(_fields("move", ("decision", "at")))))]
    ),
    "audit": StructType(_fields("audit")),
    "group_lag": StructType(_fields("group_lag")),
}
DECODED = StructType(
    [
        *RAW.fields,
        StructField("kind", StringType()),
        StructField("reason", StringType()),
        *(StructField(name, kind) for name, kind in _STRUCTS.items()),
    ]
)
"""A raw record, and the one column of its topic that is not null. Only unreadable records keep `value`, and have `kind`
and `reason`. A deletion has neither."""

_SCHEMA = to_arrow_schema(DECODED)


def decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: batches of RAW as batches of DECODED, without the records of other topics."""
    with unsearched():
        for batch in batches:
            for topic in batch["topic"].unique().to_pylist():
                if topic in FORMATS:
                    rows = batch.filter(pc.field("topic") == topic)
                    for begin in range(0, rows.num_rows, ROWS_AT_ONCE):
                        yield _decoded(rows.slice(begin, ROWS_AT_ONCE), FORMATS[topic])


class _Read(msgspec.Struct):
    """A batch after reading: readable records with their rows, and why the others could not be read."""

    records: list[Any]
    rows: list[int]
    refused: dict[int, tuple[str, str]]


def _decoded(batch: pa.RecordBatch, form: Format) -> pa.RecordBatch:
    keys = batch["key"].to_pylist() if form.keyed else None
    values = batch["value"].to_pylist()
    read = _read(keys, values, batch["appended_at"].cast(pa.int64()).to_pylist(), form)
    found = _fitting(read, form.shape)
    count = batch.num_rows
    columns: dict[str, pa.Array] = {name: batch[name] for name in RAW.names if name != "value"}
    columns[form.column] = found if len(found) == count else found.take(_places(read.rows, count))
    if read.refused:
        columns["value"] = pa.array([value if row in read.refused else None for row, value in enumerate(values)])
        refusals = [read.refused.get(row, (None, None)) for row in range(count)]
        columns["kind"], columns["reason"] = (pa.array([each[part] for each in refusals]) for part in (0, 1))
    arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(count, f.type) for f in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _places(rows: Sequence[int], count: int) -> pa.Array:
    """For each row of the batch the number of its record; null where it has none."""
    places: list[int | None] = [None] * count
    for place, row in enumerate(rows):
        places[row] = place
    return pa.array(places, pa.int64())


def _read(
    keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], appended_us: Sequence[int], form: Format
) -> _Read:
    read = _Read([], [], {})
    for row, value in enumerate(values):
        if keys is not None and not _is_name(keys[row]):
            read.refused[row] = (CORRUPT, "its key is no name")
        elif value is not None:
            try:
                record = form.decode(value)
                why = refusal(form.at_ms(record) * 1000, appended_us[row])
            except NewerDecision as error:
                read.refused[row] = (NEWER, str(error))
            except Exception as error:  # noqa: BLE001 - whatever foreign bytes do to a decoder, the job goes on
                read.refused[row] = (CORRUPT, str(error) or type(error).__name__)
            else:
                if why is None:
                    read.records.append(record)
                    read.rows.append(row)
                else:
                    read.refused[row] = (CORRUPT, why)
        elif keys is None:
            read.refused[row] = (CORRUPT, "it has no value, and there is nothing to delete here")
    return read


def _is_name(key: bytes | None) -> bool:
    try:
        return bool((key or b"").decode())
    except UnicodeDecodeError:
        return False


def _fitting(read: _Read, shape: Shape) -> pa.StructArray:
    """The records as columns; on an error each record is tried by itself, which is slow and rare."""
    try:
        return shape.of(read.records)
    except (OverflowError, TypeError, ValueError):
        reasons = [shape.refusal(record) for record in read.records]
        for row, reason in zip(read.rows, reasons, strict=True):
            if reason is not None:
                read.refused[row] = (CORRUPT, reason)
        read.records = [record for record, reason in zip(read.records, reasons, strict=True) if reason is None]
        read.rows = [row for row, reason in zip(read.rows, reasons, strict=True) if reason is None]
        return shape.of(read.records)
