"""Strategies that are simple enough to know what they will do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.playground.scenario import CPU
from loadmanager.strategies.rebalancing.decision import Decision, Move


class Scripted:
    """Does in each round what the function says, given the model and the number of the round."""

    def __init__(self, moves: Callable[[ClusterModel, int], list[Move]], name: str = "scripted") -> None:
        self._moves = moves
        self.name = name
        self.models: list[ClusterModel] = []

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        at = memory if isinstance(memory, int) else 0
        self.models.append(model)
        return Decision(tuple(self._moves(model, at)), "as scripted", memory=at + 1)


def still() -> Scripted:
    return Scripted(lambda model, at: [], "still")


def move(model: ClusterModel, bundle: int, destination: int | None) -> Move:
    """Of the bundle in a row of the model to a broker's row."""
    brokers = model.brokers.ids
    source = brokers[int(model.bundles.owner[bundle])]
    return Move(model.bundles.ids[bundle], source, None if destination is None else brokers[destination], "as scripted")


def even_out(model: ClusterModel, at: int) -> list[Move]:
    """Moves from the fullest to the emptiest while that helps, by CPU alone, and nothing that rests or is fixed."""
    brokers, bundles = model.brokers, model.bundles
    used = brokers.used[:, CPU] / brokers.capacity[:, CPU]
    used[brokers.draining] = 10.0
    may = brokers.known & ~brokers.draining
    rests = (bundles.moved_s < model.constraints.rest_s) & ~bundles.changed
    moves: list[Move] = []
    for row in np.argsort(-bundles.load[:, CPU]):
        source, load = int(bundles.owner[row]), bundles.load[row, CPU]
        destination = int(np.argmin(np.where(may, used, np.inf)))
        after = used[destination] + load / brokers.capacity[destination, CPU]
        free = not (rests[row] or bundles.in_flight[row] or model.constraints.fixed[row] >= 0)
        if free and source != destination and after < 0.98 * used[source]:
            moves.append(move(model, int(row), destination))
            used[source] -= load / brokers.capacity[source, CPU]
            used[destination] = after
    return moves
