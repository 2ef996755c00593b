"""Records of the topics that nobody writes yet, `audit` and `group-lag`: JSON objects, one per record.

Defined here so that their future writers have a format, and the history takes them from their first record on. As in
load reports, unknown fields are ignored.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

from loadmanager.history.decoding.columns import Shape, attributes, number, small, text, time


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who did what: `actor` a user or broker, `what` the operation, `detail` in words. `at_ms` is the wall clock."""

    at_ms: int
    actor: str
    what: str
    detail: str = ""


class GroupLagRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many messages of a queue of a topic a consumer group has not read, and which consumer has the queue.

    `generation` counts the group's rebalances.
    """

    at_ms: int
    group: str
    topic: str
    queue: int
    lag: int
    consumer: str = ""
    generation: int = 0


_AT = {"at": time(attrgetter("at_ms"))}
AUDIT = Shape({**_AT, **attributes(text, "actor", "what", "detail")})
GROUP_LAG = Shape(
    {
        **_AT,
        **attributes(text, "group", "topic"),
        "queue": small(attrgetter("queue")),
        "lag": number(attrgetter("lag")),
        "consumer": text(attrgetter("consumer")),
        "generation": number(attrgetter("generation")),
    }
)

decode_audit = msgspec.json.Decoder(AuditRecord).decode
decode_group_lag = msgspec.json.Decoder(GroupLagRecord).decode
