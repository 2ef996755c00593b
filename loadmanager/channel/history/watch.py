"""One watch: from the table as of now, or from a revision on, every accepted change once and in the log's order.

A stream of `Piece`s; the endpoint decides their wire format, and lets many clients share one watch: each has a watch of
its own up to the present, and goes on with the shared one at the position that its `beginning` ended with.

The watch keeps a cursor for each partition: it emits a change iff its offset ≥ cursor, whether the change came from
memory, from a replay of the log or from a snapshot. A piece that completes something has the revision up to which all
has been emitted: from there a client can go on, at any broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from loadmanager.channel.history.recent import Event
from loadmanager.channel.history.revision import Revision
from loadmanager.errors import Gone, LoadManagerError
from statechannel.errors import BadSnapshot, LogUnavailable, NewerRecord, Trimmed
from statechannel.law.record import Action
from statechannel.law.verdict import Change, Ownership, Transition
from statechannel.runtime.replay import Folded, Replay

if TYPE_CHECKING:
    from loadmanager.channel.history.watching import Watching

BUNDLES_A_PIECE = 250
CHANGES_AT_ONCE = 100
BACKLOG_CHANGES, BACKLOG_BUNDLES = 2_000, 20_000
"""At most so much is replayed in one turn, before it is sent."""

KEEP_ALIVE_S = 10.0
CLOCK_STEP_S = 0.001
"""A shorter wait counts as over."""

ANEW = "start without `since` for a snapshot"

Kind = Literal["snapshot", "snapshot-end", "change", "reload", "end"]


class Piece(msgspec.Struct, frozen=True):
    """A part of the stream. Without a kind it only says that all changes up to `revision` have been emitted.

    `snapshot`: some `entries` of a `partition`. `snapshot-end`: all entries have been emitted. `change`: a `change`
    with `transitions`; if `more`, the next piece has further ones. `reload`: forget the partition, snapshots of it
    follow. `end`: `why` the watch ends here; go on from `resume`, or start anew if it is None.

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
        self._namespace = namespace
        self._partitions = watching.partitions_of(namespace)
        self._since = since
        self._told = since or watching.revision()
        self._position = watching.recent.end
        self._whole = since is not None
        """Whether the client has everything up to the cursor, so that it may resume there."""

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """The stream, for ever or up to a piece of kind `end`."""
        return self._pieces(follow=True)

    def beginning(self) -> AsyncGenerator[Piece, None]:
        """The stream up to the present. Its last piece has no kind, and says where to go on; or it is an `end`."""
        return self._pieces(follow=False)

    async def _pieces(self, *, follow: bool) -> AsyncGenerator[Piece, None]:
        try:
            async with aclosing(self._snapshot() if self._since is None else self._backlog(self._since)) as begin:
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
                yield piece
            await asyncio.sleep(0)
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
