"""What a record becomes: rows of the silver tables, or of the quarantine with a kind and a reason. Vectorised.

A record's topic selects its decoder, which is the one that brokers use. A record that it refuses is unreadable, and is
skipped, as in brokers. Records of the channel are left out: they mean something only in their order (`verdicts.py`). As
in load reports, unknown fields are ignored.

`decoded` reads each record once, a batch at a time. `tables` makes each table's rows of that, for tasks that write the
tables themselves; as DataFrames `broker_load`, `bundle_load`, … do, from the result of `decode` or from raw records. To
get several tables from the same records, decode first and keep the result.

A `Shape` says what a record becomes: named columns, each a function of the records. A value that its column cannot hold
(a number beyond 64 bits) makes its record unreadable, and no other. `utc.refusal` has checked times before.

Spark's `from_json` is not better. Measured on two busy cores, Parquet to nothing, best of three: for 200,000 reports of
brokers it took 9.8 s, this code 27 s (reading alone: 1.7 s). For 20,000 reports of 25 bundles each, which are most of
the bytes, it took 71 s, this code 47 s. It also accepts reports that brokers refuse: text or fractions as counts (as
0), a missing time, bytes behind the end, invalid UTF-8.
"""

# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (pyarrow ships no types)
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from loadmanager.cluster.audit_log import AUDIT_TOPIC, AuditEntry
from loadmanager.consumers.coordinator.lag_topic import GROUP_LAG_TOPIC, GroupLagRecord
from loadmanager.decisions.codec import NewerDecision
from loadmanager.decisions.codec import decode as decode_decision
from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.decisions.record import BEGUN, DecisionRecord, Outcome
from loadmanager.history import utc
from loadmanager.history.schemas import QUARANTINE, RAW, TABLES
from loadmanager.history.tasks import unsearched
from loadmanager.history.utc import refusal
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC, decode_broker_load, decode_top_bundles

_ORIGIN = ("partition", "offset", "appended_at")
TIME = pa.timestamp("us", "UTC")

ToColumn = Callable[[Sequence[Any]], pa.Array]
Value = Callable[[Any], Any]
"""A record's value for one column."""


class Shape(msgspec.Struct, frozen=True):
    """What records become: a struct of columns."""

    columns: Mapping[str, ToColumn]

    def of(self, records: Sequence[Any]) -> pa.StructArray:
        """One row per record. Raises OverflowError, TypeError, ValueError for a value that its column cannot hold."""
        arrays = [column(records) for column in self.columns.values()]
        return pa.StructArray.from_arrays(arrays, names=list(self.columns))

    def refusal(self, record: Any) -> str | None:
        """Why this record cannot be a row, None if it can."""
        for name, column in self.columns.items():
            try:
                column([record])
            except (OverflowError, TypeError, ValueError) as error:
                return f"{name} cannot be held by its column: {error}"
        return None


def plain(kind: pa.DataType, value: Value) -> ToColumn:
    """Values as they are."""
    return lambda records: pa.array(list(map(value, records)), kind)


number, small = partial(plain, pa.int64()), partial(plain, pa.int32())
decimal, text, flag = partial(plain, pa.float64()), partial(plain, pa.string()), partial(plain, pa.bool_())


def attributes(column: Callable[[Value], ToColumn], *names: str) -> dict[str, ToColumn]:
    """Columns of one kind, each of the attribute of its name."""
    return {name: column(attrgetter(name)) for name in names}


def time(value_ms: Value) -> ToColumn:
    """Milliseconds since 1970."""
    return lambda records: pa.array([value_ms(record) * 1000 for record in records], pa.int64()).cast(TIME)


def mapping(value: Value) -> ToColumn:
    """Names with numbers."""
    kind = pa.map_(pa.string(), pa.float64())
    return lambda records: pa.array([list(value(record).items()) for record in records], kind)


def inside(value: Value, shape: Shape) -> ToColumn:
    """A struct within the struct."""
    return lambda records: shape.of(list(map(value, records)))


def listed(values: Value, shape: Shape, numbered: str = "") -> ToColumn:
    """A list of structs; `numbered` names an additional first column that counts from 0."""

    def column(records: Sequence[Any]) -> pa.Array:
        found = list(map(values, records))
        ends = np.zeros(len(found) + 1, np.int32)
        np.cumsum(list(map(len, found)), out=ends[1:])
        flat = shape.of(list(chain.from_iterable(found)))
        if numbered:
            numbers = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends[:-1], np.diff(ends))
            flat = pa.StructArray.from_arrays([pa.array(numbers), *flat.flatten()], [numbered, *shape.columns])
        return pa.ListArray.from_arrays(pa.array(ends), flat)

    return column


