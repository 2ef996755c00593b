"""Advice in an incarnation: wires the leader's work on it when a term begins. Imports what that needs only then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from loadmanager.channel.operations import Operations
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.cluster.surroundings import Surroundings
from loadmanager.decisions.log import DecisionLog
from loadmanager.leader.advice.counts import AdviceCounts
from loadmanager.leader.rebalancing.governor import Governor
from loadmanager.leader.service import Term
from loadmanager.settings import Settings
from loadmanager.settings.dynamic.live import LiveSettings
from statechannel.runtime.service import Channel

if TYPE_CHECKING:
    from loadmanager.leader.advice.board import AdviceBoard
    from loadmanager.leader.advice.hands.contract import Hand
    from loadmanager.leader.advice.service import Following


class Grounds(Protocol):
    """What is needed of the process; see `incarnation.Grounds`."""

    live: LiveSettings
    world: Surroundings
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

    def __init__(self, grounds: Grounds, governor: Governor, operations: Operations) -> None:
        self.counts = AdviceCounts()
        self.following: Following | None = None
        """While this broker leads."""
        self._grounds = grounds
        self._governor = governor
        self._operations = operations

    async def lead(self, term: Term) -> None:
        """Follow the cluster's advice until cancelled."""
        from loadmanager.leader.advice.measured_rounds import MeasuredRounds
        from loadmanager.leader.advice.service import Following

        grounds = self._grounds
        self.following = Following(
            grounds.advice,
            self._hands(),
            MeasuredRounds(grounds.decisions),
            lambda: grounds.settings,
            self._held_up,
            term.leadership.epoch,
            str(term.leadership.leader),
            grounds.note,
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

        grounds, deciding = self._grounds, self._governor.deciding
        return {
            "settings": SettingsHand(grounds.live),
            "splits": SplitsHand(
                grounds.channel.table, self._operations, lambda: grounds.settings, grounds.world.wall_ms
            ),
            "moves": MovesHand(self._governor.shelf, deciding, deciding.taking),
        }

    def _held_up(self) -> str:
        """Why nothing is to be begun now; empty if it may be."""
        grounds = self._grounds
        safe_mode = grounds.membership.safe_mode(grounds.world.clock_s())
        if safe_mode is not None:
            return safe_mode
        return "the cluster is paused" if grounds.policies.current().cluster.paused else ""
