"""Begins the leader's moves, each only if the bundle is still where the decision saw it, and nothing is paused.

Moves of one group begin one after the other; if one fails, those before it are called off.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

import msgspec

from loadmanager.decisions.record import BEGUN, Outcome
from loadmanager.leader.rebalancing.decider import Decider
from loadmanager.leader.rebalancing.limits import paused_by
from loadmanager.leader.service import DutyExecutor
from loadmanager.strategies.rebalancing.decision import Move, grouped
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Reason, Refusal, Unknown

HELD_BACK = "held back"
MOVED_ON = "moved on"
REFUSED = "refused"
NO_ANSWER = "no answer"
CALLED_OFF = "called off"
NO_DESTINATION = "no destination"
FORBIDDEN = "forbidden"
DEPOSED = "deposed"
"""Another broker leads: the move is now its business, so nothing is recorded."""

GROUPS_AT_ONCE = 16


class Counts:
    """Counts since this incarnation began."""

    def __init__(self) -> None:
        self.rounds = 0
        self.rounds_failed = 0
        self.records_failed = 0
        self.plans = 0
        """Plans that rounds proposed, if moves are reviewed."""
        self.moves: Counter[str] = Counter()
        """Moves that rounds and plans began, by stage."""
        self.held_back: Counter[str] = Counter()
        """Moves that a round could not begin at once, by rule."""
        self.advice: Counter[str] = Counter()
        """Acts on plans with advice, by kind; see `balance_metrics`."""
        self.advice_failures = 0
        self.last_round_s: float | None = None
        """When the last round began, on this broker's clock."""


class MoveStarter:
    """Begins moves with the executor of one term."""

    def __init__(self, deciding: Decider, executor: DutyExecutor) -> None:
        self._deciding = deciding
        self._executor = executor

    async def begin(
        self,
        moves: Sequence[Move],
        cause: str,
        seen: Mapping[Bundle, int] | None = None,
        decided_under: int | None = None,
    ) -> dict[Bundle, Outcome]:
        """Begin the moves, and return the outcome of each.

        `seen` are revisions that the bundles must still have. `decided_under` is the revision of the policies of the
        decision; None if it was made just now.
        """
        changed = decided_under is not None and decided_under != self._deciding.policies().revision
        forbidden = self._forbidden(moves) if changed else {}
        outcomes: dict[Bundle, Outcome] = {}
        groups = list(grouped(moves))
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            batch = groups[first : first + GROUPS_AT_ONCE]
            for found in await asyncio.gather(*(self._group(group, cause, seen or {}, forbidden) for group in batch)):
                outcomes |= found
        return outcomes

    async def _group(
        self, group: Sequence[Move], cause: str, seen: Mapping[Bundle, int], forbidden: Mapping[Bundle, Outcome]
    ) -> dict[Bundle, Outcome]:
        found = [(move, forbidden.get(move.bundle) or self._refusal(move, seen)) for move in group]
        refusals = [(move, refusal) for move, refusal in found if refusal is not None]
        if refusals:
            outcomes = {move.bundle: found for move, found in refusals}
            return outcomes | {m.bundle: _with(refusals[0]) for m in group if m.bundle not in outcomes}
        outcomes: dict[Bundle, Outcome] = {}
        begun: list[tuple[Move, int]] = []
        for move in group:
            outcome, revision = await self._one(move, cause)
            outcomes[move.bundle] = outcome
            if outcome.outcome != BEGUN:
                return (
                    outcomes | await self._call_off(begun, (move, outcome), cause) | _never_begun(group, outcomes, move)
                )
            begun.append((move, revision))
        return outcomes

    async def _one(self, move: Move, cause: str) -> tuple[Outcome, int]:
        entry = self._deciding.table.get(move.bundle)
        if entry is None or entry.state is not State.ASSIGNED or entry.holder != move.source:
            return Outcome(MOVED_ON, f"{move.bundle} is not at {move.source} any more"), -1
        if move.destination is not None and not self._admits(move.destination):
            return Outcome(NO_DESTINATION, f"{move.destination}: {self._deciding.fitness.why(move.destination)}"), -1
        verdict = await self._executor.move(move.bundle, entry.revision, move.destination, move.reason, cause)
        match verdict:
            case Change():
                return Outcome(BEGUN), verdict.offset
            case Refusal(reason=Reason.DEPOSED):
                return Outcome(DEPOSED, verdict.detail), -1
            case Refusal():
                return Outcome(REFUSED, f"{verdict.reason}: {verdict.detail}"), -1
            case Unknown():
                return Outcome(NO_ANSWER, verdict.detail), -1
            case _:
                assert_never(verdict)

    def _admits(self, broker: BrokerId) -> bool:
        """Returns True if the broker is fit, or this move begins its trial."""
        fitness = self._deciding.fitness
        return fitness.begins_trial(broker) or broker not in fitness.closed()

    def _forbidden(self, moves: Sequence[Move]) -> dict[Bundle, Outcome]:
        """Moves that are forbidden by rules younger than the decision."""
        return {
            move.bundle: Outcome(FORBIDDEN, f"a policy has changed since the decision: {rule}")
            for move in moves
            if move.destination is not None and (rule := self._deciding.forbids(move.bundle, move.destination))
        }

    def _refusal(self, move: Move, seen: Mapping[Bundle, int]) -> Outcome | None:
        """Why the move must not begin now, as far as this broker knows."""
        entry = self._deciding.table.get(move.bundle)
        if entry is None or entry.state is not State.ASSIGNED or entry.holder != move.source:
            return Outcome(MOVED_ON, f"{move.bundle} is not at {move.source} any more")
        if entry.revision != seen.get(move.bundle, entry.revision):
            return Outcome(MOVED_ON, f"{move.bundle} was changed by {entry.action} of {entry.by}")
        paused = paused_by(move, self._deciding.policies())
        if paused is not None:
            return Outcome(HELD_BACK, paused.detail)
        if move.destination is not None and self._deciding.taking(move.destination.name) != move.destination:
            return Outcome(NO_DESTINATION, f"{move.destination} takes no bundles now")
        return None

    async def _call_off(
        self, begun: Iterable[tuple[Move, int]], refused: tuple[Move, Outcome], cause: str
    ) -> dict[Bundle, Outcome]:
        outcomes: dict[Bundle, Outcome] = {}
        for move, revision in begun:
            reason = f"{refused[0].bundle}, which goes with it, does not move"
            await self._executor.call_off(move.bundle, revision, reason, cause)
            outcomes[move.bundle] = msgspec.structs.replace(_with(refused), outcome=CALLED_OFF)
        return outcomes


def in_words(move: Move) -> str:
    """The move, for a log line."""
    return f"moving {move.bundle} to {move.destination}" if move.destination else f"unloading {move.bundle}"


def _with(refusal: tuple[Move, Outcome]) -> Outcome:
    move, outcome = refusal
    return Outcome(outcome.outcome, f"only together with {move.bundle}: {outcome.detail}")


def _never_begun(group: Sequence[Move], outcomes: Mapping[Bundle, Outcome], failed: Move) -> dict[Bundle, Outcome]:
    because = _with((failed, outcomes[failed.bundle]))
    return {move.bundle: because for move in group if move.bundle not in outcomes}
