"""Runs a strategy on a situation: what it would decide, and whether a recorded decision is reproduced. Pure."""

from __future__ import annotations

import msgspec

from loadmanager.decisions.errors import BadDecision
from loadmanager.decisions.explaining.situation import Situation, situation_of
from loadmanager.decisions.memory import given_memory
from loadmanager.decisions.record import DecisionRecord
from loadmanager.strategies.rebalancing.decision import Decision, Move
from loadmanager.strategies.rebalancing.registry import STRATEGIES

DIFFERENCES_TOLD = 5
CLOSE = 1e-9
"""Another machine's arithmetic may differ in the last digits."""


class Again(msgspec.Struct, frozen=True):
    """Whether the recorded decision was reproduced; `same` None: it could not be tried, for the reason in `why`."""

    id: str
    same: bool | None
    why: str = ""
    differences: tuple[str, ...] = ()


def decide(situation: Situation) -> Decision:
    """The strategy's decision in this situation. Raises BadDecision if an input is missing."""
    if situation.model is None:
        raise BadDecision(situation.without_model or "the round recorded no model")
    try:
        strategy = STRATEGIES.make(situation.strategy)
    except ValueError as error:
        raise BadDecision(str(error)) from None
    memory = given_memory(situation.memory, strategy)
    return strategy.decide(situation.model, situation.settings, memory)


def decide_again(record: DecisionRecord) -> Again:
    """Run the strategy on exactly its recorded input, and compare."""
    if record.model is not None and record.model.digest != record.digest:
        return Again(record.id, None, "the model in the record is not the model of the decision")
    try:
        again = decide(situation_of(record))
    except BadDecision as error:
        return Again(record.id, None, str(error))
    differences = tuple(_differences(record.decision, again))
    return Again(record.id, not differences, differences=differences[:DIFFERENCES_TOLD])


def _differences(then: Decision, now: Decision) -> list[str]:
    found: list[str] = []
    if then.reason != now.reason:
        found.append(f"reason: {then.reason!r} then, {now.reason!r} now")
    for place in range(max(len(then.moves), len(now.moves))):
        one = then.moves[place] if place < len(then.moves) else None
        other = now.moves[place] if place < len(now.moves) else None
        if one is None or other is None or not _close(one, other):
            found.append(f"move {place + 1}: {_said(one)} then, {_said(other)} now")
    parts = ("refused", "candidates", "counts", "certificate")
    found += [f"{name} differ" for name in parts if not _close(getattr(then, name), getattr(now, name))]
    return found


def _close(one: object, other: object) -> bool:
    """Whether two values are equal apart from the last digits of numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= CLOSE * max(1.0, abs(one), abs(other))
    a, b = msgspec.to_builtins(one), msgspec.to_builtins(other)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    return _close(a, b) if isinstance(a, float) and isinstance(b, float) else a == b


def _said(move: Move | None) -> str:
    if move is None:
        return "none"
    return f"{move.bundle} from {move.source} to {move.destination} ({move.reason})"
