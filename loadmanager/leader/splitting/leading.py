"""The leader's part in splits: finds places for children that owners report as `spread`.

Runs beside the rounds of a term. It looks often and mostly finds nothing to do. It remembers its answers for its term;
the next leader may answer once more, with the same moves or none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from loadmanager.cluster.views import Views
from loadmanager.decisions.record import BEGUN
from loadmanager.leader.rebalancing.deciding import Deciding
from loadmanager.leader.rebalancing.limits import Limits, UnderWay, allow
from loadmanager.leader.rebalancing.moves import MoveStarter
from loadmanager.leader.service import Term
from loadmanager.leader.splitting.journal import Journal, What
from loadmanager.strategies.rebalancing.decision import Move
from loadmanager.strategies.splitting.spreading import spread
from statechannel.law.bundle import Bundle
from statechannel.law.transitions import State
from statechannel.runtime.tasks import failure_of

LOOK_S = 0.5
CAUSE = "spread"
_log = logging.getLogger(__name__)


class Tending:
    """The leader's work on splits; run `tend(term)` while a term lasts."""

    def __init__(
        self,
        deciding: Deciding,
        views: Views,
        safe_mode: Callable[[], str | None],
        journal: Journal,
        note: Callable[[str], None],
    ) -> None:
        self._deciding = deciding
        self._views = views
        self._safe_mode = safe_mode
        self._journal = journal
        self._note = note
        self._answered: dict[Bundle, int] = {}
        """The children answered for, each with the token of its ownership at that time."""

    async def tend(self, term: Term) -> None:
        """Look until cancelled."""
        self._answered.clear()
        beginning = MoveStarter(self._deciding, term.executor)
        while True:
            await asyncio.sleep(LOOK_S)
            if self._safe_mode() is None:
                await failure_of("spreading children", self._spread(beginning), self._note)

    # --- children

    async def _spread(self, beginning: MoveStarter) -> None:
        children = self._asked()
        settings, policies = self._deciding.settings(), self._deciding.policies()
        if not children or not settings.balancing or policies.cluster.paused:
            return
        if settings.balancing_review:
            self._stay(
                (child for child in children), "moves need approval: the next round proposes those that are worth it"
            )
            return
        found = spread(await self._deciding.model(settings), children, settings)
        for bundle, why in found.stays.items():
            self._stay([bundle], why)
        under_way = UnderWay(self._deciding.table.in_flight())
        allowed = allow(found.moves, under_way, Limits.of(settings), policies)
        outcomes = await beginning.begin(allowed.moves, CAUSE)
        for move in allowed.moves:
            self._ended(move, outcomes[move.bundle].outcome == BEGUN, outcomes[move.bundle].detail)

    def _asked(self) -> list[Bundle]:
        """Children that are still with the owner that asked, and have no answer yet."""
        table, peers = self._deciding.table, self._deciding.membership.peers
        asked: list[Bundle] = []
        for name, top in self._views.bundles.items():
            peer = peers.get(name)
            if not top.spread or peer is None or peer.broker != top.broker:
                continue
            for bundle in top.spread:
                entry = table.get(bundle)
                if entry is None or entry.state is not State.ASSIGNED or entry.holder != top.broker:
                    continue
                if self._answered.get(bundle) != entry.token:
                    asked.append(bundle)
        self._answered = {bundle: token for bundle, token in self._answered.items() if table.get(bundle) is not None}
        return asked

    def _stay(self, bundles: Iterable[Bundle], why: str) -> None:
        for bundle in bundles:
            self._answer(bundle)
            self._journal.happened(What.KEPT, bundle, why, quietly=True)

    def _ended(self, move: Move, begun: bool, detail: str) -> None:
        if begun:
            self._answer(move.bundle)
            self._journal.happened(What.SPREAD, move.bundle, f"to {move.destination}: {move.reason}")
        else:
            _log.info("the child %s was not moved, the next look tries again: %s", move.bundle, detail)

    def _answer(self, bundle: Bundle) -> None:
        entry = self._deciding.table.get(bundle)
        if entry is not None:
            self._answered[bundle] = entry.token
