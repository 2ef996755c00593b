"""Every table of the lakehouse and its columns. A later release adds columns at the end, and takes none away.

`at` is event time (the writer's wall clock), `appended_at` the log's time; both UTC. `topic`, `partition` and `offset`
name the record that a row came from. `day` is the UTC date of `at`, by which the tables are cut. Rates are per second,
loads as `loadmanager.model.load` has them (percentages 0 to 100). A broker is its name and its `incarnation`; a
bundle `tenant/namespace/0x…_0x…`.

Types are written as in SQL, so that readers without Spark have them too; `schemas.py` makes Spark's schemas of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from loadmanager.errors import Invalid

FORMAT = 1
"""Format of the lake as a whole: what the tables mean together, beyond their columns."""

FORMAT_PROPERTY = "loadmanager.format"
"""The property of each table that has it."""

Columns = Mapping[str, str]
"""A table's columns in their order, each with its type in SQL."""

_TEXT, _INT, _LONG, _DOUBLE, _TIME, _DAY, _BYTES = "string", "int", "bigint", "double", "timestamp", "date", "binary"


def _columns(**types: str) -> Columns:
    return types


def _with(first: Columns, **types: str) -> Columns:
    return {**first, **types}


_ORIGIN = _columns(partition=_INT, offset=_LONG, appended_at=_TIME)
_RATE_NAMES = ("in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s", "cpu_percent")
_RATES = dict.fromkeys(_RATE_NAMES, _DOUBLE)

RAW = _columns(topic=_TEXT, partition=_INT, offset=_LONG, key=_BYTES, value=_BYTES, appended_at=_TIME)
"""What every source yields, and bronze keeps unchanged (plus `day`, of `appended_at`). `topic` has no prefix."""

BRONZE = _with(RAW, day=_DAY, batch=_LONG)
"""`batch` of the ingest brought the record."""

QUARANTINE = _with(RAW, kind=_TEXT, reason=_TEXT, day=_DAY)
"""Records that could not be read. `kind` is `corrupt`, `newer` (of a format that a later release may read), or
`missing` (trimmed or replaced before it was read; one row for each run of offsets, under the first of them)."""

BROKER_LOAD = _with(
    _ORIGIN,
    broker=_TEXT,
    incarnation=_LONG,
    at=_TIME,
    cpu_percent=_DOUBLE,
    memory_percent=_DOUBLE,
    in_rate_bytes_s=_DOUBLE,
    out_rate_bytes_s=_DOUBLE,
    in_rate_msg_s=_DOUBLE,
    out_rate_msg_s=_DOUBLE,
    bundles=_LONG,
    keys=_LONG,
    sessions=_LONG,
    capacity="map<string,double>",
    host_cpu_percent=_DOUBLE,
    host_memory_percent=_DOUBLE,
    day=_DAY,
)
"""One row a report of `load-brokers`, without its `io`. A deletion of the key is a row with `broker` alone."""

BUNDLE_LOAD = _with(
    _ORIGIN,
    broker=_TEXT,
    incarnation=_LONG,
    at=_TIME,
    bundle=_TEXT,
    namespace=_TEXT,
    rank=_INT,
    keys=_LONG,
    sessions=_LONG,
    **_RATES,
    day=_DAY,
)
"""One row for each bundle of a report of `load-bundles`; `rank` 0 is the hottest."""

BUNDLE_TOTAL = _with(
    _ORIGIN,
    broker=_TEXT,
    incarnation=_LONG,
    at=_TIME,
    count=_LONG,
    keys=_LONG,
    sessions=_LONG,
    **_RATES,
    day=_DAY,
)
"""The sum over *all* bundles that a broker held, one row a report of `load-bundles`; `count` of them."""

CHANNEL = _with(
    _ORIGIN,
    at=_TIME,
    id=_TEXT,
    action=_TEXT,
    actor=_TEXT,
    actor_incarnation=_LONG,
    role=_TEXT,
    epoch=_LONG,
    bundles="array<string>",
    seen="array<bigint>",
    to=_TEXT,
    to_incarnation=_LONG,
    namespace=_TEXT,
    cause=_TEXT,
    reason=_TEXT,
    format=_INT,
    verdict=_TEXT,
    refusal=_TEXT,
    detail=_TEXT,
    day=_DAY,
)
"""One row a record of the channel. `verdict`: `accepted`, `refused`, or `unknown` where the log had been trimmed before
it; `refusal` is its Reason, `detail` in words."""

TRANSITION = _with(
    _ORIGIN,
    ordinal=_INT,
    at=_TIME,
    id=_TEXT,
    action=_TEXT,
    bundle=_TEXT,
    namespace=_TEXT,
    state_before=_TEXT,
    state=_TEXT,
    holder_before=_TEXT,
    holder_before_incarnation=_LONG,
    holder=_TEXT,
    holder_incarnation=_LONG,
    target=_TEXT,
    target_incarnation=_LONG,
    revision_before=_LONG,
    token=_LONG,
    actor=_TEXT,
    role=_TEXT,
    cause=_TEXT,
    day=_DAY,
)
"""What an accepted record did to each bundle, as `statechannel.law.verdict` has it. `state` is null where the bundle
was deleted, `state_before` where it was made."""

