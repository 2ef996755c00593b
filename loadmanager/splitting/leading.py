"""The leader's part in splits: places for the children that owners ask it for, and quarantine for deadly bundles.

Runs beside the rounds of a term. It looks often and finds nothing to do nearly always: at what owners report as
`spread`, and at what `Quarantine` has counted. What it has answered it remembers for its term; the next leader may
answer once more, with the same moves or none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from loadmanager.balancing.decision import Move
from loadmanager.decisions.record import BEGUN
from loadmanager.errors import LoadManagerError
from loadmanager.governing.beginning import Beginning
from loadmanager.governing.deciding import Deciding
from loadmanager.governing.limits import Limits, UnderWay, allow
from loadmanager.leader.service import Term
from loadmanager.policies.model import BundlePolicy, Kind
from loadmanager.policies.store import PolicyStore
from loadmanager.splitting.blame import Suspect
from loadmanager.splitting.journal import Journal, What
from loadmanager.splitting.quarantine import Quarantine
from loadmanager.splitting.ruling import Ruling
from loadmanager.splitting.spreading import spread
from loadmanager.views import Views
from statechannel.bundle import Bundle
from statechannel.errors import StateChannelError
from statechannel.transitions import State

LOOK_S = 0.5
CAUSE = "spread"
REASON_CHARACTERS = 900
_log = logging.getLogger(__name__)


class Tending:
    """Run `tend(term)` while a term lasts."""

    def __init__(
        self,
        deciding: Deciding,
        views: Views,
        policies: PolicyStore,
        quarantine: Quarantine,
        safe_mode: Callable[[], str | None],
        journal: Journal,
        note: Callable[[str], None],
    ) -> None:
        self._deciding = deciding
        self._views = views
        self._policies = policies
        self._quarantine = quarantine
        self._safe_mode = safe_mode
        self._journal = journal
        self._note = note
        self._answered: dict[Bundle, int] = {}
        """By the token of the ownership for which a child was asked about."""

    async def tend(self, term: Term) -> None:
        """Look until cancelled."""
        self._answered.clear()
        beginning = Beginning(self._deciding, term.hands)
        while True:
            await asyncio.sleep(LOOK_S)
            if self._safe_mode() is None:
                await self._survive("the quarantine", self._lock_up(str(term.leadership.leader)))
                await self._survive("spreading children", self._spread(beginning))

    async def _survive(self, what: str, work: Awaitable[None]) -> None:
        try:
            await work
        except (StateChannelError, LoadManagerError, TimeoutError) as error:
            self._note(f"{what} was cut short: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the term
            _log.exception("%s failed", what)
            self._note(f"{what} failed: {error!r}")

    # --- children

    async def _spread(self, beginning: Beginning) -> None:
        children = self._asked()
        settings, policies = self._deciding.settings(), self._deciding.policies()
        if not children or not settings.balancing or policies.cluster.paused:
            return
        if settings.balancing_review:
            self._stay((child for child in children), "moves are reviewed: the next round proposes what is worth it")
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
        """Children that still are where they were born, and that we have not answered for."""
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

    # --- deadly bundles

    async def _lock_up(self, leader: str) -> None:
        if not self._quarantine.suspects(1):
            return
        ruling = Ruling(self._deciding.settings(), self._deciding.policies())
        for suspect in self._quarantine.condemned(lambda bundle: ruling.settings_of(bundle).quarantine_deaths):
            if self._deciding.table.get(suspect.bundle) is not None and not self._is_locked_up(suspect.bundle):
                await self._quarantine_one(suspect, leader)

    def _is_locked_up(self, bundle: Bundle) -> bool:
        policy = self._deciding.policies().bundles.get(bundle)
        return policy is not None and bool(policy.quarantined)

    async def _quarantine_one(self, suspect: Suspect, leader: str) -> None:
        reason = str(suspect)[:REASON_CHARACTERS]

        def locked(policy: BundlePolicy) -> BundlePolicy:
            return msgspec.structs.replace(policy, quarantined=reason)

        await self._policies.change(
            Kind.BUNDLE, str(suspect.bundle), locked, author=leader, reason="brokers died of it", force=True
        )
        self._journal.happened(What.QUARANTINED, suspect.bundle, reason)
