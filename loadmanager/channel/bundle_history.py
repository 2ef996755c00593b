"""The channel history of one bundle: every record about it that the log still has, and the verdict on each.

Only `history_of` replays; the rest is pure. The history says where the log begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing

import msgspec

from loadmanager.channel.replay_queue import ReplayQueue
from statechannel.errors import Trimmed
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Refusal, Transition
from statechannel.ports import Log
from statechannel.runtime.replay import Folded

COPIES_KNOWN = 10_000
OF_A_NAMESPACE = frozenset({Action.CREATE_NAMESPACE, Action.DELETE_NAMESPACE})


class Winner(msgspec.Struct, frozen=True):
    """The record that won against a refused one."""

    offset: int
    action: Action
    actor: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One record about a bundle: `appended_ms` is the log's clock, `written_ms` its author's.

    `before` and `after` are the bundle's states (None: no such bundle), `owner` and `target` those after the record.
    `bundles` is how many the record names. If the record is a late copy, `copy_of` is the offset of the first one.
    """

    offset: int
    appended_ms: int
    written_ms: int
    record_id: str
    action: Action
    actor: str
    role: Role
    epoch: int
    accepted: bool
    before: State | None
    after: State | None
    owner: str | None
    target: str | None
    to: str | None
    reason: str
    cause: str
    bundles: int
    boundaries: tuple[int, ...] = ()
    parents: tuple[Bundle, ...] = ()
    children: tuple[Bundle, ...] = ()
    refused: str = ""
    detail: str = ""
    winner: Winner | None = None
    copy_of: int | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Entries, newest first. `older` says that there are more before the last.

    The log begins at `log_begin`, an entry that it took at `log_begin_ms`; the history knows nothing below `begin`.
    `heard_of` is false for a bundle that neither a record nor the state before them names.
    """

    bundle: Bundle
    partition: int
    heard_of: bool
    entries: tuple[Entry, ...]
    older: bool
    begin: int
    log_begin: int
    log_begin_ms: int | None


class Collector:
    """Takes every entry of the bundle's partition, in order, and keeps the newest `limit` about the bundle."""

    def __init__(self, bundle: Bundle, limit: int, since_ms: int | None = None) -> None:
        self._bundle = bundle
        self._since_ms = since_ms
        self._newest: deque[Entry] = deque(maxlen=limit)
        self._accepted: dict[str, int] = {}
        self.heard_of = False
        self.older = False

    def take(self, folded: Folded) -> None:
        """Take the next entry."""
        record, verdict = folded.applied.record, folded.applied.verdict
        if record is None or verdict is None:
            return
        found = self._entry(folded, record, verdict)
        if found is None:
            return
        self.heard_of = True
        if self._since_ms is None or found.appended_ms >= self._since_ms:
            self.older = self.older or len(self._newest) == self._newest.maxlen
            self._newest.append(found)

    def newest_first(self) -> tuple[Entry, ...]:
        """The entries kept."""
        return tuple(reversed(self._newest))

    def _entry(self, folded: Folded, record: Record, verdict: Change | Refusal) -> Entry | None:
        if isinstance(verdict, Change):
            transition = _transition_of(self._bundle, record, verdict)
            if transition is not None:
                self._remember(record.id, folded.entry.offset)
                return self._accepted_entry(folded, record, transition, verdict)
            refusals: Iterator[Refusal] = iter(verdict.refused)
        else:
            refusals = iter((verdict, *verdict.others))
        named = any(subject.bundle == self._bundle for subject in record.subjects)
        for refusal in refusals:
            if refusal.bundle == self._bundle or (named and refusal.bundle is None):
                return self._refused_entry(folded, record, refusal)
        if named and isinstance(verdict, Refusal):  # all-or-nothing, refused because of another of its bundles
            return self._refused_entry(folded, record, verdict)
        return None

    def _remember(self, record_id: str, offset: int) -> None:
        self._accepted.setdefault(record_id, offset)
        if len(self._accepted) > COPIES_KNOWN:
            del self._accepted[next(iter(self._accepted))]

    def _accepted_entry(self, folded: Folded, record: Record, transition: Transition, change: Change) -> Entry:
        before, after = transition.before, transition.after
        parents, children = _family(self._bundle, record, change)
        return _entry(folded, record, accepted=True, entry=after, parents=parents, children=children,
            before=before.state if before is not None else None)  # fmt: skip

    def _refused_entry(self, folded: Folded, record: Record, refusal: Refusal) -> Entry:
        winner = refusal.winner
        present = winner if winner is not None and winner.bundle == self._bundle else None
        return _entry(folded, record, accepted=False, entry=present,
            before=present.state if present is not None else None, refused=refusal.reason.value, detail=refusal.detail,
            winner=Winner(winner.revision, winner.action, str(winner.by)) if winner is not None else None,
            copy_of=self._accepted.get(record.id))  # fmt: skip


