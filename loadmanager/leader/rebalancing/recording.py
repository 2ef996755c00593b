"""Writes finished rounds to the decision log in the background: a log that does not answer delays no move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from loadmanager.decisions.record import DecisionRecord, Outcome, record_of
from loadmanager.leader.rebalancing.round import Counts, Round
from loadmanager.model.run_blocking import Blocking, at_once
from statechannel.law.record import BrokerId

WAITING_AT_MOST = 16
NOT_TRIED = Outcome("not tried")


class Records(Protocol):
    """Where decision records go; `loadmanager.decisions.log.DecisionLog` is one."""

    async def append(self, record: DecisionRecord) -> None:
        """Keep the record. Raises whatever the log raises."""
        ...


class Recording:
    """Records the rounds of one term, in order. Run `run()` beside them."""

    def __init__(
        self, records: Records, counts: Counts, note: Callable[[str], None], run_blocking: Blocking = at_once
    ) -> None:
        self._records = records
        self._counts = counts
        self._note = note
        self._run_blocking = run_blocking
        self._queue: asyncio.Queue[Round] = asyncio.Queue(WAITING_AT_MOST)

    def keep(self, this: Round) -> None:
        """Queue the round; drop it if the log is too far behind."""
        try:
            self._queue.put_nowait(this)
        except asyncio.QueueFull:
            self._lost(this, f"{WAITING_AT_MOST} records wait for the log")

    async def run(self, leader: BrokerId) -> None:
        """Append until cancelled."""
        while True:
            this = await self._queue.get()
            try:
                await self._records.append(await self._run_blocking(partial(_record, this, leader)))
            except Exception as error:  # noqa: BLE001 - nothing about a record may stop balancing
                self._lost(this, repr(error))

    def _lost(self, this: Round, why: str) -> None:
        self._counts.records_failed += 1
        self._note(f"the decision of round {this.id} was not recorded: {why}")


def _record(this: Round, leader: BrokerId) -> DecisionRecord:
    moves = this.decision.moves
    return record_of(
        this.id,
        leader,
        this.at_ms,
        this.decision,
        strategy=this.settings.balancing_strategy,
        settings=this.settings,
        model=this.model,
        memory=this.memory,
        policies_revision=this.policies,
        outcomes=[this.outcomes.get(move.bundle, NOT_TRIED) for move in moves],
        without_model=this.why_no_model,
    )
