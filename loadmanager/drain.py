"""Empties a broker by planned moves: every bundle that it holds is transferred to the best of the others.

The broker does it itself, in the role of the holder, so a drain needs no leader. Bundles on their way to it are
declined or moved on as they arrive. Progress is visible at any time; a deadline bounds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from statechannel.bundle import Bundle
from statechannel.record import Action, Broker, Record, Subject
from statechannel.service import Channel
from statechannel.transitions import State
from statechannel.verdict import Ownership

SUBJECTS_A_RECORD = 500
LOOK_S = 0.5


class DrainProgress(msgspec.Struct, frozen=True):
    """How far a drain has come."""

    draining: bool
    total: int = 0
    left: int = 0
    done: bool = False


class Drain:
    """Drains one incarnation. `place` names the new owner of a bundle, None if there is nobody."""

    def __init__(self, me: Broker, channel: Channel, place: Callable[[Ownership], Broker | None]) -> None:
        self._me = me
        self._channel = channel
        self._place = place
        self._total = 0
        self._active = False

    def progress(self) -> DrainProgress:
        """As of now."""
        left = self._channel.table.count_held_by(self._me)
        return DrainProgress(self._active, max(self._total, left), left, self._active and left == 0)

    def end(self) -> None:
        """The drain is off: progress begins anew with the next one."""
        self._active = False
        self._total = 0

    async def run(self, timeout_s: float) -> DrainProgress:
        """Move everything away; returns when nothing is left, or after `timeout_s` with what is."""
        self._active = True
        self._total = self._channel.table.count_held_by(self._me)
        try:
            async with asyncio.timeout(timeout_s):
                while held := self._channel.table.held_by(self._me):
                    changed = [self._channel.next_change(bundle) for bundle in held]
                    await self._send_away(held)
                    await asyncio.wait(changed, timeout=LOOK_S)
                    for future in changed:
                        future.cancel()
        except TimeoutError:
            pass
        return self.progress()

    async def _send_away(self, held: tuple[Bundle, ...]) -> None:
        moves: dict[tuple[int, Broker | None], list[Subject]] = {}
        for bundle in held:
            entry = self._channel.table.get(bundle)
            if entry is not None and entry.state is State.ASSIGNED:
                key = (self._channel.table.partition_of(bundle.namespace), self._place(entry))
                moves.setdefault(key, []).append(Subject(bundle, entry.revision))
        for (partition, to), subjects in moves.items():
            action = Action.UNLOAD if to is None else Action.TRANSFER
            for begin in range(0, len(subjects), SUBJECTS_A_RECORD):
                part = tuple(subjects[begin : begin + SUBJECTS_A_RECORD])
                await self._channel.publish(
                    Record("", action, self._me, subjects=part, to=to, reason="drain"), partition
                )
