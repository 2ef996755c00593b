"""The leader's balance work, beside its duties: rounds, running plans, removal of old load data. One term at a time.

No failure here ends the term: it is noted and counted, and the next look continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from structlog.contextvars import bound_contextvars

from loadmanager.cluster.views import Views
from loadmanager.decisions.record import id_of
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.rebalancing.beginning import Beginning
from loadmanager.leader.rebalancing.deciding import Deciding
from loadmanager.leader.rebalancing.recording import Recording, Records
from loadmanager.leader.rebalancing.round import Counts, Round
from loadmanager.leader.rebalancing.rounds import Rounds
from loadmanager.leader.rebalancing.running import Running
from loadmanager.leader.service import Term
from loadmanager.strategies.rebalancing.decision import Decision
from statechannel.errors import LogError
from statechannel.runtime.supervising import failure_of, is_bug

LOOK_S = 0.5
"""The time between two looks at plans, and at moves that were held back."""


class Rebalancer:
    """Rebalances during a term; `decide` works at any time, at any broker.

    `decided` gets each round, and the seconds that it took; `fields_of` gives the fields of its log lines.
    """

    def __init__(
        self,
        deciding: Deciding,
        views: Views,
        plans: PlanStore,
        records: Records,
        clock_s: Callable[[], float],
        note: Callable[[str], None],
        decided: Callable[[Round, float], None] = lambda _round, _took_s: None,
        fields_of: Callable[[str], Mapping[str, str]] = lambda cause: {"cause": cause},
    ) -> None:
        self._decided = decided
        self._fields_of = fields_of
        self.deciding = deciding
        self.plans = plans
        self.counts = Counts()
        self.rounds: Rounds | None = None
        """The rounds of the present term, or of this broker's last one."""
        self.running: Running | None = None
        """While this broker leads."""
        self.waiting: dict[str, str] = {}
        """Why plans with advice make no progress, by id; while this broker leads."""
        self._views = views
        self._records = records
        self._clock_s = clock_s
        self._note = note

    @property
    def last(self) -> Round | None:
        """The last round that this broker led."""
        return None if self.rounds is None else self.rounds.last

    async def decide(self) -> Decision:
        """What a round would do now; changes nothing, not even the memory.

        Raises ValueError for an unknown strategy, StrategyFailed, and what a foreign package raises when it is loaded.
        """
        settings = self.deciding.settings()
        return await self.deciding.would_decide(await self.deciding.model(settings), settings)

    async def rebalance(self, term: Term) -> None:
        """Run a round every `balancing_interval_s`, until cancelled."""
        leader = term.leadership.leader
        self.deciding.forget()
        beginning = Beginning(self.deciding, term.executor)
        recording = Recording(self._records, self.counts, self._note, self.deciding.run_blocking)
        rounds = Rounds(self.deciding, self.plans, beginning, self.counts, str(leader), self._note)
        running = Running(self.plans, self.deciding, beginning, self.counts, str(leader), self._note)
        self.rounds, self.running = rounds, running
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(recording.run(leader))
                await self._look_for_ever(term.leadership.epoch, rounds, running, recording)
        finally:
            self.running = None

    async def _look_for_ever(self, epoch: int, rounds: Rounds, running: Running, recording: Recording) -> None:
        number, last_s = 0, self._clock_s()
        while True:
            interval_s = self.deciding.settings().balancing_interval_s
            await asyncio.sleep(min(LOOK_S, interval_s))
            if self.deciding.membership.safe_mode(self._clock_s()) is not None:
                continue
            await self._survive("a look at the plans", running.tick())
            if self._clock_s() - last_s < interval_s:
                await self._survive("what was held back", rounds.begin_more())
            elif await self._loads_are_read():
                number, last_s = number + 1, self._clock_s()
                self.counts.last_round_s = last_s
                await self._survive("a round", self._round(id_of(epoch, number), rounds, recording))

    async def _round(self, round_id: str, rounds: Rounds, recording: Recording) -> None:
        began_s = self._clock_s()
        with bound_contextvars(**self._fields_of(round_id)):
            done = await rounds.next(round_id)
        self._decided(done, self._clock_s() - began_s)
        recording.keep(done)

    async def _loads_are_read(self) -> bool:
        """Remove old load data; whether all of the rest is read. Else there is nothing to decide on."""
        if not (self._views.brokers.ready and self._views.bundles.ready):
            return False
        try:
            await self._views.sweep()
        except (LogError, TimeoutError):
            return False
        return True

    async def _survive(self, what: str, work: Awaitable[None]) -> None:
        if is_bug(await failure_of(what, work, self._note)):
            self.counts.rounds_failed += 1
