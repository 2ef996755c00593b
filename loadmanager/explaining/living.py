"""What a living broker adds to what the logs say: the cluster as a round would see it at this moment."""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.decisions.memory import kept_memory
from loadmanager.explaining.situation import Situation
from loadmanager.governing.deciding import Deciding
from loadmanager.policies.model import Policy
from loadmanager.policies.store import PolicyStore


class LiveView:
    """Of the broker that these belong to; nobody needs to lead here."""

    def __init__(self, deciding: Deciding, policies: PolicyStore) -> None:
        self._deciding = deciding
        self._policies = policies

    async def now(self) -> Situation:
        """Without a round: nobody has decided it."""
        settings = self._deciding.settings()
        return Situation(
            at_ms=self._deciding.wall_ms(),
            settings=settings,
            strategy=settings.balancing_strategy,
            model=await self._deciding.model(settings),
            memory=kept_memory(self._deciding.memory),
            policies_revision=self._policies.documents.revision,
        )

    def documents(self) -> Mapping[str, Policy]:
        """The policies in force, by `kind/name`."""
        return self._policies.documents.values()
