"""Spreads the children of a split over the brokers, by their load. Pure.

The owner that split a bundle asks for this in its `TopBundlesLoadData`. A split alone relieves no broker, and a round
of the strategy acts only on a broker that is too full. So children are placed at once by their own rule. The hottest
comes first. Each goes to the broker that is least full with it, and of equal ones to the one with the fewest siblings.
No broker becomes fuller than the owner was; a child that no other broker can take stays. A child need not rest: the
channel remembers moves by bundle, and knows none of it yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, FREE, ClusterModel, Floats
from loadmanager.model.load import weights_of
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Move, Stage
from statechannel.law.bundle import Bundle

_AS_FULL = 1e-9


class Spreading(msgspec.Struct, frozen=True):
    """Moves to make now, and why the other children stay."""

    moves: tuple[Move, ...]
    stays: Mapping[Bundle, str]


def spread(model: ClusterModel, children: Iterable[Bundle], settings: Settings) -> Spreading:
    """Places for these children, if the model has them; the children of one owner are siblings."""
    rows = {bundle: row for row, bundle in enumerate(model.bundles.ids)}
    placing = _Placing(model, np.array(weights_of(settings).row))
    moves: list[Move] = []
    stays: dict[Bundle, str] = {}
    by_owner: dict[int, list[int]] = {}
    for bundle in sorted(set(children)):
        row = rows.get(bundle)
        why = "its owner has not reported it" if row is None else placing.why_fixed(row)
        if why or row is None:
            stays[bundle] = why
        else:
            by_owner.setdefault(int(model.bundles.owner[row]), []).append(row)
    for owner, siblings in sorted(by_owner.items()):
        for row, found in placing.siblings(owner, siblings):
            if isinstance(found, Move):
                moves.append(found)
            else:
                stays[model.bundles.ids[row]] = found
    return Spreading(tuple(moves), stays)


class _Placing:
    """One pass over a model; each decision counts for the next."""

    def __init__(self, model: ClusterModel, weights: Floats) -> None:
        brokers = model.brokers
        self._model = model
        self._scale = weights / brokers.capacity
        self._used = brokers.used.copy()
        self._bundles = brokers.bundles.copy()
        self._open = brokers.takes_part

    def why_fixed(self, row: int) -> str:
        """Why a child cannot move at all, empty if it can."""
        bundles, constraints = self._model.bundles, self._model.constraints
        owner = int(bundles.owner[row])
        if bundles.in_flight[row]:
            return "it is on its way already"
        if owner < 0 or not self._model.brokers.known[owner] or self._model.brokers.paused[owner]:
            return "its owner is unknown, or paused"
        if constraints.fixed[row] != FREE:
            return constraints.rules[int(constraints.fixed[row])]
        return ""

    def siblings(self, owner: int, rows: list[int]) -> list[tuple[int, Move | str]]:
        """The place of each sibling, the hottest first."""
        loads = self._model.bundles.load
        as_it_was = self._usage()[owner]
        rows = sorted(rows, key=lambda row: (-float((loads[row] * self._scale[owner]).max()), row))
        self._used[owner] = np.maximum(0.0, self._used[owner] - loads[rows].sum(axis=0))
        siblings = np.zeros(len(self._used), np.int64)
        found: list[tuple[int, Move | str]] = []
        for row in rows:
            before = self._usage()
            after = ((self._used + loads[row]) * self._scale).max(axis=1)
            allowed = self._allowed(row, owner) & (after <= as_it_was + _AS_FULL)
            allowed[owner] = True
            elsewhere = np.arange(len(after)) != owner  # among equals the owner: to stay costs nothing
            order = np.lexsort((self._bundles, elsewhere, siblings, np.round(after, 6)))
            chosen = int(next(each for each in order if allowed[each]))
            self._used[chosen] += loads[row]
            siblings[chosen] += 1
            if chosen == owner:
                alone = not bool(np.delete(allowed, owner).any())
                found.append((row, "no other broker has room for it" if alone else "its owner keeps this part"))
                continue
            self._bundles[owner] -= 1
            self._bundles[chosen] += 1
            found.append((row, self._move(row, owner, chosen, as_it_was, before, after)))
        return found

    def _usage(self) -> Floats:
        return (self._used * self._scale).max(axis=1)

    def _allowed(self, row: int, owner: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        brokers, constraints = self._model.brokers, self._model.constraints
        allowed = self._open & (constraints.forbidden[constraints.kind[row]] == ALLOWED)
        allowed &= self._bundles < brokers.max_bundles
        group = int(constraints.group[row])
        if group != FREE and constraints.presence is not None:
            allowed &= constraints.presence[group] <= constraints.presence[group, owner]
        return allowed

    def _move(self, row: int, owner: int, chosen: int, as_it_was: float, before: Floats, after: Floats) -> Move:
        model = self._model
        bundle, source, destination = model.bundles.ids[row], model.brokers.ids[owner], model.brokers.ids[chosen]
        reason = (
            f"child of a split: {source.name} was {as_it_was:.1%} full with all parts; "
            f"{destination.name} goes from {before[chosen]:.1%} to {after[chosen]:.1%}"
        )
        return Move(
            bundle,
            source,
            destination,
            reason,
            Stage.BALANCE,
            load=float((model.bundles.load[row] * self._scale[chosen]).max()),
            source_before=float(as_it_was),
            source_after=float(before[owner]),
            destination_before=float(before[chosen]),
            destination_after=float(after[chosen]),
        )