class Texts(dict[Any, str]):
    """Cached texts of hashable things; empties itself at `most` entries."""

    def __init__(self, made: Callable[[Any], str], most: int = 65_536) -> None:
        super().__init__()
        self._made = made
        self._most = most

    def __missing__(self, thing: Any) -> str:
        if len(self) >= self._most:
            self.clear()
        self[thing] = made = self._made(thing)
        return made


def repeated(made: Callable[[Any], str], of: Value) -> ToColumn:
    """Texts of values that recur, such as names: each is made once."""
    texts = Texts(made)
    return lambda records: pa.array(list(map(texts.__getitem__, map(of, records))), pa.string())


_RATE_NAMES = ("in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s")
_WHOSE = {
    "broker": text(attrgetter("broker.name")),
    "incarnation": number(attrgetter("broker.incarnation")),
    "at": time(attrgetter("sampled_ms")),
}
_COST = {
    **attributes(number, "keys", "sessions"),
    **attributes(decimal, *_RATE_NAMES, "cpu_percent"),
}

BROKER_LOAD = Shape(
    {
        **_WHOSE,
        **attributes(decimal, "cpu_percent", "memory_percent", *_RATE_NAMES),
        **attributes(number, "bundles", "keys", "sessions"),
        "capacity": mapping(attrgetter("capacity")),
        **attributes(decimal, "host_cpu_percent", "host_memory_percent"),
    }
)


_BUNDLE = Shape(
    {
        "bundle": repeated(str, attrgetter("bundle")),
        "namespace": text(attrgetter("bundle.namespace")),
        "load": inside(attrgetter("load"), Shape(_COST)),
    }
)
TOP_BUNDLES = Shape(
    {
        **_WHOSE,
        "count": number(attrgetter("count")),
        "total": inside(attrgetter("total"), Shape(_COST)),
        "bundles": listed(attrgetter("bundles"), _BUNDLE, numbered="rank"),
    }
)


_NONE = Outcome("")


class _Move(msgspec.Struct, frozen=True):
    """One row of `move`."""

    ordinal: int
    bundle: str
    source: str
    destination: str | None
    stage: str
    reason: str
    gain: float | None
    outcome: str | None
    detail: str | None


def _moves(record: DecisionRecord) -> list[_Move]:
    """The moves of a round.

    Outcome and detail are null where the round was cut off; a gain of 0 means that the strategy gave none, and is null.
    """
    moves, outcomes = record.decision.moves, record.outcomes
    known = [*outcomes[: len(moves)], *[_NONE] * (len(moves) - len(outcomes))]
    return [
        _Move(
            ordinal=ordinal,
            bundle=str(move.bundle),
            source=move.source.name,
            destination=move.destination.name if move.destination else None,
            stage=str(move.stage),
            reason=move.reason,
            gain=move.gain or None,
            outcome=outcome.outcome or None,
            detail=outcome.detail if outcome.outcome else None,
        )
        for ordinal, (move, outcome) in enumerate(zip(moves, known, strict=True))
    ]


def _begun(record: DecisionRecord) -> int:
    return sum(outcome.outcome == BEGUN for outcome in record.outcomes)


def _settings(record: DecisionRecord) -> str:
    return msgspec.json.encode(record.settings, enc_hook=str).decode()


DECISION = Shape(
    {
        "id": text(attrgetter("id")),
        **attributes(number, "epoch", "round"),
        "at": time(attrgetter("at_ms")),
        "leader": text(attrgetter("leader.name")),
        "strategy": text(attrgetter("strategy")),
        "reason": text(attrgetter("decision.reason")),
        "moves": small(lambda record: len(record.decision.moves)),
        "begun": small(_begun),
        **{name: decimal(attrgetter(f"decision.{name}")) for name in ("spread_before", "spread_after")},
        "settings": text(_settings),
        "digest": text(attrgetter("digest")),
        "has_model": flag(lambda record: record.model is not None),
        "policies_revision": number(attrgetter("policies_revision")),
        "made": listed(
            _moves,
            Shape(
                {
                    "ordinal": small(attrgetter("ordinal")),
                    **attributes(text, "bundle", "source", "destination", "stage", "reason"),
                    "gain": decimal(attrgetter("gain")),
                    **attributes(text, "outcome", "detail"),
                }
            ),
        ),
    }
)


