"""The watches of one broker: from which revisions a client may continue, the stream, and when all end.

A watch begins with the table as of now, or from a revision, and then gives every accepted change once and in the log's
order: a stream of `Piece`s. The endpoint decides their wire format, and lets many clients share one watch: each has a
watch of its own up to the present, and continues with the shared one at the position that its `beginning` ended with.

The watch keeps a cursor for each partition: it emits a change iff its offset ≥ cursor, whether the change came from
memory, from a replay of the log or from a snapshot. A piece that completes something has the revision up to which all
has been emitted: from there a client can continue, at any broker. The last changes of this broker's replica are kept in
memory, bounded and shared by all watches; a watch that reads too slowly finds that its next event was dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Literal, cast

import msgspec

from loadmanager.channel.replay_queue import ReplayQueue
from loadmanager.channel.revision import Revision
from loadmanager.errors import Conflict, Gone, Invalid, LoadManagerError, Unavailable
from statechannel.errors import BadSnapshot, LogUnavailable, NewerRecord, Trimmed
from statechannel.law.record import Action
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Ownership, Transition
from statechannel.runtime.channel import Replica
from statechannel.runtime.replay import Folded, Replay
from statechannel.runtime.tasks import Turnstile

CATCH_UP_S = 3.0


class Watching:
    """The watches of one broker. `close()` ends them all."""

    def __init__(
        self,
        replica: Replica,
        replays: ReplayQueue,
        recent: RecentChanges | None = None,
    ) -> None:
        self.replica = replica
        self.replays = replays
        self.recent = recent or RecentChanges(replica, CHANGES_KEPT)
        self.closing = asyncio.Event()
        """Set when every watch must end at once."""
        self.steps = Turnstile(PIECES_A_TURN)

    def close(self) -> None:
        """End every watch, and stop keeping changes."""
        self.closing.set()
        self.recent.close()

    @property
    def table(self) -> OwnershipTable:
        return self.replica.table

    def revision(self) -> Revision:
        """How far the replica has read."""
        table = self.table
        generation = table.cluster_identity.generation if table.cluster_identity else 0
        return Revision(generation, tuple(table.next_offset(p) for p in range(table.partitions)))

    async def begin(self, namespace: str | None, since: str | None) -> Watch:
        """A new watch. Raises Invalid (bad revision), Conflict (of another log), Gone (trimmed), Unavailable."""
        revision = None if since is None else await self._checked(since, namespace)
        return Watch(self, namespace, revision)

    def from_now(self, namespace: str | None) -> Watch:
        """A new watch of what happens from now on."""
        return Watch(self, namespace, self.revision())

    def from_the_table(self, namespace: str | None) -> Watch:
        """A new watch that begins with all bundles as they are."""
        return Watch(self, namespace, None)

    def partitions_of(self, namespace: str | None) -> Sequence[int]:
        return range(self.table.partitions) if namespace is None else (self.table.partition_of(namespace),)

    async def _checked(self, since: str, namespace: str | None) -> Revision:
        try:
            revision = Revision.parse(since)
        except ValueError as error:
            raise Invalid(f"{error}; or {ANEW}") from None
        table = self.table
        if len(revision.offsets) != table.partitions:
            raise Invalid(
                f"the channel has {table.partitions} partitions, the revision {since[:100]!r} has "
                f"{len(revision.offsets)}: it is another channel's; {ANEW}"
            )
        generation = table.cluster_identity.generation if table.cluster_identity else 0
        if revision.generation != generation:
            raise Conflict(
                f"the revision is of generation {revision.generation} of the log, this is generation {generation}: the "
                f"channel was moved to another log; {ANEW}"
            )
        await self._check_offsets(revision, self.partitions_of(namespace))
        return revision

    async def _check_offsets(self, revision: Revision, partitions: Sequence[int]) -> None:
        begins: Sequence[int] | None = None
        for partition in partitions:
            offset = revision.offsets[partition]
            if offset > self.table.next_offset(partition):
                await self._await_offset(partition, offset)
            if offset < self.recent.known_from(partition):
                begins = begins or await self.replica.log.begins(self.replica.topic)
                if offset < begins[partition]:
                    raise Gone(
                        f"the changes after offset {offset} of partition {partition} were trimmed: the log begins at "
                        f"{begins[partition]} now; {ANEW}"
                    )

    async def _await_offset(self, partition: int, offset: int) -> None:
        """Wait until this replica has read so far; another broker may be ahead. Raises Conflict if beyond the log."""
        end = (await self.replica.log.ends(self.replica.topic))[partition]
        if offset > end:
            raise Conflict(
                f"the revision is beyond the log: partition {partition} ends at {end}, not at {offset}; it is of "
                f"another log, or this one lost its end; {ANEW}"
            )
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while self.table.next_offset(partition) < offset:
                    self.replica.progress.clear()
                    await self.replica.progress.wait()
        except TimeoutError:
            raise Unavailable(f"this broker has not read partition {partition} up to {offset} yet; try again") from None


BUNDLES_A_PIECE = 250
PIECES_A_TURN = 4
"""Pieces of the table that all watches together make in one turn of the loop: 0.3 ms each."""

CHANGES_AT_ONCE = 100
BACKLOG_CHANGES, BACKLOG_BUNDLES = 2_000, 20_000
"""The most that is replayed in one turn before it is sent."""

KEEP_ALIVE_S = 10.0
CLOCK_STEP_S = 0.001
"""A remaining wait below this counts as over."""

ANEW = "start without `since` for a snapshot"

Kind = Literal["snapshot", "snapshot-end", "change", "reload", "end"]


class Piece(msgspec.Struct, frozen=True):
    """A part of the stream. Without a kind it only says that all changes up to `revision` have been emitted.

    `snapshot`: some `entries` of a `partition`. `snapshot-end`: all entries have been emitted. `change`: a `change`
    with `transitions`; if `more`, the next piece has further ones. `reload`: forget the partition, snapshots of it
    follow. `end`: `why` the watch ends here; go on from `resume`, or start again if it is None.

    `position` counts the events of this broker. A live piece has that of its event; a piece without a kind, or an end,
    that of the next event: all before it have been emitted.
    """

    kind: Kind | None
    revision: Revision | None = None
    partition: int | None = None
    entries: Sequence[Ownership] = ()
    change: Change | None = None
    transitions: Sequence[Transition] = ()
    more: bool = False
    why: str = ""
    resume: Revision | None = None
    position: int = 0


class Watch:
    """The watch of one client, or the shared one. Iterate over `pieces()` or `beginning()`."""

    def __init__(self, watching: Watching, namespace: str | None, since: Revision | None) -> None:
        self._watching = watching
        self.since = since
        """Where it goes on; None: it begins with the table."""
        self._namespace = namespace
        self._partitions = watching.partitions_of(namespace)
        self._told = since or watching.revision()
        self._position = watching.recent.end
        self._whole = since is not None
        """Whether the client has everything up to the cursor, so that it may resume there."""

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """The stream, without end or up to a piece of kind `end`."""
        return self._pieces(follow=True)

    def beginning(self) -> AsyncGenerator[Piece, None]:
        """The stream up to the present. Its last piece has no kind, and says where to go on; or it is an `end`."""
        return self._pieces(follow=False)

    async def _pieces(self, *, follow: bool) -> AsyncGenerator[Piece, None]:
        try:
            async with aclosing(self._snapshot() if self.since is None else self._backlog(self.since)) as begin:
                async for piece in begin:
                    yield piece
                    if self._watching.closing.is_set():
                        break
            async with aclosing(self._live(follow=follow)) as live:
                async for piece in live:
                    yield piece
        except (LoadManagerError, LogUnavailable, NewerRecord, BadSnapshot, Trimmed) as error:
            yield self._end(str(error))

    def _end(self, why: str) -> Piece:
        return Piece("end", why=why, resume=self._told if self._whole else None, position=self._position)

    # --- the present table

    async def _snapshot(self) -> AsyncGenerator[Piece, None]:
        self._position = self._watching.recent.end
        for partition in self._partitions:
            for piece in self._cut(partition):
                await self._watching.steps.passed()
                yield piece
        self._whole = True
        yield Piece("snapshot-end", self._told, position=self._position)

    def _cut(self, partition: int) -> Iterator[Piece]:
        """The partition as of now, in pieces; then moves its cursor there."""
        state = self._watching.table.cut(partition)
        kept: list[Ownership] = []
        for namespace in state.namespaces:
            if self._namespace not in (None, namespace.name):
                continue
            for index in range(0, len(namespace.entries), BUNDLES_A_PIECE):
                kept += namespace.entries[index : index + BUNDLES_A_PIECE]
                if len(kept) >= BUNDLES_A_PIECE:
                    yield Piece("snapshot", partition=partition, entries=kept, position=self._position)
                    kept = []
        if kept:
            yield Piece("snapshot", partition=partition, entries=kept, position=self._position)
        self._told = self._told.at(partition, state.next_offset)

    # --- changes since a revision

    async def _backlog(self, since: Revision) -> AsyncGenerator[Piece, None]:
        recent = self._watching.recent
        now, self._position = self._watching.revision(), recent.end
        in_memory = [p for p in self._partitions if since.offsets[p] >= recent.known_from(p)]
        kept = [change for p in in_memory for change in recent.of_partition(p, since.offsets[p])]
        for change in kept:
            for piece in self._of_change(change):
                yield piece
        for partition in [p for p in self._partitions if p not in in_memory]:
            async with aclosing(self._folded(partition, since.offsets[partition], now.offsets[partition])) as folded:
                async for piece in folded:
                    yield piece
        self._told = Revision(now.generation, tuple(map(max, now.offsets, self._told.offsets)))

    async def _folded(self, partition: int, start: int, until: int) -> AsyncGenerator[Piece, None]:
        """Changes from the log that are not in memory any more; sent between turns, not in them. Raises Gone."""
        replays = self._watching.replays
        replay = replays.replay(partition, self._watching.table.partitions, self._namespace)
        async with replays.turn():
            await replay.open(before=start)
        if replay.begin > start:
            raise Gone(f"the changes after offset {start} of partition {partition} cannot be sent again; {ANEW}")
        while replay.table.next_offset(partition) < until:
            async with replays.turn():
                changes, ended = await _some_changes(replay, start, until)
            for change in changes:
                for piece in self._of_change(change):
                    yield piece
            if ended:
                return

    # --- live changes

    async def _live(self, *, follow: bool) -> AsyncGenerator[Piece, None]:
        recent, clock_s = self._watching.recent, asyncio.get_running_loop().time
        spoke_s, present = clock_s(), False
        while (ending := self._why_to_end()) is None:
            events = recent.after(self._position, CHANGES_AT_ONCE)
            if events is None:
                ending = "too slow: the next changes were dropped here; go on from `resume`"
                break
            for event in events:
                for piece in self._of_event(event):
                    yield piece
                    spoke_s = clock_s()
                self._position += 1
            if events:
                continue
            if not present:
                yield Piece(None, self._told, position=self._position)
                present = True
            if not follow:
                return
            left_s = (
                spoke_s + KEEP_ALIVE_S - clock_s()
            )  # also while there is news, if none of it is about our namespace
            if left_s > CLOCK_STEP_S:
                await self._next(left_s)
                continue
            self._told = self._watching.revision()  # changes not emitted by now do not concern this watch
            yield Piece(None, self._told, position=self._position)
            spoke_s = clock_s()
        yield self._end(ending)

    def _why_to_end(self) -> str | None:
        if self._watching.closing.is_set():
            return "this broker closes its endpoints; go on at another one"
        stopped_by = self._watching.replica.stopped_by
        return (
            None
            if stopped_by is None
            else f"this broker stopped reading the channel: {stopped_by}; go on at another one"
        )

    async def _next(self, timeout_s: float) -> None:
        """Wait for an event, for the end of the watch, or for `timeout_s`."""
        watching = self._watching
        ends = (watching.closing.wait(), watching.replica.stopped.wait())
        waiting = [asyncio.ensure_future(each) for each in (watching.recent.more(timeout_s), *ends)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _of_event(self, event: Event) -> Iterator[Piece]:
        if event.partition not in self._partitions:
            return
        if isinstance(event, Change):
            yield from self._of_change(event)
        elif event.next_offset > self._told.offsets[event.partition]:
            yield Piece("reload", partition=event.partition, position=self._position)
            yield from self._cut(event.partition)
            yield Piece("snapshot-end", self._told, position=self._position)

    def _of_change(self, change: Change) -> Iterator[Piece]:
        if change.offset < self._told.offsets[change.partition]:
            return
        transitions: Sequence[Transition] = change.transitions
        if change.whole is not None and self._namespace not in (None, change.whole):
            transitions = ()
        elif self._namespace is not None and change.whole is None:
            transitions = [t for t in transitions if t.bundle.namespace == self._namespace]
        told = self._told.at(change.partition, change.offset + 1)
        if transitions or (self._namespace is None and change.record.action is not Action.NOOP):
            for index in range(0, max(1, len(transitions)), BUNDLES_A_PIECE):
                more = index + BUNDLES_A_PIECE < len(transitions)
                some = transitions[index : index + BUNDLES_A_PIECE]
                done = None if more else told
                yield Piece("change", done, None, (), change, some, more, position=self._position)
        self._told = told


async def _some_changes(replay: Replay, start: int, until: int) -> tuple[list[Change], bool]:
    """The next changes from `start` on, and whether these were the last."""
    changes: list[Change] = []
    bundles = 0
    async with aclosing(cast("AsyncGenerator[Folded, None]", replay.run(until))) as entries:
        async for folded in entries:
            verdict = folded.applied.verdict
            if isinstance(verdict, Change) and verdict.offset >= start:
                changes.append(verdict)
                bundles += len(verdict.transitions)
                if len(changes) >= BACKLOG_CHANGES or bundles >= BACKLOG_BUNDLES:
                    return changes, False
    return changes, True


CHANGES_KEPT = 10_000
BYTES_KEPT = 32 << 20
CHANGE_BYTES, BUNDLE_BYTES = 1_000, 500
"""About how many bytes a change and each of its bundles take: one change may create 65,536 bundles."""


class Reloaded(msgspec.Struct, frozen=True):
    """The replica fell behind the trimmed log: a snapshot up to `next_offset` replaced this partition's table."""

    partition: int
    next_offset: int


