"""Keeps the groups' records in one compacted topic of one partition, and says which of them count.

Every coordinator reads all of it, in the order of the log. A new owner of a group first writes a *fence*: the group's
record under its own token, marked as incomplete. From that offset on records under lower tokens are void for all
readers, whichever broker wrote them. Then it takes what was valid before, and writes all of it under its own token, the
group's record last, now complete. Finally it deletes the older keys.

A writer sends no answer before it has read back what it wrote. So it learns in time that it was fenced, and what it
promised before lies below the fence, where the new owner finds it. A void record can replace a valid one of the same
key only when the log compacts, after its compaction lag (the topic is `followed`). By then the new owner's records are
complete. The log keeps the order of one caller's appends, also of one that failed and was repeated (`ports.Log`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from loadmanager.consumers.coordinator.records import (
    GroupRecord,
    Record,
    Written,
    decoded,
    encoded,
    key_of,
    parsed,
)
from loadmanager.errors import Unavailable
from statechannel.errors import LogUnavailable
from statechannel.law.record import Token
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from statechannel.runtime.topic_reader import TopicReader

TOPIC = "consumer-groups"
GROUPS = TopicSpec(TOPIC, 1, compacted=True, followed=True)
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 2.0
LOWEST = Token(0, 0, -1)

_log = logging.getLogger("loadmanager.consumers")


class Fenced(Unavailable):
    """Another broker owns the group by now."""


class Known(msgspec.Struct):
    """What the topic has of one group under one token."""

    records: dict[str, Record] = {}

    @property
    def complete(self) -> bool:
        own = self.records.get("")
        return isinstance(own, GroupRecord) and own.complete


class GroupTable:
    """What counts, after the entries so far."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Token, Known]] = {}
        self._counts = Counter[str]()
        self._creators: dict[str, str] = {}
        self._created = Counter[str]()

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._groups))

    def apply(self, key: str, value: bytes | None) -> bool:
        """Take the next entry. Returns False if it is void.

        Raises ValueError, msgspec.ValidationError for one that cannot be read.
        """
        group, token, member = parsed(key)
        record = None if value is None else decoded(key, value)
        if group not in self._groups:
            self._counts[namespace_of(group)] += 1
        tokens = self._groups.setdefault(group, {})
        newest = self.newest(group)
        if token < newest and not (record is None and tokens[newest].complete):
            return False  # void; but what a complete owner replaced is deleted
        if isinstance(record, GroupRecord) and record.creator and group not in self._creators:
            self._creators[group] = record.creator
            self._created[record.creator] += 1
        if record is not None:
            tokens.setdefault(token, Known()).records[member] = record
        elif token in tokens:
            tokens[token].records.pop(member, None)
            if not tokens[token].records:
                del tokens[token]
        if not tokens:
            del self._groups[group]
            self._counts[namespace_of(group)] -= 1
            if group in self._creators:
                self._created[self._creators.pop(group)] -= 1
        return True

    def take(self, entry: LogEntry) -> bool:
        """As `apply`; an entry that cannot be read is skipped, with a warning, and is void."""
        try:
            return self.apply((entry.key or b"").decode(), entry.value)
        except (ValueError, msgspec.MsgspecError) as error:
            _log.warning("%s offset %d is skipped: %s", TOPIC, entry.offset, error)
            return False

    def beside(self, group: str) -> int:
        """How many groups its namespace has."""
        return self._counts[namespace_of(group)]

    def created_by(self, principal: str) -> int:
        """How many of the groups this principal created, in all namespaces."""
        return self._created[principal]

    def newest(self, group: str) -> Token:
        """The highest token under which the group was ever written; a token below all if it never was."""
        return max(self._groups.get(group, {}), default=LOWEST)

    def valid(self, group: str) -> Mapping[str, Record]:
        """The records that a new owner begins with."""
        tokens = self._groups.get(group, {})
        complete = [token for token, its in tokens.items() if its.complete]
        return tokens[max(complete)].records if complete else {}

    def outdated(self, group: str, token: Token) -> list[Written]:
        """What deletes all keys of the group under lower tokens."""
        tokens = self._groups.get(group, {})
        return [(key_of(group, each, name), None) for each in tokens if each < token for name in tokens[each].records]


