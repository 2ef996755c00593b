"""Everything about splits, merges and quarantine that lives with one incarnation, wired together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from loadmanager.cluster.membership import Membership
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.cluster.surroundings import Surroundings
from loadmanager.cluster.views import Views
from loadmanager.leader.quarantine.quarantine import Quarantine
from loadmanager.leader.quarantine.trials import Trials
from loadmanager.leader.rebalancing.deciding import Deciding
from loadmanager.leader.splitting.journal import Journal
from loadmanager.leader.splitting.leading import Tending
from loadmanager.leader.splitting.locking import Locking
from loadmanager.leader.splitting.scheduler import Loads, Reshaper, Survey
from loadmanager.model.policies.ruling import Ruling
from loadmanager.settings import Settings
from loadmanager.strategies.splitting.choosing import Extreme, choose
from loadmanager.strategies.splitting.cutting import Bounds
from statechannel.law.bundle import Bundle
from statechannel.law.record import Broker
from statechannel.law.verdict import Ownership
from statechannel.runtime.service import Channel


class Grounds(Protocol):
    """What is needed of the process; see `incarnation.Grounds`."""

    world: Surroundings
    channel: Channel
    membership: Membership
    views: Views
    policies: PolicyStore
    quarantine: Quarantine
    trials: Trials

    @property
    def settings(self) -> Settings: ...

    def note(self, text: str) -> None: ...


class Splitting:
    """`reshaper` is to be run by every incarnation; `tending()` gives what a leader runs."""

    def __init__(
        self,
        me: Broker,
        grounds: Grounds,
        loads: Callable[[], Loads],
        survey: Survey,
    ) -> None:
        self._grounds = grounds
        self._ruled: Ruling | None = None
        self._loads = loads
        self.journal = Journal(grounds.world.wall_ms, grounds.note)
        self.reshaper = Reshaper(
            me,
            grounds.channel,
            loads,
            lambda: grounds.settings,
            grounds.policies.current,
            survey,
            self._safe_mode,
            grounds.world.clock_s,
            grounds.world.apart,
            self.journal,
        )

    def tending(self, deciding: Deciding, emptiest: Callable[[Ownership, Collection[str]], Broker | None]) -> Tending:
        """The leader's part; `deciding` knows the cluster, `emptiest` where to try what brokers died with."""
        grounds = self._grounds
        locking = Locking(
            deciding, grounds.policies, grounds.quarantine, grounds.trials, emptiest, self.ruling, self.journal
        )
        return Tending(deciding, grounds.views, locking, self._safe_mode, self.journal, grounds.note)

    def held_back(self, bundle: Bundle) -> str:
        """Why nobody is to be given the bundle at present, empty if it may be: brokers died of it."""
        grounds = self._grounds
        if bundle not in grounds.quarantine:
            return ""
        deaths = self.ruling().settings_of(bundle).quarantine_deaths
        return grounds.quarantine.held_back(bundle, deaths, grounds.world.wall_ms())

    def named(self, namespace: str, hash_range: str) -> Bundle:
        """The bundle of this range, or the one that LARGEST or HOT stands for. Raises InvalidName, Conflict."""
        if hash_range not in list(Extreme):
            return Bundle.of(namespace, hash_range)
        grounds = self._grounds
        return choose(Extreme(hash_range), namespace, grounds.channel.table, grounds.views.bundles, self._loads().loads)

    def bounds_of(self, bundle: Bundle) -> Bounds:
        """What cuts by load go by."""
        return Bounds.of(self.ruling().settings_of(bundle))

    def ruling(self) -> Ruling:
        """What settings and policies say at this moment; the same object until they change."""
        settings, policies = self._grounds.settings, self._grounds.policies.current()
        if self._ruled is None or self._ruled.settings is not settings or self._ruled.policies is not policies:
            self._ruled = Ruling(settings, policies)
        return self._ruled

    def _safe_mode(self) -> str | None:
        return self._grounds.membership.safe_mode(self._grounds.world.clock_s())