Event = Change | Reloaded


class RecentChanges:
    """Listens from its construction until `close()`. Positions count events since then, and only grow."""

    def __init__(self, replica: Replica, changes_kept: int, bytes_kept: int = BYTES_KEPT) -> None:
        self._replica = replica
        self._changes_kept = changes_kept
        self._bytes_kept = bytes_kept
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._first = 0
        self.end = 0
        """The position of the next event. Any thread may read it."""
        self._known_from: dict[int, int] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        replica.listen(self._changed)
        replica.on_reload(self._reloaded)

    def close(self) -> None:
        """Stop listening."""
        self._replica.unlisten(self._changed)
        self._replica.off_reload(self._reloaded)

    def after(self, position: int, most: int) -> list[Event] | None:
        """Up to `most` events from a position on; None if the first of them was dropped already."""
        if position < self._first:
            return None
        skipped = position - self._first
        return list(islice(self._events, skipped, skipped + most))

    def known_from(self, partition: int) -> int:
        """The offset from which on all changes of a partition are kept."""
        return self._known_from.get(partition, self._replica.table.next_offset(partition))

    def of_partition(self, partition: int, start: int) -> list[Change]:
        """The partition's changes from an offset on, which must not be below `known_from`."""
        return [e for e in self._events if isinstance(e, Change) and e.partition == partition and e.offset >= start]

    async def more(self, timeout_s: float) -> None:
        """Return at the next event, or after `timeout_s`."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            await asyncio.wait((woken,), timeout=timeout_s)
        finally:
            self._waiting.discard(woken)

    def _changed(self, change: Change) -> None:
        self._known_from.setdefault(change.partition, change.offset)
        if change.record.action is not Action.NOOP:  # a no-op only moves the offset
            self._keep(change)

    def _reloaded(self, partition: int) -> None:
        next_offset = self._known_from[partition] = self._replica.table.next_offset(partition)
        self._keep(Reloaded(partition, next_offset))

    def _keep(self, event: Event) -> None:
        self._events.append(event)
        self.end += 1
        self._bytes += _size(event)
        while len(self._events) > self._changes_kept or (self._bytes > self._bytes_kept and len(self._events) > 1):
            dropped = self._events.popleft()
            self._first += 1
            self._bytes -= _size(dropped)
            if isinstance(dropped, Change):
                least = max(self._known_from[dropped.partition], dropped.offset + 1)
                self._known_from[dropped.partition] = least
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)


def _size(event: Event) -> int:
    if isinstance(event, Reloaded):
        return CHANGE_BYTES
    hand_offs = sum(len(subject.hand_off) for subject in event.record.subjects if subject.hand_off is not None)
    return CHANGE_BYTES + BUNDLE_BYTES * len(event.transitions) + hand_offs
