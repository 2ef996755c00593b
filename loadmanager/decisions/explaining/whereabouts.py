"""Reads a bundle's place at a moment, and how it came there, from the channel's records.

Replays the channel from the newest snapshot that covers enough, and from further back only if that shows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from loadmanager.channel.bundle_history import Collector, Entry
from loadmanager.channel.replay_queue import ReplayQueue
from loadmanager.decisions.explaining.bundle import Event, Whereabouts, listed
from loadmanager.errors import Gone, Unavailable
from statechannel.errors import BadSnapshot, NewerRecord, Trimmed
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, Role
from statechannel.law.table import OwnershipTable
from statechannel.ports import Log

RECORDS_READ = 40
LOOKED_BACK_MS = 3_600_000


class ChannelReader:
    """Reads one channel; `replays` says when it may replay."""

    def __init__(self, log: Log, topic: str, partitions: int, replays: ReplayQueue) -> None:
        self._log = log
        self._topic = topic
        self._partitions = partitions
        self._replays = replays

    async def whereabouts(self, bundle: Bundle, at_ms: int | None) -> Whereabouts:
        """The bundle at a time of the log's clock, None: now. Raises Unavailable, Gone (trimmed), LogUnavailable."""
        partition = OwnershipTable(self._partitions).partition_of(bundle.namespace)
        try:
            async with self._replays.turn():
                until = None if at_ms is None else await self._log.offset_at(self._topic, partition, at_ms + 1)
                recent = await self._recent(partition, at_ms)
                found = await self._folded(bundle, partition, until, recent)
                return found if found.events else await self._folded(bundle, partition, until, None)
        except Trimmed as error:
            raise Unavailable(f"the log was trimmed while it was read: {error}; try again") from None
        except (BadSnapshot, NewerRecord) as error:
            raise Unavailable(f"the log cannot be read again: {error}", retry_after_s=60.0) from None

    async def _recent(self, partition: int, at_ms: int | None) -> int:
        if at_ms is None:
            end = (await self._log.ends(self._topic))[partition]
            return max(0, end - 1_000)
        return await self._log.offset_at(self._topic, partition, max(0, at_ms - LOOKED_BACK_MS))

    async def _folded(self, bundle: Bundle, partition: int, until: int | None, begin: int | None) -> Whereabouts:
        """Replay and collect. `begin`: the latest offset to begin at; None: the beginning of the log."""
        replay = self._replays.replay(partition, self._partitions, bundle.namespace)
        collector = Collector(bundle, RECORDS_READ)
        await replay.open(before=begin)
        if until is not None and replay.begin > until:
            raise Gone(
                f"the channel's records of that time are not kept any more: partition {partition} begins at offset "
                f"{replay.begin}, and that was offset {until} (log_retention_s)"
            )
        async for folded in replay.run(until=until):
            collector.take(folded)
        entry = replay.table.get(bundle)
        events = story(collector.newest_first())
        if entry is None:
            return Whereabouts(exists=False, events=events)
        return Whereabouts(
            exists=True,
            state=entry.state.value,
            owner="" if entry.holder is None else entry.holder.name,
            target="" if entry.target is None else entry.target.name,
            events=events,
        )


EVENTS_TOLD = 5

_TOLD = frozenset(Action) - {
    Action.RETURN, Action.READY, Action.NOOP, Action.LEAD, Action.GENESIS, Action.RETIRE, Action.AMEND, Action.AGREE,
}  # fmt: skip
_DECISION = re.compile(r"\d{1,18}\.\d{1,18}", re.ASCII)


def story(entries: Iterable[Entry]) -> tuple[Event, ...]:
    """Its last events, newest first, from its history, newest first."""
    # `return` and `ready` only complete a step that others asked for
    told = [each for each in entries if each.accepted and each.action in _TOLD]
    return tuple(
        Event(each.appended_ms, _text(each), each.cause if _DECISION.fullmatch(each.cause) else "", each.reason)
        for each in told[:EVENTS_TOLD]
    )


def _text(entry: Entry) -> str:
    by, to, owner = _author(entry), _name(entry.target or entry.to or ""), _name(entry.owner or "")
    match entry.action:
        case Action.OWN:
            return f"assigned to {owner or to} by {by}"
        case Action.TRANSFER:
            return f"transfer from {owner or 'its owner'} to {to} begun by {by}"
        case Action.UNLOAD:
            return f"unloaded from {owner or 'its owner'} by {by}"
        case Action.RELEASE:
            return f"released by {by}" + (f", now at {owner}" if owner else f" to {to}" if to else "")
        case Action.REVOKE:
            return f"revoked from {owner or 'its owner'} by {by}"
        case Action.CANCEL:
            return f"{entry.before.value if entry.before else 'what was under way'} called off by {by}"
        case Action.CREATE | Action.MERGE if entry.parents:
            return f"made from {listed([each.range for each in entry.parents])} by {by}"
        case Action.CREATE | Action.MERGE:
            return f"became {listed([each.range for each in entry.children])} by {by}"
        case Action.CREATE_NAMESPACE:
            return f"made with its namespace by {by}"
        case Action.DELETE_NAMESPACE:
            return f"deleted with its namespace by {by}"
        case _:
            return f"{entry.action.value} by {by}"


def _author(entry: Entry) -> str:
    match entry.role:
        case Role.LEADER:
            return f"the leader {_name(entry.actor)} (term {entry.epoch})"
        case Role.ADMIN:
            return f"an administrator at {_name(entry.actor)}"
        case Role.BROKER:
            return _name(entry.actor)


def _name(actor: str) -> str:
    return actor.rpartition("#")[0] or actor
