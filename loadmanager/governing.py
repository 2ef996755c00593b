"""The leader's rounds beside its duties: balancing, and sweeping old load data. Runs for one term.

A round asks the strategy once, with moves in flight counted as done, and begins the transfers it decided. What it
decided, and why, is kept for people (`last`, notes) and travels in the records' `reason` and `cause`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loadmanager.balancing.history import MoveHistory
from loadmanager.balancing.model import Decision
from loadmanager.balancing.observation import Observed, cluster_model
from loadmanager.balancing.strategy import Strategy
from loadmanager.leader.service import Term
from loadmanager.membership import Membership
from loadmanager.registration import Peer
from loadmanager.settings import Settings
from loadmanager.views import Views
from statechannel.errors import LogError
from statechannel.table import OwnershipTable
from statechannel.transitions import State


class Governor:
    """Governs while a term lasts."""

    def __init__(
        self,
        table: OwnershipTable,
        membership: Membership,
        views: Views,
        history: MoveHistory,
        strategy: Strategy,
        settings: Settings,
        clocks: tuple[Callable[[], float], Callable[[], int]],
        note: Callable[[str], None],
    ) -> None:
        self._table = table
        self._membership = membership
        self._views = views
        self._history = history
        self._strategy = strategy
        self._settings = settings
        self._clock_s, self._wall_ms = clocks
        self._note = note
        self._rounds = 0
        self.last: Decision | None = None
        """The last round's decision."""

    async def govern(self, term: Term) -> None:
        """A round every `balancing_interval_s`, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.balancing_interval_s)
            if self._membership.safe_mode(self._clock_s()) is None:
                await self._round(term)

    async def _round(self, term: Term) -> None:
        try:
            await self._views.sweep()
        except LogError:
            return
        if self._settings.balancing:
            await self._begin(term, self.decide())

    def decide(self) -> Decision:
        """What a round would do now; changes nothing in the cluster."""
        live = tuple(p for p in self._membership.peers.values() if self._takes_part(p))
        observed = Observed(live, self._views.brokers, self._views.bundles, self._table, self._history, self._wall_ms())
        return self._strategy.decide(cluster_model(observed), self._settings)

    def _takes_part(self, peer: Peer) -> bool:
        return peer.broker not in self._membership.condemned and not peer.registration.behind

    async def _begin(self, term: Term, decision: Decision) -> None:
        self._rounds += 1
        self.last = decision
        cause = f"{term.leadership.epoch}.{self._rounds}"
        for move in decision.moves:
            entry = self._table.get(move.bundle)
            if entry is None or entry.state is not State.ASSIGNED or entry.holder != move.source:
                continue
            if await term.hands.transfer(move.bundle, entry.revision, move.destination, move.reason, cause):
                self._note(f"moving {move.bundle} to {move.destination.name}: {move.reason}")
