"""Wires splits and merges for one incarnation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.cluster.views import Views
from loadmanager.leader.rebalancing.deciding import Deciding
from loadmanager.leader.splitting.journal import Journal
from loadmanager.leader.splitting.leading import Tending
from loadmanager.leader.splitting.scheduler import KeysOf, Loads, Reshaper
from loadmanager.model.policies.effective import Ruling
from loadmanager.settings import Settings
from loadmanager.strategies.splitting.cuts import Bounds
from loadmanager.strategies.splitting.splits import Extreme, choose
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.runtime.channel import Channel


class SplittingDependencies(Protocol):
    """What it uses of the process: a part of `loadmanager.broker.node.Node`."""

    world: Dependencies
    channel: Channel
    membership: Membership
    views: Views
    policies: PolicyStore

    @property
    def settings(self) -> Settings: ...

    def note(self, text: str) -> None: ...


class Splitting:
    """Every incarnation runs `reshaper`; a leader also runs what `tending()` returns."""

    def __init__(
        self,
        me: BrokerId,
        deps: SplittingDependencies,
        loads: Callable[[], Loads],
        keys_of: KeysOf,
    ) -> None:
        self._deps = deps
        self._ruled: Ruling | None = None
        self._loads = loads
        self.journal = Journal(deps.world.wall_ms, deps.note)
        self.reshaper = Reshaper(
            me,
            deps.channel,
            loads,
            lambda: deps.settings,
            deps.policies.current,
            keys_of,
            self.safe_mode,
            deps.world.clock_s,
            deps.world.run_blocking,
            self.journal,
        )

    def tending(self, deciding: Deciding) -> Tending:
        """The leader's part."""
        deps = self._deps
        return Tending(deciding, deps.views, self.safe_mode, self.journal, deps.note)

    async def named(self, namespace: str, hash_range: str) -> Bundle:
        """The bundle of this range, or the one that LARGEST or HOT selects.

        Raises InvalidName, Conflict, Unavailable.
        """
        if hash_range not in list(Extreme):
            return Bundle.of(namespace, hash_range)
        deps = self._deps
        await deps.views.read_bundles()
        return choose(Extreme(hash_range), namespace, deps.channel.table, deps.views.bundles, self._loads().loads)

    def bounds_of(self, bundle: Bundle) -> Bounds:
        """The limits for cuts by load."""
        return Bounds.of(self.ruling().settings_of(bundle))

    def ruling(self) -> Ruling:
        """The ruling of the present settings and policies; the same object until they change."""
        settings, policies = self._deps.settings, self._deps.policies.current()
        if self._ruled is None or self._ruled.settings is not settings or self._ruled.policies is not policies:
            self._ruled = Ruling(settings, policies)
        return self._ruled

    def safe_mode(self) -> str | None:
        """Why all automatic decisions are suspended; None if they are not."""
        return self._deps.membership.safe_mode(self._deps.world.clock_s())
