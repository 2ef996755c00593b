"""The interface of rebalancing strategies: which bundles the leader should move now. No clock, no I/O, no randomness.

Third-party strategies are installed by an entry point of group `loadmanager.strategies` (see `registry.py`).
"""

from __future__ import annotations

from typing import Protocol

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision


class Strategy(Protocol):
    """Decides moves. The same model, settings and memory give the same decision: it can be previewed and replayed."""

    @property
    def name(self) -> str:
        """Its name in the setting `balancing_strategy`."""
        ...

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """Moves, or none and why. `memory` is that of the last decision, None in a leader's first round.

        Every strategy must keep these rules: no move of a bundle that is in flight or fixed, none to a broker that is
        draining, paused, without fresh load data or forbidden for the bundle, and none at all once the cluster is
        balanced by its own measure.
        """
        ...