def _as_json(name: str, entry: AuditEntry) -> str | None:
    """What an entry says of the thing, which has another shape for each action; None if it says nothing."""
    value = getattr(entry, name)
    return None if value is None else msgspec.json.encode(value).decode()


_AT = {"at": time(attrgetter("at_ms"))}
AUDIT = Shape(
    {
        **_AT,
        **attributes(text, "id", "principal", "how", "address", "broker", "action", "about", "namespace"),
        **{name: text(partial(_as_json, name)) for name in ("asked", "before", "after")},
        "result": text(lambda entry: entry.result.value),
        "status": small(attrgetter("status")),
        "detail": text(attrgetter("detail")),
    }
)
GROUP_LAG = Shape(
    {
        **_AT,
        **attributes(text, "group", "topic"),
        "queue": small(attrgetter("queue")),
        "lag": number(attrgetter("lag")),
        "consumer": text(lambda lag: lag.consumer or None),
        "generation": number(attrgetter("generation")),
    }
)

decode_audit = msgspec.json.Decoder(AuditEntry).decode
decode_group_lag = msgspec.json.Decoder(GroupLagRecord).decode


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


def _type_fields(table: str, without: Sequence[str] = ()) -> list[StructField]:
    apart = {"partition", "offset", "appended_at", "day", *without}
    return [field for field in TABLES[table].fields if field.name not in apart]


