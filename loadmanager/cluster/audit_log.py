"""The audit log, a journal in the log: who asked which broker for a change, from where, and the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from loadmanager.cluster.journal import Found, Journal
from statechannel.errors import LogUnavailable, RecordTooLarge
from statechannel.ports import Log, TopicSpec

AUDIT_TOPIC = "audit"
AUDIT = TopicSpec(AUDIT_TOPIC, partitions=1)
LISTED_AT_MOST = 1_000
LOOKED_THROUGH = 20_000
"""How many entries a search reads at most; the next page continues."""

_log = logging.getLogger("loadmanager.audit")


class Result(StrEnum):
    """The outcome of a request."""

    DONE = "done"
    REFUSED = "refused"
    """Nothing was changed: no credentials, no role, or the request was not possible."""
    FAILED = "failed"
    """It was not completed here; it may have been carried out, wholly or in part."""


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request. `how` the principal was proven: token, certificate, or `unverified` (it says so itself).

    `action` names what was asked for, `about` the thing, `namespace` the namespace if it is about one. `asked` are the
    parameters and the body. `before` and `after` are the state of the thing at the asked broker.
    """

    id: str
    at_ms: int
    principal: str
    how: str
    address: str
    broker: str
    action: str
    about: str = ""
    namespace: str = ""
    asked: dict[str, Any] = {}
    before: Any = None
    after: Any = None
    result: Result
    status: int
    detail: str = ""


class AuditLog:
    """The entries of all brokers. `lost` counts those of this broker that the log did not take."""

    def __init__(
        self, log: Log, retention_s: Callable[[], float], now_ms: Callable[[], int | None], nonce: str
    ) -> None:
        self._journal: Journal[AuditEntry] = Journal(log, AUDIT_TOPIC, _decode, retention_s=retention_s, now_ms=now_ms)
        self._nonce = nonce
        self._number = 0
        self.lost = 0

    async def open(self) -> None:
        """Create the topic, or check it. Raises LogUnavailable, TopicMismatch."""
        await self._journal.open()

    def next_id(self) -> str:
        """An id that no other entry has."""
        self._number += 1
        return f"{self._nonce}-{self._number}"

    async def append(self, entry: AuditEntry) -> None:
        """Write an entry to the process's own log and to the shared audit log. Never raises if either fails."""
        line = msgspec.json.encode(entry)
        _log.info("%s", line.decode())
        try:
            await self._journal.append(entry.id.encode(), line)
        except (LogUnavailable, RecordTooLarge) as error:
            self.lost += 1
            _log.error("the log did not take the audit entry %s: %s", entry.id, error)

    async def newest(
        self, count: int, wanted: Callable[[AuditEntry], bool], before: int | None = None
    ) -> tuple[list[Found[AuditEntry]], int | None]:
        """The newest wanted entries below an offset, newest first, and where to continue (None: there are no more).

        Raises LogUnavailable.
        """
        end = await self._journal.end()
        high = end if before is None else min(before, end)
        found = await self._journal.backwards(high, count, lambda each: wanted(each.record), LOOKED_THROUGH)
        begin = await self._journal.begin()
        low = found[-1].offset if len(found) == count else max(begin, high - LOOKED_THROUGH)
        return found, low if low > begin else None

    async def ended_before(self, below: int, since_ms: int) -> bool:
        """Whether the log took everything below this offset before this time. Raises LogUnavailable."""
        return await self._journal.offset_at(since_ms) >= below


def _decode(value: bytes | None) -> AuditEntry | None:
    try:
        return msgspec.json.decode(value or b"", type=AuditEntry)
    except msgspec.MsgspecError:
        return None
