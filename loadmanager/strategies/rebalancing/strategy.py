"""The interface of rebalancing strategies, and the check of their answers. No clock, no I/O, no randomness.

A strategy says which bundles the leader should move now. Third-party strategies are installed by an entry point of
group `loadmanager.strategies` (see `strategies/registry.py`), so any answer is checked. One of another type is
rejected. An illegal move is removed with its whole group and listed as refused. Whether the bundle is still where the
strategy saw it is checked when the move begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, FREE, ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Move, Refused
from statechannel.law.bundle import Bundle


class Strategy(Protocol):
    """Decides moves. The same model, settings and memory give the same decision: it can be previewed and replayed."""

    @property
    def name(self) -> str:
        """Its name in the setting `balancing_strategy`."""
        ...

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """Moves, or none and why. `memory` is that of the last decision, None in a leader's first round.

        Every strategy must keep these rules. It moves no bundle that is in flight or fixed. It moves none to a broker
        that is draining, paused, without fresh load data or forbidden for the bundle. It moves nothing once the cluster
        is balanced by its own measure.
        """
        ...


RULE = "owed by every strategy"
TOLD = 20
"""How many removed moves a decision names."""

_NUMBERS = ("load", "gain", "source_before", "source_after", "destination_before", "destination_after")


def vetted(answer: object, model: ClusterModel) -> Decision:
    """The decision with its legal moves. Raises ValueError, TypeError if the answer is not a decision."""
    if not isinstance(answer, Decision):
        raise TypeError(f"it answered with {type(answer).__name__}, not with a decision")
    memory = answer.memory
    plain = msgspec.to_builtins(msgspec.structs.replace(answer, memory=None), enc_hook=_number)
    decision = msgspec.convert(plain, Decision)
    decision = msgspec.structs.replace(
        decision,
        memory=memory,
        spread_before=_finite(decision.spread_before),
        spread_after=_finite(decision.spread_after),
    )
    wrong = _wrong(decision.moves, model)
    return decision if not wrong else _without(decision, wrong)


def _wrong(moves: Iterable[Move], model: ClusterModel) -> dict[int, str]:
    """Places of illegal moves, and why."""
    rows: dict[Bundle, int] | None = None
    seen: set[Bundle] = set()
    wrong: dict[int, str] = {}
    for place, move in enumerate(moves):
        if rows is None:
            rows = {bundle: row for row, bundle in enumerate(model.bundles.ids)}
        why = _why_not(move, rows.get(move.bundle), model)
        if move.bundle in seen:
            why = "it is in the decision twice"
        if why:
            wrong[place] = why
        seen.add(move.bundle)
    return wrong


def _why_not(move: Move, row: int | None, model: ClusterModel) -> str:
    unreal = next((name for name in _NUMBERS if not math.isfinite(getattr(move, name))), None)
    if unreal is not None:
        return f"its {unreal} is {getattr(move, unreal)}"
    rules = model.constraints
    if row is not None and rules.fixed[row] != FREE:
        return f"it stays where it is: {rules.rules[rules.fixed[row]]}"
    if move.destination is None:
        return ""
    to = model.brokers.rows.get(move.destination)
    if to is None:
        return f"{move.destination} takes no part"
    if move.destination == move.source:
        return f"it is at {move.source.name} already"
    if model.brokers.draining[to] or model.brokers.paused[to]:
        return f"{move.destination.name} {'drains' if model.brokers.draining[to] else 'is paused'}"
    rule = ALLOWED if row is None else int(rules.forbidden[rules.kind[row], to])
    return "" if rule == ALLOWED else f"it may not go to {move.destination.name}: {rules.rules[rule]}"


def _without(decision: Decision, wrong: dict[int, str]) -> Decision:
    groups = {decision.moves[place].group for place in wrong} - {0}
    kept = tuple(m for place, m in enumerate(decision.moves) if place not in wrong and m.group not in groups)
    refused = tuple(Refused(str(decision.moves[place].bundle), RULE, why) for place, why in wrong.items())
    count, first = len(decision.moves) - len(kept), refused[0]
    return msgspec.structs.replace(
        decision,
        moves=kept,
        reason=f"{decision.reason}; {count} of the strategy's moves must not be made, {first.subject}: {first.detail}",
        refused=(*decision.refused, *refused[:TOLD]),
    )


def _number(value: object) -> object:
    """A NumPy scalar as a plain number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"it answered with a {type(value).__name__}, where a plain value is wanted")


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