_LOAD_NAMES = ("keys", "sessions", "in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s")
_LOAD = StructType([TABLES["bundle_load"][name] for name in (*_LOAD_NAMES, "cpu_percent")])
_BUNDLE_TYPE = StructType(
    [*(TABLES["bundle_load"][name] for name in ("rank", "bundle", "namespace")), StructField("load", _LOAD)]
)
_TOTAL = [TABLES["bundle_total"][name] for name in ("broker", "incarnation", "at", "count")]
_STRUCTS = {
    "broker_load": StructType(_type_fields("broker_load")),
    "top_bundles": StructType([*_TOTAL, StructField("total", _LOAD), StructField("bundles", ArrayType(_BUNDLE_TYPE))]),
    "decision": StructType(
        [
            *_type_fields("decision"),
            StructField("made", ArrayType(StructType(_type_fields("move", ("decision", "at"))))),
        ]
    ),
    "audit": StructType(_type_fields("audit")),
    "group_lag": StructType(_type_fields("group_lag")),
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
            read.refused[row] = (CORRUPT, "its key is not a valid name")
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


Columns = dict[str, Any]


def tables(decoded: pa.RecordBatch) -> Iterator[tuple[str, Columns]]:
    """Each table's rows, from a batch of `records.DECODED` with records of one topic."""
    column = FORMATS[decoded["topic"][0].as_py()].column
    bad = decoded["kind"].is_valid()
    if pc.any(bad).as_py():
        refused = decoded.filter(bad)
        yield "quarantine", {name: refused[name] for name in (*RAW.names, "kind", "reason")}
        decoded = decoded.filter(pc.invert(bad))
    if column == "broker_load":
        whole = _flat(decoded, column)
        whole["broker"] = pc.coalesce(whole["broker"], decoded["key"].cast(pa.string()))  # of a deletion
        yield "broker_load", whole
        return
    there = decoded.filter(decoded[column].is_valid())
    yield from _MADE.get(column, _alone)(column, _flat(there, column))


def _alone(table: str, whole: Columns) -> Iterator[tuple[str, Columns]]:
    yield table, whole


def _of_bundles(_: str, whole: Columns) -> Iterator[tuple[str, Columns]]:
    bundles, total = whole.pop("bundles"), whole.pop("total")
    yield "bundle_total", whole | _fields(total)
    one = _each(bundles, {name: whole[name] for name in (*_ORIGIN, "broker", "incarnation", "at")})
    yield "bundle_load", one | _fields(one.pop("load"))


def _of_decisions(table: str, whole: Columns) -> Iterator[tuple[str, Columns]]:
    made = whole.pop("made")
    yield table, whole
    yield "move", _each(made, {name: whole[name] for name in (*_ORIGIN, "at")} | {"decision": whole["id"]})


_MADE: Mapping[str, Callable[[str, Columns], Iterator[tuple[str, Columns]]]] = {
    "top_bundles": _of_bundles,
    "decision": _of_decisions,
}


def _flat(decoded: pa.RecordBatch, column: str) -> Columns:
    """Position, and the fields of a column."""
    return {name: decoded[name] for name in _ORIGIN} | _fields(decoded[column])


def _fields(struct: Any) -> Columns:
    return dict(zip(struct.type.names, struct.flatten(), strict=True))


def _each(lists: Any, whose: Columns) -> Columns:
    """One row for each entry of the lists, beside columns of its record."""
    parents = pc.list_parent_indices(lists)
    return {name: values.take(parents) for name, values in whose.items()} | _fields(lists.flatten())


def decode(raw: DataFrame) -> DataFrame:
    """The records of `raw` (RAW) that have a decoder, as DECODED."""
    return raw.mapInArrow(decoded, DECODED)


def broker_load(rows: DataFrame) -> DataFrame:
    """Load reports of brokers. A deletion is a row with `broker` alone; its `day` is of `appended_at`."""
    records = _as_decoded(rows).where((f.col("topic") == BROKERS_TOPIC) & f.col("kind").isNull())
    values = records.select(*_ORIGIN, "broker_load.*", f.col("key").cast("string"))
    return _table("broker_load", values.withColumn("broker", f.coalesce("broker", "key")))


def bundle_load(rows: DataFrame) -> DataFrame:
    """The bundles of load reports, in each report's order."""
    whose = [f.col(f"top_bundles.{name}") for name in ("broker", "incarnation", "at")]
    each = _as_decoded(rows).select(*_ORIGIN, *whose, f.explode("top_bundles.bundles").alias("one"))
    return _table("bundle_load", each.select("*", "one.*", "one.load.*"))


def bundle_total(rows: DataFrame) -> DataFrame:
    """The sums of load reports."""
    return _table("bundle_total", _of(rows, "top_bundles").select("*", "total.*"))


def decision(rows: DataFrame) -> DataFrame:
    """The leader's rounds."""
    return _table("decision", _of(rows, "decision"))


def move(rows: DataFrame) -> DataFrame:
    """The moves of the leader's rounds."""
    whose = [f.col("decision.id").alias("decision"), f.col("decision.at").alias("at")]
    each = _as_decoded(rows).select(*_ORIGIN, *whose, f.explode("decision.made").alias("one"))
    return _table("move", each.select("*", "one.*"))


def audit(rows: DataFrame) -> DataFrame:
    """Who asked for which change, and what became of it."""
    return _table("audit", _of(rows, "audit"))


def group_lag(rows: DataFrame) -> DataFrame:
    """How far consumer groups are behind."""
    return _table("group_lag", _of(rows, "group_lag"))


def unreadable(rows: DataFrame) -> DataFrame:
    """The records that no decoder could read, unchanged, with kind and reason, for the quarantine."""
    bad = _as_decoded(rows).where(f.col("kind").isNotNull())
    return bad.withColumn("day", utc.day_of(f.col("appended_at"))).select(*QUARANTINE.names)


def sizes() -> dict[str, Column]:
    """By table, how many rows a decoded record becomes."""
    readable = f.col("kind").isNull()
    each = {
        "bundle_load": f.size("top_bundles.bundles"),
        "move": f.size("decision.made"),
    }
    one = {
        "broker_load": (f.col("topic") == BROKERS_TOPIC) & readable,
        "bundle_total": f.col("top_bundles").isNotNull(),
        **{table: f.col(table).isNotNull() for table in ("decision", "audit", "group_lag")},
    }
    return {table: f.when(size > 0, size).otherwise(0) for table, size in each.items()} | {
        table: there.cast("int") for table, there in one.items()
    }


def _as_decoded(rows: DataFrame) -> DataFrame:
    return rows if "kind" in rows.columns else decode(rows)


def _of(rows: DataFrame, column: str) -> DataFrame:
    """The records with a value in one column of DECODED: their position, and the column's fields."""
    return _as_decoded(rows).where(f.col(column).isNotNull()).select(*_ORIGIN, f"{column}.*")


def _table(name: str, values: DataFrame) -> DataFrame:
    return values.withColumn("day", utc.day_of(f.coalesce("at", "appended_at"))).select(*TABLES[name].names)
