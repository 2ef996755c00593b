"""Entries of the audit log, and records of `group-lag`: JSON objects, one per record.

As in load reports, unknown fields are ignored.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter

import msgspec

from loadmanager.cluster.audit_log import AuditEntry
from loadmanager.consumers.coordinator.lag_topic import GroupLagRecord
from loadmanager.history.decoding.columns import Shape, attributes, number, small, text, time


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
