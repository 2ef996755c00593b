"""Splits and merges of one incarnation: what each broker runs, and the leader's search for places for children."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.cluster.views import Views
from loadmanager.decisions.record import BEGUN
from loadmanager.leader.rebalancing.decider import Decider
from loadmanager.leader.rebalancing.limits import Limits, UnderWay, allow
from loadmanager.leader.rebalancing.moves import MoveStarter
from loadmanager.leader.service import Term
from loadmanager.leader.splitting.owner import Journal, KeysOf, Loads, Reshaper, What
from loadmanager.model.policies.effective import Ruling
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Move
from loadmanager.strategies.splitting.cuts import Bounds
from loadmanager.strategies.splitting.splits import Extreme, choose
from loadmanager.strategies.splitting.spreading import spread
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State
from statechannel.runtime.channel import Channel
from statechannel.runtime.tasks import failure_of

LOOK_S = 0.5
CAUSE = "spread"
_log = logging.getLogger(__name__)


class Spreader:
    """Finds places for children that owners report as `spread`; run `tend(term)` while a term lasts.

    It runs beside the rounds. It looks often and mostly finds nothing to do. It remembers its answers for its term; the
    next leader may answer once more, with the same moves or none.
    """

    def __init__(
        self,
        deciding: Decider,
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

    def tending(self, deciding: Decider) -> Spreader:
        """The leader's part."""
        deps = self._deps
        return Spreader(deciding, deps.views, self.safe_mode, self.journal, deps.note)

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
