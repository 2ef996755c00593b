"""Empties a broker by planned moves: transfers every bundle that it holds to the best other broker.

The broker writes the records itself, as the holder, so a drain needs no leader. Bundles on their way to it are
declined, or moved on when they arrive. Progress is visible at any time; a deadline bounds the drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import BUNDLES_A_RECORD, Action, BrokerId, Record, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership
from statechannel.runtime.channel import Channel

LOOK_S = 0.5
LINGER_S = 0.2
"""How long a record may take if its author did not know of the drain yet."""
PLACED_AT_ONCE = 50
WALKED_AT_ONCE = 10_000
"""Bundles of the table looked at in one turn of the loop."""
FIRST_REST_S, LAST_REST_S = 0.2, 5.0


class DrainProgress(msgspec.Struct, frozen=True):
    """How far a drain has come."""

    draining: bool
    total: int = 0
    left: int = 0
    done: bool = False
    unloaded: int = 0
    """Bundles that no broker could take: they were unloaded and have no owner now."""

    def __str__(self) -> str:
        if not self.total:
            return "this broker held no bundle"
        moved = self.total - self.left - self.unloaded
        return (
            f"of {self.total} bundles {moved} moved to other brokers, {self.unloaded} unloaded without a new owner, "
            f"{self.left} left here"
        )


class Elsewhere(Protocol):
    """Chooses new owners for the bundles that must leave."""

    def look_elsewhere(self) -> bool:
        """Refresh what is known of the other brokers. Returns True if that took so long that the turn must end."""
        ...

    def place_all_elsewhere(self, entries: Sequence[Ownership]) -> Sequence[BrokerId | None]:
        """The new owner of each of these bundles, None if no broker can take it."""
        ...


class Drain:
    """Drains one incarnation."""

    def __init__(self, me: BrokerId, channel: Channel, placing: Elsewhere) -> None:
        self._me = me
        self._channel = channel
        self._placing = placing
        self._total = 0
        self._active = False
        self._rests: dict[Bundle, tuple[float, float]] = {}
        self._unloaded: set[Bundle] = set()

    def progress(self) -> DrainProgress:
        """The progress as of now."""
        table = self._channel.table
        left = table.count_held_by(self._me)
        entries = (table.get(bundle) for bundle in self._unloaded)
        unloaded = sum(entry is None or entry.holder != self._me for entry in entries)
        total = max(self._total, left + unloaded)
        return DrainProgress(self._active, total, left, self._active and left == 0, unloaded)

    def end(self) -> None:
        """Cancel the drain: a running one returns, and progress begins again with the next one."""
        self._active = False
        self._total = 0
        self._unloaded.clear()

    async def run(self, timeout_s: float) -> DrainProgress:
        """Move all bundles away; returns when none is left, or after `timeout_s`; 0 moves nothing."""
        self._active = True
        self._rests.clear()
        self._unloaded.clear()
        self._total = self._channel.table.count_held_by(self._me)
        try:
            async with asyncio.timeout(timeout_s):
                while self._active and timeout_s > 0 and (here := await self._still_here()):
                    await self._once(here)
        except TimeoutError:
            pass
        return self.progress()

    async def _still_here(self) -> list[Ownership]:
        """As `_here`; if that is empty, waits for bundles from brokers that had not heard of the drain yet."""
        here = await self._here()
        if not here:
            await asyncio.sleep(LINGER_S)
            here = await self._here()
        return here

    async def _here(self) -> list[Ownership]:
        """The bundles that we hold, and those on their way to us, which would arrive after we had left."""
        table, here, walked = self._channel.table, list[Ownership](), 0
        for looked_at, some in table.walk(table.namespaces_of(self._me), {self._me}):
            here += some
            walked += looked_at
            if walked >= WALKED_AT_ONCE:
                walked = 0
                await asyncio.sleep(0)
        coming = (bundle for flight in table.flights() if flight.target == self._me for bundle in table.on(flight))
        return here + [entry for bundle in coming if (entry := table.get(bundle)) is not None]

    async def _once(self, here: list[Ownership]) -> None:
        """Send all bundles away, and wait at most LOOK_S until each has changed, since some may have to rest."""
        unchanged, all_changed = set[Bundle](), asyncio.Event()

        def saw(change: Change) -> None:
            unchanged.difference_update(change.bundles(unchanged))
            if not unchanged:
                all_changed.set()

        self._channel.listen(saw)
        try:
            await self._send_away(here, unchanged)
            if unchanged:
                all_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await all_changed.wait()
        finally:
            self._channel.unlisten(saw)

    async def _send_away(self, here: list[Ownership], unchanged: set[Bundle]) -> None:
        """Send the bundles away; adds each to `unchanged` first."""
        moves: dict[tuple[int, Action, BrokerId | None], list[Subject]] = {}
        steps = self._channel.replica.steps
        for begin in range(0, len(here), PLACED_AT_ONCE):
            await steps.passed()
            if self._placing.look_elsewhere():
                await steps.passed()
            some = here[begin : begin + PLACED_AT_ONCE]
            unchanged.update(entry.bundle for entry in some)
            for entry, action, to in self._moves_of(some):
                partition = self._channel.table.partition_of(entry.bundle.namespace)
                moves.setdefault((partition, action, to), []).append(Subject(entry.bundle, entry.revision))
        for (partition, action, to), subjects in moves.items():
            for begin in range(0, len(subjects), BUNDLES_A_RECORD):
                part = tuple(subjects[begin : begin + BUNDLES_A_RECORD])
                bundles = {subject.bundle for subject in part}
                self._unloaded = self._unloaded | bundles if action is Action.UNLOAD else self._unloaded - bundles
                await self._channel.publish(
                    Record("", action, self._me, subjects=part, to=to, reason="drain"), partition
                )

    def _moves_of(self, entries: Sequence[Ownership]) -> Iterator[tuple[Ownership, Action, BrokerId | None]]:
        """The action for each of these bundles now, and its destination."""
        for entry in entries:
            if entry.target == self._me and entry.state is State.TRANSFERRING:
                yield entry, Action.CANCEL, None
        leaving = [
            entry
            for entry in entries
            if entry.target != self._me and entry.state is State.ASSIGNED and not self._must_rest(entry.bundle)
        ]
        for entry, to in zip(leaving, self._placing.place_all_elsewhere(leaving), strict=True):
            yield entry, Action.UNLOAD if to is None else Action.TRANSFER, to

    def _must_rest(self, bundle: Bundle) -> bool:
        """Whether a bundle that its destination declined must wait before the next try; each time twice as long."""
        now_s = asyncio.get_running_loop().time()
        next_s, rest_s = self._rests.get(bundle, (now_s, FIRST_REST_S))
        if now_s < next_s:
            return True
        self._rests[bundle] = (now_s + rest_s, min(2 * rest_s, LAST_REST_S))
        return False