def namespace_of(group: str) -> str:
    """What comes before the name of a group."""
    return "/".join(group.split("/", 4)[:4])


class GroupStore:
    """The topic, read and written. `start()`, then `run()` for as long as it is needed."""

    def __init__(self, log: Log, timeout_s: float = 10.0) -> None:
        self.table = GroupTable()
        self.log = log
        self._reader = TopicReader(log, GROUPS, self._take, timeout_s)
        self._waiting: list[tuple[Sequence[Written], asyncio.Future[None]]] = []
        self._pending: dict[str, asyncio.Future[None]] = {}
        """By key, the last write of it that was not read back yet."""
        self._wake = asyncio.Event()

    async def start(self) -> None:
        """Create or check the topic. Raises LogUnavailable, TopicMismatch; may be tried again."""
        await self._reader.start()

    async def run(self) -> None:
        """Read and write until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reader.run())
            group.create_task(self._write())

    async def catch_up(self) -> None:
        """Return once everything that is in the topic now has been read. Raises LogUnavailable."""
        await self._reader.catch_up()

    async def write(self, group: str, token: Token, entries: Sequence[Written], also: str = "") -> None:
        """Write in order, and return when that was read back, and what others write of the key `also`. Waits while the
        log does not answer.

        Raises Fenced if the group was written under a higher token before it.
        """
        await self.write_all(token, {group: entries})
        if also in self._pending:
            await asyncio.shield(self._pending[also])
            self._check(group, token)

    async def write_all(self, token: Token, entries: Mapping[str, Sequence[Written]]) -> None:
        """As `write`, for several groups at once."""
        written = [entry for its in entries.values() for entry in its]
        if written:
            await asyncio.shield(self.write_later(written))
        for group in entries:
            self._check(group, token)

    def write_later(self, entries: Sequence[Written]) -> asyncio.Future[None]:
        """Write in order, after what was to be written before; done when that was read back."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, done))
        self._pending.update((key, done) for key, _ in entries)
        self._wake.set()
        return done

    async def take_over(self, groups: Sequence[str], token: Token) -> dict[str, Mapping[str, Record]]:
        """Fence off every former owner of these groups; the records that are valid, by group. Raises Fenced."""
        fences: dict[str, Sequence[Written]] = {}
        for group in groups:
            own = self.table.valid(group).get("")
            settings = own.settings if isinstance(own, GroupRecord) else GroupRecord().settings
            fence = key_of(group, token), encoded(GroupRecord(settings, complete=False))
            fences[group] = [fence] if self.table.newest(group) != token else []
        await self.write_all(token, fences)
        return {group: dict(self.table.valid(group)) for group in groups}

    def _check(self, group: str, token: Token) -> None:
        if self.table.newest(group) > token:
            raise Fenced(f"{group} has another coordinator by now: look it up again", 0.1)

    async def _write(self) -> None:
        """One writer, so that entries keep their order; whatever waits is written at once."""
        while True:
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            if batch:
                payloads = [Payload(key.encode(), value) for entries, _ in batch for key, value in entries]
                await self._append(payloads)
                for entries, done in batch:
                    done.set_result(None)
                    for key, _ in entries:
                        if self._pending.get(key) is done:
                            del self._pending[key]
            else:
                await self._wake.wait()

    async def _append(self, payloads: Sequence[Payload]) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._reader.append(0, payloads)
                await self._reader.catch_up()
            except LogUnavailable as error:
                _log.warning("the groups' records are not written yet: %s", error)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
            else:
                return

    def _take(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            self.table.take(entry)
