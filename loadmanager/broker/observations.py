"""What one process observes of moves, hooks and rounds, and the spans that are made of it. Outlives incarnations. Pure.

All times are of this broker's own clock, at the moment when it read a record or began to serve. So no two clocks are
compared. The new owner counts a move's gap: from when it read the record that made the former owner stop (`ready`,
`unload` or `revoke`) until its own service has acquired the bundle. The former owner stops when it reads the same
record, so the error is the difference between the lags of the two replicas. After a crash the gap begins with `revoke`:
the time until the leader was sure of the crash comes before it.

One trace leads from a decision to the hooks on all brokers, and no trace context is propagated. Every broker derives
the same ids from what all of them read. The trace id comes from the cause of a move's first record: a decision, or a
plan, which may have a decision as its own cause. Without a cause it comes from that record's place in the log. A move's
span id comes from the place and the bundle. Each broker makes the spans of what it did: the leader the round and the
plan, each broker its hooks, and the author of a move's last record the move, with a span for each of its states. `root`
is the first cause of a move's cause.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from hashlib import blake2b
from itertools import pairwise
from typing import Protocol, TypeVar

import msgspec

from loadmanager.broker.control_loop import Turns
from loadmanager.documents.fold import Version
from loadmanager.leader.plans.plan import Plan, PlanState
from loadmanager.leader.plans.table import OPEN
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
    """A move under way. `former` gave the bundle up; `stopped_s` is when, None while a broker serves."""

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
        """By kind: how long no broker served a bundle that this broker got."""
        self.returns = 0
        self.not_followed = 0
        self.record_ages = Durations()
        """Their age when read here, by the wall clocks of author and reader."""
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

        A bundle without an owner is not under way: no client has asked for it yet.
        """
        now_s = self._clock_s()
        ages = (now_s - move.steps[0].read_s for move in self._moves.values() if move.steps[-1].state in IN_FLIGHT)
        return next(ages, 0.0)

    def unowned(self) -> tuple[list[Bundle], float | None]:
        """Bundles that lost their owner, longest ago first, and since when the first one has none."""
        found = [move for move in self._moves.values() if move.steps[-1].state is State.UNASSIGNED]
        found.sort(key=lambda move: move.steps[-1].read_s)
        return [move.bundle for move in found], found[0].steps[-1].read_s if found else None

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
            self.not_followed += _put(self._moves, move.bundle, move)
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


def _put(kept: dict[Bundle, V], bundle: Bundle, value: V) -> bool:
    """Put the value last. Returns True if the first one had to go, since there were too many."""
    kept.pop(bundle, None)
    full = len(kept) >= FOLLOWED_AT_MOST
    if full:
        del kept[next(iter(kept))]
    kept[bundle] = value
    return full


_DECIDED = re.compile(r"\d+\.\d+|plan \w+")
"""The causes that have spans of their own."""
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8


class Span(msgspec.Struct, frozen=True):
    """One piece of work; times are seconds of this broker's own clock. `parent_id` may be a span of another broker."""

    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    began_s: float
    ended_s: float
    attributes: Mapping[str, str | int | float]
    failed: bool = False


def round_span(log: str, cause: str, began_s: float, ended_s: float, about: Mapping[str, str | int | float]) -> Span:
    """A decision. `log` identifies the log, for all ids are unique within one."""
    found = {"loadmanager.cause": cause, **about}
    return Span(_trace_of(log, cause), _cause_id(log, cause), None, f"round {cause}", began_s, ended_s, found)


def plan_span(
    log: str, cause: str, root: str, began_s: float, ended_s: float, about: Mapping[str, str | int | float], well: bool
) -> Span:
    """A plan that is over. `cause` is what its moves name as their cause."""
    parent_id = _cause_id(log, root) if root != cause else None
    span_id = _cause_id(log, cause)
    return Span(_trace_of(log, root), span_id, parent_id, cause, began_s, ended_s, about, failed=not well)


def move_spans(log: str, move: Move, last: Record, root: str) -> Iterator[Span]:
    """A move that ended with this record, and the states that it went through."""
    trace_id, span_id = _ids(log, move, root)
    cause, steps = move.begin.cause, move.steps
    parent_id = _cause_id(log, cause) if _DECIDED.fullmatch(cause) else None
    about: dict[str, str | int | float] = {
        "loadmanager.bundle": str(move.bundle),
        "loadmanager.kind": move.kind.value,
        "loadmanager.from": move.former,
        "loadmanager.to": last.actor.name,
        "loadmanager.cause": cause,
        "loadmanager.reason": move.begin.reason,
    }
    if move.served_s is not None and move.stopped_s is not None:
        about["loadmanager.gap_seconds"] = move.served_s - move.stopped_s
    name = f"{move.kind.value} {move.bundle}"
    yield Span(trace_id, span_id, parent_id, name, steps[0].read_s, steps[-1].read_s, about)
    for place, (step, after) in enumerate(pairwise(steps)):
        child_id = _digest(f"{log}|{span_id}|{place}", SPAN_ID_BYTES)
        yield Span(trace_id, child_id, span_id, step.state.value, step.read_s, after.read_s, _of_records(step, after))


def hook_span(
    log: str, move: Move, root: str, broker: str, hook: str, began_s: float, ended_s: float, well: bool
) -> Span:
    """A call of a hook during a move."""
    trace_id, parent_id = _ids(log, move, root)
    span_id = _digest(f"{log}|{parent_id}|{broker}|{hook}|{began_s}", SPAN_ID_BYTES)
    about = {"loadmanager.bundle": str(move.bundle), "loadmanager.broker": broker}
    return Span(trace_id, span_id, parent_id, hook, began_s, ended_s, about, failed=not well)


