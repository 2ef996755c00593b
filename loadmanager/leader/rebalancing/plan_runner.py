"""Runs the plans that were started, under the usual limits, and keeps the others up to date.

All that the leader needs is in the plans and the ownership table, so the next leader continues. It keeps only the
reasons why moves could not begin, and the next leader finds them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from loadmanager.decisions.record import BEGUN, Outcome
from loadmanager.errors import Conflict, NotFound
from loadmanager.leader.plans.plan import MoveStatus, Plan, PlannedMove, PlanState, progress
from loadmanager.leader.plans.proposals import as_move, wave_of
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.plans.table import (
    By,
    Facts,
    PlanAction,
    it_is_out_of_date,
    nothing_is_under_way,
    something_went_wrong,
    summary,
)
from loadmanager.leader.rebalancing.decider import Decider
from loadmanager.leader.rebalancing.limits import Admission, Deferred, Limits, Rule, UnderWay, allow
from loadmanager.leader.rebalancing.moves import NO_DESTINATION, REFUSED, Counts, MoveStarter, in_words
from loadmanager.strategies.rebalancing.decision import Move
from statechannel.errors import RecordTooLarge
from statechannel.law.bundle import Bundle

WAITING_TOLD = 20
"""How many moves of later waves are reported as held back; a plan may have thousands."""
ATTEMPTS = 3
"""How many attempts a move gets, if the channel refuses it although the bundle has not changed."""


class PlanRunner:
    """Runs the plans of one term; call `tick` again and again."""

    def __init__(
        self,
        plans: PlanStore,
        deciding: Decider,
        starter: MoveStarter,
        counts: Counts,
        leader: str,
        note: Callable[[str], None],
    ) -> None:
        self._plans = plans
        self._deciding = deciding
        self._starter = starter
        self._counts = counts
        self._leader = leader
        self._note = note
        self._refused: dict[str, dict[Bundle, str]] = {}
        self._attempts: dict[tuple[str, Bundle], int] = {}
        self._away_since_ms: dict[str, int] = {}
        self.held: dict[str, tuple[Deferred, ...]] = {}
        """What now holds back moves of running plans, by plan."""

    async def tick(self) -> None:
        """Look at every plan once. Raises LogUnavailable."""
        taking = self._deciding.taking
        self._away_since_ms = {name: since for name, since in self._away_since_ms.items() if taking(name) is None}
        for plan in self._plans.all():
            try:
                await self._look(plan)
            except RecordTooLarge as error:  # the others must not wait for this one
                self._note(f"the outcome of plan {plan.id} cannot be written: {error}")
        for plan, undoing in self._plans.undone():
            await self._act(plan, PlanAction.UNDO, f"taken back by {undoing.id}")

    async def _look(self, plan: Plan) -> None:
        match plan.state:
            case PlanState.RUNNING if plan.moves:
                await self._run(plan)
            case PlanState.PROPOSED | PlanState.APPROVED if plan.advice is None:
                if it_is_out_of_date(plan, self._facts(plan)):
                    await self._act(plan, PlanAction.EXPIRE, "the cluster has moved on")
            case PlanState.CANCELLED | PlanState.UNDOING if plan.moves and not plan.outcomes:
                if nothing_is_under_way(plan, self._facts(plan)):
                    await self._act(plan, PlanAction.SETTLE)
            case _:
                self._forget(plan)

    async def _run(self, plan: Plan) -> None:
        facts = self._facts(plan)
        if all(outcome.status.settled for outcome in facts.outcomes):
            failed = something_went_wrong(plan, facts)
            await self._act(plan, PlanAction.FAIL if failed else PlanAction.FINISH, summary(facts.outcomes))
            return
        allowed = self._admitted(plan, facts)
        self.held[plan.id] = allowed.held
        if not allowed.moves:
            return
        seen = {move.bundle: move.seen for move in plan.moves}
        outcomes = await self._starter.begin(allowed.moves, f"plan {plan.id}", seen)
        for move in allowed.moves:
            self._note_outcome(plan, move, outcomes[move.bundle])

    def _admitted(self, plan: Plan, facts: Facts) -> Admission:
        """The moves of the plan that may begin now."""
        waiting = [place for place, outcome in enumerate(facts.outcomes) if outcome.status is MoveStatus.WAITING]
        wave = set(wave_of(plan, waiting, [outcome.status.settled for outcome in facts.outcomes]))
        later = islice((place for place in waiting if place not in wave), WAITING_TOLD)
        held = [
            Deferred(as_move(plan, plan.moves[place]), Rule.WAVE, f"waits for the wave of {plan.wave} moves before it")
            for place in later
        ]
        moves: list[Move] = []
        for move in (plan.moves[place] for place in waiting if place in wave):
            match self._aimed(plan, move):
                case Move() as aimed:
                    moves.append(aimed)
                case Deferred() as away:
                    held.append(away)
                case None:
                    pass
        moves, refused, apart = whole_groups(plan, facts, moves)
        for bundle, why in refused.items():
            self._refuse(plan, bundle, why)
        held += apart
        under_way = UnderWay(self._deciding.table.in_flight())
        allowed = allow(moves, under_way, Limits.of(self._deciding.settings()), self._deciding.policies())
        return Admission(allowed.moves, (*allowed.held, *held))

    def _aimed(self, plan: Plan, move: PlannedMove) -> Move | Deferred | None:
        """The move with the present incarnation of its destination; None if it has failed without one."""
        if move.destination is None:
            return as_move(plan, move)
        name = move.destination.name
        to = self._deciding.taking(name)
        now_ms, patience_ms = self._deciding.wall_ms(), self._deciding.settings().in_flight_timeout_s * 1000
        if to is None and not self._deciding.drains(name):
            # a restart of the destination should not make the plan fail
            since_ms = self._away_since_ms.setdefault(name, now_ms)
            if now_ms - since_ms <= patience_ms:
                return Deferred(as_move(plan, move), Rule.DESTINATION, f"{name} takes no bundles at this moment")
        rule = self._deciding.forbids(move.bundle, to) if to is not None else "it takes no bundles now"
        if rule:
            self._refuse(plan, move.bundle, f"it may not go to {name}: {rule}")
            return None
        return msgspec.structs.replace(as_move(plan, move), destination=to)

    def _note_outcome(self, plan: Plan, move: Move, outcome: Outcome) -> None:
        if outcome.outcome == BEGUN:
            self._counts.moves[move.stage.value] += 1
            self._note(f"plan {plan.id}: {in_words(move)}")
            return
        attempts = self._attempts[plan.id, move.bundle] = self._attempts.get((plan.id, move.bundle), 0) + 1
        if outcome.outcome in (REFUSED, NO_DESTINATION) and attempts >= ATTEMPTS:
            self._refuse(plan, move.bundle, outcome.detail)

    def _refuse(self, plan: Plan, bundle: Bundle, why: str) -> None:
        self._refused.setdefault(plan.id, {})[bundle] = why

    async def _act(self, plan: Plan, action: PlanAction, reason: str = "") -> None:
        try:
            after = await self._plans.act(plan.id, action, By.LEADER, self._leader, reason, self._refused.get(plan.id))
        except (Conflict, NotFound):
            return  # an operator was faster: the next tick sees the new state
        if after.state is not plan.state:
            self._note(f"plan {plan.id} is {after.state}")
        self._forget(after)

    def _facts(self, plan: Plan) -> Facts:
        refused = self._refused.get(plan.id)
        return Facts(progress(plan, self._deciding.table, refused), self._deciding.wall_ms())

    def _forget(self, plan: Plan) -> None:
        self._refused.pop(plan.id, None)
        self.held.pop(plan.id, None)
        for key in [key for key in self._attempts if key[0] == plan.id]:
            del self._attempts[key]


def whole_groups(
    plan: Plan, facts: Facts, moves: Sequence[Move]
) -> tuple[list[Move], dict[Bundle, str], list[Deferred]]:
    """Of the moves that could begin now: those whose group is complete, those that fail for good, those that wait.

    A move of an incomplete group fails with a reason or waits. A group that has begun continues all the same, since
    half of it helps no broker.
    """
    ready = {move.bundle for move in moves}
    missing: dict[int, tuple[Bundle, str]] = {}
    waits: dict[int, Bundle] = {}
    begun: set[int] = set()
    for move, outcome in plan.pairs(facts.outcomes):
        match outcome.status:
            case MoveStatus.SKIPPED | MoveStatus.FAILED:
                missing.setdefault(move.group, (move.bundle, outcome.detail))
            case MoveStatus.WAITING if move.bundle not in ready:
                waits.setdefault(move.group, move.bundle)
            case MoveStatus.DONE | MoveStatus.UNDER_WAY:
                begun.add(move.group)
            case _:
                pass
    whole: list[Move] = []
    refused: dict[Bundle, str] = {}
    held: list[Deferred] = []
    for move in moves:
        group = move.group
        if not group or group in begun or group not in missing.keys() | waits.keys():
            whole.append(move)
        elif group in missing:
            refused[move.bundle] = "only together with {}, which does not move: {}".format(*missing[group])
        else:
            held.append(Deferred(move, Rule.GROUP, f"only together with {waits[group]}, which is held back"))
    return whole, refused, held
