"""Advice in an incarnation: wires the leader's work on it when a term begins. Imports what that needs only then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from loadmanager.channel.operations import Operations
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.decisions.log import DecisionLog
from loadmanager.leader.advice.counts import AdviceCounts
from loadmanager.leader.rebalancing.rebalancer import Rebalancer
from loadmanager.leader.service import Term
from loadmanager.settings import Settings
from loadmanager.settings.dynamic.live import LiveSettings
from statechannel.runtime.service import Channel

if TYPE_CHECKING:
    from loadmanager.leader.advice.board import AdviceBoard
    from loadmanager.leader.advice.hands.contract import Hand
    from loadmanager.leader.advice.service import Following


class AdviceDependencies(Protocol):
    """What is needed of the process; see `incarnation.Grounds`."""

    live: LiveSettings
    world: Dependencies
    channel: Channel
    membership: Membership
    policies: PolicyStore
    decisions: DecisionLog

    @property
    def advice(self) -> AdviceBoard: ...

    @property
    def settings(self) -> Settings: ...

    def note(self, text: str) -> None: ...


class Advising:
    """One incarnation's work on advice."""

    def __init__(self, deps: AdviceDependencies, rebalancer: Rebalancer, operations: Operations) -> None:
        self.counts = AdviceCounts()
        self.following: Following | None = None
        """While this broker leads."""
        self._deps = deps
        self._rebalancer = rebalancer
        self._operations = operations

    async def lead(self, term: Term) -> None:
        """Follow the cluster's advice until cancelled."""
        from loadmanager.leader.advice.measured_rounds import MeasuredRounds
        from loadmanager.leader.advice.service import Following

        deps = self._deps
        self.following = Following(
            deps.advice,
            self._hands(),
            MeasuredRounds(deps.decisions),
            lambda: deps.settings,
            self._held_up,
            term.leadership.epoch,
            str(term.leadership.leader),
            deps.note,
            self.counts,
        )
        try:
            await self.following.follow()
        finally:
            self.following = None

    def waiting(self, advice_id: str) -> str:
        """Why advice is not further on, as far as it is known here: the leader knows."""
        return "" if self.following is None else self.following.waiting.get(advice_id, "")

    def _hands(self) -> Mapping[str, Hand]:
        from loadmanager.leader.advice.hands.moves import MovesHand
        from loadmanager.leader.advice.hands.settings import SettingsHand
        from loadmanager.leader.advice.hands.splits import SplitsHand

        deps, deciding = self._deps, self._rebalancer.deciding
        return {
            "settings": SettingsHand(deps.live),
            "splits": SplitsHand(deps.channel.table, self._operations, lambda: deps.settings, deps.world.wall_ms),
            "moves": MovesHand(self._rebalancer.shelf, deciding, deciding.taking),
        }

    def _held_up(self) -> str:
        """Why nothing is to be begun now; empty if it may be."""
        deps = self._deps
        safe_mode = deps.membership.safe_mode(deps.world.clock_s())
        if safe_mode is not None:
            return safe_mode
        return "the cluster is paused" if deps.policies.current().cluster.paused else ""