def trace_of_cause(log: str, cause: str) -> str:
    """The id of a decision's trace, as logs and other tools write it: 32 hexadecimal digits."""
    return _hex(_trace_of(log, cause))


def trace_of_move(log: str, move: Move, root: str) -> str:
    """The same of a move's trace."""
    return _hex(_ids(log, move, root)[0])


def _hex(trace_id: int) -> str:
    return f"{trace_id:0{2 * TRACE_ID_BYTES}x}"


def _ids(log: str, move: Move, root: str) -> tuple[int, int]:
    place = f"{move.partition}:{move.steps[0].offset}"
    return _trace_of(log, root or place), _digest(f"{log}|{place}|{move.bundle}", SPAN_ID_BYTES)


def _of_records(begin: Step, end: Step) -> dict[str, str | int | float]:
    return {
        "loadmanager.record": begin.action.value,
        "loadmanager.record.offset": begin.offset,
        "loadmanager.record.by": begin.by,
        "loadmanager.ended_by": end.action.value,
    }


def _trace_of(log: str, cause: str) -> int:
    return _digest(f"{log}|{cause}", TRACE_ID_BYTES)


def _cause_id(log: str, cause: str) -> int:
    return _digest(f"{log}|round|{cause}", SPAN_ID_BYTES)


def _digest(text: str, size: int) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest()) or 1


HOOKS = ("prepare", "acquire", "release", "abandon")


class Tracing(Protocol):
    """Takes spans, and counts their outcomes."""

    exported: int
    dropped: int
    failed: int

    def offer(self, span: Span) -> None:
        """Take a span; never waits."""
        ...


class Observations:
    """Belongs to the control loop. `name` is the broker's; `clock_s` its own clock, `wall_ms` the wall's.

    `log` gives the identity of the log that it reads, from which the ids of traces are made.
    """

    def __init__(
        self, name: str, clock_s: Callable[[], float], wall_ms: Callable[[], int], log: Callable[[], str]
    ) -> None:
        self.moves = Moves(name, clock_s, wall_ms, self._move_ended)
        self.turns = Turns(clock_s)
        self.hooks = {(hook, result): Durations(MOVE_S) for hook in HOOKS for result in ("ok", "failed")}
        self.leading: Callable[[], bool] = lambda: False
        """Whether this broker leads: then it reports plans."""
        self.tracing: Tracing | None = None
        """Where spans go; None: there are no traces."""
        self._roots: dict[str, str] = {}
        """By what moves of plans name as their cause: the round that proposed the plan."""
        self._name = name
        self._clock_s, self._wall_ms = clock_s, wall_ms
        self._log = log

    def hook_ended(self, hook: str, bundle: Bundle, took_s: float, well: bool) -> None:
        """A hook of the service returned, or failed."""
        self.hooks[hook, "ok" if well else "failed"].add(took_s)
        move = self.moves.of(bundle)
        if self.tracing is not None and move is not None:
            now_s = self._clock_s()
            root = self._root_of(move)
            self.tracing.offer(hook_span(self._log(), move, root, self._name, hook, now_s - took_s, now_s, well))

    def round_ended(self, cause: str, took_s: float, about: Mapping[str, str | int | float]) -> None:
        """This broker, as leader, made a decision that moves something."""
        if self.tracing is not None:
            now_s = self._clock_s()
            self.tracing.offer(round_span(self._log(), cause, now_s - took_s, now_s, about))

    def plan_changed(self, name: str, old: Version[Plan] | None, new: Version[Plan]) -> None:
        """There is another version of a plan."""
        before, plan, cause = old.value if old is not None else None, new.value, f"plan {name}"
        if plan is None:
            self._roots.pop(cause, None)
            return
        if plan.cause:
            self._roots[cause] = plan.cause
        over = before is not None and before.state in OPEN and plan.state not in OPEN
        if over and self.leading() and self.tracing is not None:
            age_s = (self._wall_ms() - plan.proposed_ms) / 1e3
            about = {"loadmanager.state": plan.state.value, "loadmanager.moves": len(plan.moves)}
            root, now_s = self._roots.get(cause, cause), self._clock_s()
            well = plan.state is not PlanState.FAILED
            self.tracing.offer(plan_span(self._log(), cause, root, now_s - age_s, now_s, about, well))

    def fields_of_hook(self, bundle: Bundle) -> dict[str, str]:
        """The fields of log lines while a hook for the bundle runs."""
        move, fields = self.moves.of(bundle), {"bundle": str(bundle)}
        if self.tracing is not None and move is not None:
            fields["trace"] = trace_of_move(self._log(), move, self._root_of(move))
        return fields

    def fields_of_round(self, cause: str) -> dict[str, str]:
        """The fields of log lines while a round decides."""
        return {"cause": cause} | ({} if self.tracing is None else {"trace": trace_of_cause(self._log(), cause)})

    def _move_ended(self, move: Move, last: Record) -> None:
        if self.tracing is not None and last.actor.name == self._name:
            for span in move_spans(self._log(), move, last, self._root_of(move)):
                self.tracing.offer(span)

    def _root_of(self, move: Move) -> str:
        return self._roots.get(move.begin.cause, move.begin.cause)
