"""What a living broker adds to what the logs say: the cluster as a round would see it at this moment."""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.decisions.memory import kept_memory
from loadmanager.explaining.situation import Situation
from loadmanager.governing.deciding import Deciding
from loadmanager.policies.model import Policy
from loadmanager.policies.store import PolicyStore
from loadmanager.splitting.quarantine import Quarantine
from statechannel.bundle import Bundle


class LiveView:
    """Of the broker that these belong to; nobody needs to lead here."""

    def __init__(self, deciding: Deciding, policies: PolicyStore, quarantine: Quarantine) -> None:
        self._deciding = deciding
        self._policies = policies
        self._quarantine = quarantine

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

    def evidence(self, bundle: Bundle) -> tuple[str, ...]:
        """What speaks for and against a bundle with which brokers were lost; empty if none was."""
        if bundle not in self._quarantine:
            return ()
        found = self._quarantine.standing(bundle)
        return (str(found), *map(str, found.steps))