DECISION = _with(
    _ORIGIN,
    id=_TEXT,
    epoch=_LONG,
    round=_LONG,
    at=_TIME,
    leader=_TEXT,
    strategy=_TEXT,
    reason=_TEXT,
    moves=_INT,
    begun=_INT,
    spread_before=_DOUBLE,
    spread_after=_DOUBLE,
    settings=_TEXT,
    digest=_TEXT,
    has_model="boolean",
    policies_revision=_LONG,
    day=_DAY,
)
"""One row a round of the leader; `settings` as JSON."""

MOVE = _with(
    _ORIGIN,
    decision=_TEXT,
    ordinal=_INT,
    at=_TIME,
    bundle=_TEXT,
    source=_TEXT,
    destination=_TEXT,
    stage=_TEXT,
    reason=_TEXT,
    gain=_DOUBLE,
    outcome=_TEXT,
    detail=_TEXT,
    day=_DAY,
)
"""One row a move of a decision. `gain` is what the strategy promised, null where it does not say."""

AUDIT = _with(
    _ORIGIN,
    at=_TIME,
    **dict.fromkeys(("id", "principal", "how", "address", "broker", "action", "about", "namespace"), _TEXT),
    asked=_TEXT,
    before=_TEXT,
    after=_TEXT,
    result=_TEXT,
    status=_INT,
    detail=_TEXT,
    day=_DAY,
)
"""One row a request that changed something, or was to, or was refused. `asked`, `before` and `after` are JSON."""

GROUP_LAG = _with(
    _ORIGIN, at=_TIME, group=_TEXT, topic=_TEXT, queue=_INT, lag=_LONG, consumer=_TEXT, generation=_LONG, day=_DAY
)
"""It gets rows once its topic exists. `consumer` is null while no member has the queue."""

CHANNEL_STATE = _columns(
    partition=_INT, batch=_LONG, next_offset=_LONG, chunk=_INT, chunks=_INT, data=_BYTES, held=_INT
)
"""The replay's state of each partition at the end of a batch, in the chunks of `statechannel.law.snapshot`. `held` is
the format of the record at `next_offset` if the replay could not read it and waits for a later release."""

PROGRESS = _columns(
    stage=_TEXT, batch=_LONG, topic=_TEXT, partition=_INT, next_offset=_LONG, rows=_LONG, until=_TIME, log_id=_TEXT
)
"""Progress of a stage (`silver`, or a gold table's name). There is one row for each partition that a batch moved on,
later one for each partition and day, with the sum of `rows`. `until` is the latest `appended_at`, for gold the time up
to which minutes were made. Rows of the stage `log` say instead which log a topic's records are of: `log_id` is the id
that Kafka gave the topic; partition (-1) and position mean nothing."""

BROKER_MINUTE = _columns(
    minute=_TIME,
    broker=_TEXT,
    incarnation=_LONG,
    covered_s=_DOUBLE,
    reports=_LONG,
    cpu_percent=_DOUBLE,
    cpu_percent_max=_DOUBLE,
    memory_percent=_DOUBLE,
    in_rate_bytes_s=_DOUBLE,
    out_rate_bytes_s=_DOUBLE,
    in_rate_msg_s=_DOUBLE,
    out_rate_msg_s=_DOUBLE,
    bundles=_DOUBLE,
    capacity="map<string,double>",
    day=_DAY,
)
"""Time-weighted means of the step function of a broker's reports; `covered_s` of the 60 s had a report in force."""

BUNDLE_MINUTE = _columns(
    minute=_TIME,
    bundle=_TEXT,
    namespace=_TEXT,
    broker=_TEXT,
    covered_s=_DOUBLE,
    **_RATES,
    keys=_DOUBLE,
    sessions=_DOUBLE,
    day=_DAY,
)
"""The same for bundles, by the broker that reported them; of those that were among its hottest."""

TABLES: dict[str, Columns] = {
    "bronze": BRONZE,
    "quarantine": QUARANTINE,
    "broker_load": BROKER_LOAD,
    "bundle_load": BUNDLE_LOAD,
    "bundle_total": BUNDLE_TOTAL,
    "channel": CHANNEL,
    "transition": TRANSITION,
    "decision": DECISION,
    "move": MOVE,
    "audit": AUDIT,
    "group_lag": GROUP_LAG,
    "channel_state": CHANNEL_STATE,
    "progress": PROGRESS,
    "broker_minute": BROKER_MINUTE,
    "bundle_minute": BUNDLE_MINUTE,
}
"""By name. Tables that are cut by day have a column `day`; bronze is cut by topic too."""


_REFUSED = re.compile(r"[%\\\x00-\x1f\x7f]")
"""Spark, delta-rs and DuckDB take these in different ways, and would not find each other's files."""


def check_place(path: str) -> str:
    """The path itself. Raises Invalid for one that not every engine takes literally."""
    if found := _REFUSED.search(path):
        raise Invalid(f"a lake cannot lie at {path!r}, because of {found[0]!r}: name a folder without it")
    return path