def _entry(folded: Folded, record: Record, *, entry: Ownership | None, **more: object) -> Entry:
    facts: dict[str, object] = {
        "offset": folded.entry.offset,
        "appended_ms": folded.entry.appended_ms,
        "written_ms": record.at_ms,
        "record_id": record.id,
        "action": record.action,
        "actor": str(record.actor),
        "role": record.role,
        "epoch": record.epoch,
        "after": entry.state if entry is not None else None,
        "owner": str(entry.holder) if entry is not None and entry.holder is not None else None,
        "target": str(entry.target) if entry is not None and entry.target is not None else None,
        "to": str(record.to) if record.to is not None else None,
        "reason": record.reason,
        "cause": record.cause,
        "bundles": len(record.subjects),
        "boundaries": record.boundaries,
    }
    return Entry(**{**facts, **more})  # type: ignore[arg-type]


def _transition_of(bundle: Bundle, record: Record, change: Change) -> Transition | None:
    transitions = change.transitions
    if record.action in OF_A_NAMESPACE:  # there may be 65,536 of them, lowest first
        index = bisect_left(transitions, bundle, key=lambda transition: transition.bundle)
        transitions = transitions[index : index + 1]
    return next((t for t in transitions if t.bundle == bundle), None)


def _family(bundle: Bundle, record: Record, change: Change) -> tuple[tuple[Bundle, ...], tuple[Bundle, ...]]:
    """The bundle's parents and children in this record."""
    if record.action not in (Action.CREATE, Action.MERGE):
        return (), ()
    gone = tuple(t.bundle for t in change.transitions if t.after is None)
    born = tuple(t.bundle for t in change.transitions if t.before is None)
    return (gone if bundle in born else ()), (born if bundle in gone else ())


async def history_of(
    replays: ReplayQueue,
    log: Log,
    topic: str,
    bundle: Bundle,
    place: tuple[int, int],
    *,
    limit: int,
    below: int | None = None,
    since_ms: int | None = None,
) -> History:
    """The newest `limit` records about a bundle; if given, only those below an offset and since a time.

    `place` is the namespace's partition and the number of partitions. Raises Unavailable, LogUnavailable, BadSnapshot,
    Trimmed (while it was read), NewerRecord.
    """
    partition, partitions = place
    collector = Collector(bundle, limit, since_ms)
    replay = replays.replay(partition, partitions, bundle.namespace)
    async with replays.turn():
        start = await log.offset_at(topic, partition, since_ms) if since_ms is not None else None
        await replay.open(before=start)
        collector.heard_of = replay.table.get(bundle) is not None
        async for folded in replay.run(until=below):
            collector.take(folded)
        return History(
            bundle=bundle,
            partition=partition,
            heard_of=collector.heard_of,
            entries=collector.newest_first(),
            older=collector.older,
            begin=replay.begin,
            log_begin=replay.log_begin,
            log_begin_ms=await _taken_ms(log, topic, partition, replay.log_begin),
        )


async def _taken_ms(log: Log, topic: str, partition: int, offset: int) -> int | None:
    """When the log took an entry, None if it does not have it."""
    batches = log.read(topic, partition, offset)
    try:
        async with aclosing(batches):
            async for batch in batches:
                return batch[0].appended_ms if batch else None
    except Trimmed:
        return None
    return None
