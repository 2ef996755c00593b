"""A strategy that knows neither drains nor policies, with those ahead of it: first what must move, then what it likes.

Pulsar's shedders only ask whether a bundle may go somewhere; that it must leave where it is is nobody's matter there (a
changed policy unloads whole namespaces). A round that has something to evacuate does nothing else, so that what the
strategy decides, it decides in a cluster at rest, exactly as it would by itself.
"""

from __future__ import annotations

import msgspec

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.plan.planner import evacuation
from loadmanager.strategies.rebalancing.strategy import Strategy


class Evacuating:
    """`strategy`, and its name; see the module."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    @property
    def name(self) -> str:
        """The strategy's."""
        return self._strategy.name

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """What must move; where nothing must, the strategy's decision."""
        must = evacuation(model, settings)
        if must.moves:
            return msgspec.structs.replace(must, memory=memory)
        return self._strategy.decide(model, settings, memory)
