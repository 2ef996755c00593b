"""The interface of every balancing strategy: which bundles the leader should move now. No clock, no I/O, no chance.

Third-party ones come in by an entry point of group `loadmanager.strategies` (see `registry.py`).
"""

from __future__ import annotations

from typing import Protocol

from loadmanager.balancing.model import ClusterModel, Decision
from loadmanager.settings import Settings


class Strategy(Protocol):
    """Decides moves. The same model and settings get the same decision, so it can be run dry, and replayed."""

    @property
    def name(self) -> str:
        """What the setting `balancing_strategy` says."""
        ...

    def decide(self, model: ClusterModel, settings: Settings) -> Decision:
        """At most `balancing_moves_per_round` moves, or none and why.

        Owed by every strategy: no move of a bundle that is in flight or rests, none to or from a broker that is
        draining or has no fresh load data, and none at all once the cluster is balanced by its own measure.
        """
        ...
