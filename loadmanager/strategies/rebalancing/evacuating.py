"""Adds drains and policies to a strategy that knows neither: first the moves that must be, then the strategy's.

Pulsar's shedders only ask whether a bundle may go somewhere, never whether it must leave its broker (there a changed
policy unloads whole namespaces). A round with bundles to evacuate does nothing else, so that the strategy decides in a
cluster at rest, exactly as it would by itself.
"""

from __future__ import annotations

import msgspec

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.plan.planner import evacuation
from loadmanager.strategies.rebalancing.strategy import Strategy


class Evacuating:
    """Wraps `strategy` under its name."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    @property
    def name(self) -> str:
        """The wrapped strategy's name."""
        return self._strategy.name

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """The moves that must be; if there are none, the strategy's decision."""
        must = evacuation(model, settings)
        if must.moves:
            return msgspec.structs.replace(must, memory=memory)
        return self._strategy.decide(model, settings, memory)
