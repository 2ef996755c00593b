"""Follows moves from the accepted records, as one broker reads them: how long they took, and how long nobody served.

All times are of this broker's own clock, at the moment when it read a record or began to serve. So no two clocks are
compared. The new owner counts a move's gap: from when it read the record that made the former owner stop (`ready`,
`unload` or `revoke`) until its own service has acquired the bundle. The former owner stops when it reads the same
record, so the error is the difference between the lags of the two replicas. After a crash the gap begins with `revoke`:
the time until the leader was sure of the crash comes before it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, Record
from statechannel.law.transitions import IN_FLIGHT, State
from statechannel.law.verdict import Change, Transition
from statechannel.runtime.durations import Durations

V = TypeVar("V")

FOLLOWED_AT_MOST = 20_000
"""Moves that are followed at the same time; beyond it the oldest are forgotten, neither timed nor traced."""

RETURN_WITHIN_S = 600.0
"""A planned move back to a broker that gave the bundle away within this time is a return."""

MOVE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds for moves and gaps: hooks take from milliseconds to their time-outs of half a minute."""


class Kind(StrEnum):
    """How a bundle gets another owner."""

    TRANSFER = "transfer"
    UNLOAD = "unload"
    TAKEOVER = "takeover"
    ASSIGN = "assign"


_BEGINS = {Action.TRANSFER: Kind.TRANSFER, Action.UNLOAD: Kind.UNLOAD, Action.REVOKE: Kind.TAKEOVER}
_NOT_SERVED = frozenset({State.RELEASING, State.REVOKING, State.UNASSIGNED})
_PLANNED = frozenset({Kind.TRANSFER, Kind.UNLOAD})


class Step(msgspec.Struct, frozen=True, gc=False):
    """A record of a move: its offset, who wrote it, what it made of the bundle, and when this broker read it."""

    action: Action
    state: State
    offset: int
    by: str
    read_s: float


class Move(msgspec.Struct):
    """A move under way. `former` gave the bundle up; `stopped_s` is when, None while somebody serves."""

    bundle: Bundle
    kind: Kind
    partition: int
    begin: Record
    former: str
    stopped_s: float | None
    steps: list[Step]
    served_s: float | None = None


class Moves:
    """The moves under way, as the broker `name` sees them, and figures of those that ended here.

    `on_end` is called with each move that ended, and the record that ended it.
    """

    def __init__(
        self,
        name: str,
        clock_s: Callable[[], float],
        wall_ms: Callable[[], int],
        on_end: Callable[[Move, Record], None] = lambda _move, _record: None,
    ) -> None:
        self.took = {kind: Durations(MOVE_S) for kind in Kind}
        """By kind: from reading the first record until this broker served."""
        self.gaps = {kind: Durations(MOVE_S) for kind in Kind if kind is not Kind.ASSIGN}
        """By kind: how long nobody served a bundle that this broker got."""
        self.returns = 0
        self.not_followed = 0
        self.record_ages = Durations()
        """When they were read here, by the wall clocks of author and reader."""
        self.actions: Counter[Action] = Counter()
        """Accepted records by action."""
        self._name = name
        self._on_end = on_end
        self._clock_s = clock_s
        self._wall_ms = wall_ms
        self._moves: dict[Bundle, Move] = {}
        """In the order in which they began."""
        self._given: dict[Bundle, float] = {}
        """When this broker gave bundles away by planned moves."""

    def of(self, bundle: Bundle) -> Move | None:
        """The move of this bundle, None if there is none."""
        return self._moves.get(bundle)

    def oldest_s(self) -> float:
        """For how long the oldest move has been under way, 0 if there is none.

        A bundle without an owner is not under way: nobody has asked for it yet.
        """
        now_s = self._clock_s()
        ages = (now_s - move.steps[0].read_s for move in self._moves.values() if move.steps[-1].state in IN_FLIGHT)
        return next(ages, 0.0)

    # --- events

    def saw(self, change: Change) -> None:
        """Take an accepted record, right after the table took it."""
        self.actions[change.record.action] += 1
        self.record_ages.add((self._wall_ms() - change.record.at_ms) / 1e3)
        if change.whole is None:
            for transition in change.transitions:
                self._step(change, transition)
        else:
            for bundle in change.bundles(tuple(self._moves)):
                del self._moves[bundle]

    def missed(self, partition: int) -> None:
        """The replica of this partition went on from a snapshot, so moves may have ended unseen."""
        for move in [move for move in self._moves.values() if move.partition == partition]:
            del self._moves[move.bundle]

    def served(self, bundle: Bundle, claim: object) -> None:
        """This broker has begun to serve a bundle (`claim`), or ended (None)."""
        move, now_s = self._moves.get(bundle), self._clock_s()
        if claim is None or move is None or move.served_s is not None:
            return
        move.served_s = now_s
        self.took[move.kind].add(now_s - move.steps[0].read_s)
        if move.kind in self.gaps and move.stopped_s is not None:
            self.gaps[move.kind].add(now_s - move.stopped_s)
        given_s = self._given.pop(bundle, None)
        if move.kind in _PLANNED and given_s is not None and now_s - given_s <= RETURN_WITHIN_S:
            self.returns += 1

    def _step(self, change: Change, transition: Transition) -> None:
        before, after = transition.before, transition.after
        move = self._moves.get(transition.bundle)
        if before is None or after is None:  # it is gone, or began with a holder
            self._moves.pop(transition.bundle, None)
            return
        kind = _BEGINS.get(change.record.action)
        if kind is None and move is None and change.record.action is Action.OWN:
            kind = Kind.ASSIGN
        if kind is not None:
            former = before.holder.name if before.holder is not None else ""
            stopped_s = None if move is None else move.stopped_s
            move = Move(transition.bundle, kind, change.partition, change.record, former, stopped_s, [])
            self._follow(move)
        if move is not None:
            step = Step(change.record.action, after.state, change.offset, change.record.actor.name, self._clock_s())
            self._add(move, step, change.record)

    def _add(self, move: Move, step: Step, record: Record) -> None:
        move.steps.append(step)
        if move.stopped_s is None and step.state in _NOT_SERVED:
            move.stopped_s = step.read_s
        if step.state is not State.ASSIGNED:
            return
        del self._moves[move.bundle]
        if move.kind in _PLANNED and move.former == self._name and record.actor.name != self._name:
            _put(self._given, move.bundle, step.read_s)
        self._on_end(move, record)

    def _follow(self, move: Move) -> None:
        self.not_followed += _put(self._moves, move.bundle, move)


def _put(kept: dict[Bundle, V], bundle: Bundle, value: V) -> bool:
    """Put the value last; whether the first one had to go, since there are too many."""
    kept.pop(bundle, None)
    full = len(kept) >= FOLLOWED_AT_MOST
    if full:
        del kept[next(iter(kept))]
    kept[bundle] = value
    return full
