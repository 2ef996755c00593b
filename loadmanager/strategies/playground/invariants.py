"""Checks each decision, before it is carried out, against the rules for all strategies. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from loadmanager.model.cluster import ALLOWED, FREE, ClusterModel
from loadmanager.strategies.rebalancing.decision import Decision, Move
from statechannel.law.bundle import Bundle

RESTS = frozenset({"plan"})
"""Strategies that promise not to return a bundle within its rest time unless its load has really changed."""


class InvariantViolation(AssertionError):
    """A strategy broke a rule; the message names round, move and rule."""


def check(model: ClusterModel, decision: Decision, strategy: str, where: str) -> None:
    """Raises InvariantViolation if a decision breaks a rule for all strategies, or the promise of a strategy in RESTS.

    Judges by the model that the strategy had. `where` names the game and the round.
    """
    broken = next(_violations(model, decision), None)
    if broken is None and strategy in RESTS:
        broken = next(_returns(model, decision), None)
    if broken is not None:
        raise InvariantViolation(f"{where}: {strategy} {broken}")


def _violations(model: ClusterModel, decision: Decision) -> Iterator[str]:
    row_of = _rows(model) if decision.moves else {}
    seen: set[Bundle] = set()
    for move in decision.moves:
        row = row_of.get(move.bundle)
        if row is None:
            yield f"moves {move.bundle}, which nobody reported"
            continue
        if move.bundle in seen:
            yield f"moves {move.bundle} twice in one decision"
        seen.add(move.bundle)
        yield from _about_bundle(model, move, row)
        yield from _about_destination(model, move, row)


def _about_bundle(model: ClusterModel, move: Move, row: int) -> Iterator[str]:
    bundles, constraints = model.bundles, model.constraints
    if model.brokers.rows.get(move.source) != int(bundles.owner[row]):
        yield f"moves {move.bundle} from {move.source}, which does not hold it"
    if bundles.in_flight[row]:
        yield f"moves {move.bundle}, which is in flight"
    if constraints.fixed[row] != FREE:
        yield f"moves {move.bundle}, which is fixed: {constraints.rules[constraints.fixed[row]]}"


def _about_destination(model: ClusterModel, move: Move, row: int) -> Iterator[str]:
    if move.destination is None:
        return
    brokers = model.brokers
    destination = brokers.rows.get(move.destination)
    if destination is None:
        yield f"moves {move.bundle} to {move.destination}, which does not run"
        return
    if move.destination == move.source:
        yield f"moves {move.bundle} to where it is"
    for flags, wrong in ((brokers.draining, "drains"), (brokers.paused, "is paused"), (~brokers.known, "is unknown")):
        if flags[destination]:
            yield f"moves {move.bundle} to {move.destination}, which {wrong}"
    if model.constraints.forbidden[model.constraints.kind[row], destination] != ALLOWED:
        yield f"moves {move.bundle} to {move.destination}, where it may not be"


def _returns(model: ClusterModel, decision: Decision) -> Iterator[str]:
    row_of = _rows(model) if decision.moves else {}
    for move in decision.moves:
        row = row_of[move.bundle]
        if move.destination is None or model.bundles.changed[row]:
            continue
        destination = model.brokers.rows[move.destination]
        if destination in model.bundles.left.get(row, ()) and not no_other_way(model, row):
            age_s = model.bundles.moved_s[row]
            yield f"returns {move.bundle} to {move.destination} after {age_s:.0f} s; its load did not change"


def no_other_way(model: ClusterModel, bundle: int) -> bool:
    """Whether the bundle must leave its broker and has already left all others that may take it.

    Then it may return, whatever was promised.
    """
    brokers, constraints = model.brokers, model.constraints
    source, forbidden = int(model.bundles.owner[bundle]), constraints.forbidden[constraints.kind[bundle]] != ALLOWED
    if not (brokers.draining[source] or forbidden[source]):
        return False
    may = brokers.known & ~brokers.draining & ~brokers.paused & ~forbidden
    may[[source, *model.bundles.left.get(bundle, ())]] = False
    return not may.any()


def _rows(model: ClusterModel) -> dict[Bundle, int]:
    return {bundle: row for row, bundle in enumerate(model.bundles.ids)}
