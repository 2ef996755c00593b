"""Makes spans of rounds, plans, moves and hooks: one trace from a decision to the hooks on all brokers.

Nothing travels for it. Every broker derives the same ids from what all of them read: the trace from the cause of a
move's first record (a decision, or a plan, which may have a decision as its own cause), or from that record's place in
the log if it has none; a move's span from the place and the bundle. Each broker makes the spans of what it did: the
leader the round and the plan, each broker its hooks, and who wrote the last record of a move the move, with a span for
each of its states. `root` is the first cause of a move's cause. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import pairwise

import msgspec

from loadmanager.broker.telemetry.moves import Move, Step
from statechannel.law.bundle import Bundle
from statechannel.law.record import Record

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
    return _trace_of(log, root or place), _span_of(log, place, move.bundle)


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


def _span_of(log: str, place: str, bundle: Bundle) -> int:
    return _digest(f"{log}|{place}|{bundle}", SPAN_ID_BYTES)


def _digest(text: str, size: int) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest()) or 1
