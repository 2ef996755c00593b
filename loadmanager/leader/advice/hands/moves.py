"""Moves ahead of a peak, as a plan: made under the usual limits, by the plan's own rules, and taken back by a plan.

The plan is called after the advice, so there is one, whichever leader makes it. Approved advice is an approved plan; in
a cluster whose moves are reviewed (`balancing_review`) advice that nobody approved only becomes a proposal.
"""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.errors import Conflict
from loadmanager.leader.advice.hands.contract import AUTOMATIC, Done, Lost, Obstacle, Waits
from loadmanager.leader.advice.model import Advice, Held, MoveBundles, Progress
from loadmanager.leader.advice.states import Action
from loadmanager.leader.rebalancing.deciding import Deciding
from loadmanager.leader.rebalancing.plan_model import Became, Plan, PlanKind, PlannedMove, PlanState
from loadmanager.leader.rebalancing.plan_model import Step as PlanStep
from loadmanager.leader.rebalancing.planning import Occasion, undoing
from loadmanager.leader.rebalancing.plans import OPEN, By, Facts, PlanAction, advance, summary
from loadmanager.leader.rebalancing.progress import progress as progress_of
from loadmanager.leader.rebalancing.shelf import PlanStore
from loadmanager.strategies.rebalancing.decision import Stage
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State

NOTHING_MOVED = frozenset({PlanState.REJECTED, PlanState.EXPIRED})


class MovesHand:
    """See `contract.Hand`."""

    def __init__(self, shelf: PlanStore, deciding: Deciding, present: Callable[[str], BrokerId | None]) -> None:
        self._shelf = shelf
        self._deciding = deciding
        self._present = present

    def obstacle(self, advice: Advice) -> Obstacle | None:
        """No bundle is where the advice has it, or no destination takes bundles."""
        there = [move for move in _of(advice).moves if self._revision(move.bundle, move.source) is not None]
        if not there:
            return Obstacle(Action.SUPERSEDE, "no bundle of it is where it was any more")
        if all(self._present(move.destination) is None for move in there):
            return Obstacle(None, "its destinations take no bundles now")
        return None

    def before(self, advice: Advice) -> tuple[Held, ...]:
        """The bundles that still are where the advice has them, with their revisions."""
        found = ((move, self._revision(move.bundle, move.source)) for move in _of(advice).moves)
        return tuple(Held(move.bundle, revision) for move, revision in found if revision is not None)

    async def apply(self, advice: Advice, progress: Progress) -> Done | Waits | Lost:
        """Has the plan made, and waits for its end."""
        plan = self._plan(_name(advice))
        if plan is None:
            try:
                plan = await self._shelf.add(self._made(advice, progress))
            except Conflict as error:
                plan = self._plan(_name(advice))
                if plan is None:
                    return Lost(Action.SUPERSEDE, str(error))
        if plan.state in OPEN or (plan.state is PlanState.CANCELLED and not plan.outcomes):
            return Waits(f"plan {plan.id} is {plan.state}")
        if not any(outcome.became is Became.DONE for outcome in plan.outcomes):
            return Lost(Action.SUPERSEDE, f"plan {plan.id} is {plan.state}, and moved nothing")
        return Done(plan.steps[-1].at_ms, f"plan {plan.id}: {summary(plan.outcomes)}")

    def _made(self, advice: Advice, progress: Progress) -> Plan:
        """Raises Conflict if no bundle can be moved."""
        seen = {held.name: held.version for held in progress.before}
        moves: list[PlannedMove] = []
        left_out: dict[str, str] = {}
        for move in _of(advice).moves:
            bundle, to = Bundle.parse(move.bundle), self._present(move.destination)
            entry = self._deciding.table.get(bundle)
            if move.bundle not in seen or entry is None or entry.holder is None or entry.revision != seen[move.bundle]:
                left_out[move.bundle] = "it is not where the advice has it"
            elif to is None:
                left_out[move.bundle] = f"{move.destination} takes no bundles now"
            else:
                moves.append(PlannedMove(bundle, entry.holder, to, entry.revision, stage=Stage.BALANCE))
        if not moves:
            raise Conflict(f"there is nothing to move: {next(iter(left_out.values()), 'no moves')}")
        author, now_ms = f"advice {advice.id}", self._deciding.wall_ms()
        plan = Plan(
            id=_name(advice),
            kind=PlanKind.BALANCE,
            state=PlanState.PROPOSED,
            proposed_ms=now_ms,
            author=author,
            moves=tuple(moves),
            reason=advice.reason,
            cause=author,
            left_out=left_out,
        )
        approved = progress.steps[0].author != AUTOMATIC
        if not approved and self._deciding.settings().balancing_review:
            return plan
        return self._running(plan, author, now_ms)

    def _running(self, plan: Plan, author: str, now_ms: int) -> Plan:
        for action in (PlanAction.APPROVE, PlanAction.RUN):
            facts = Facts(progress_of(plan, self._deciding.table), now_ms)
            plan = advance(plan, action, By.OPERATOR, PlanStep(action.value, now_ms, author), facts)
        return plan

    def changed_since(self, advice: Advice, progress: Progress) -> str:  # noqa: ARG002 - see the contract
        """Bundles go on moving, as balance needs it: that is no objection."""
        return ""

    async def undo(self, advice: Advice, progress: Progress) -> Done | Waits:  # noqa: ARG002 - see the contract
        """Ends the plan if it is under way, then has taken back what still is where it put it."""
        plan = self._plan(_name(advice))
        if plan is None or plan.state in NOTHING_MOVED:
            return Done(0, "nothing had been moved")
        author = f"advice {advice.id}, withdrawn"
        if plan.state in OPEN:
            action = PlanAction.REJECT if plan.state is PlanState.PROPOSED else PlanAction.CANCEL
            await self._shelf.act(plan.id, action, By.OPERATOR, author)
            return Waits(f"plan {plan.id} is ended")
        if plan.state is PlanState.CANCELLED and not plan.outcomes:
            return Waits(f"what is under way of plan {plan.id} arrives")
        return await self._taken_back(plan, author)

    async def _taken_back(self, plan: Plan, author: str) -> Done | Waits:
        back = self._plan(f"{plan.id}-undo")
        if back is None:
            occasion = Occasion(f"{plan.id}-undo", author, self._deciding.wall_ms())
            try:
                made = undoing(occasion, plan, self._deciding.table, self._present)
                back = await self._shelf.add(self._running(made, author, occasion.at_ms))
            except Conflict as error:
                return Done(0, str(error))
        if back.state in OPEN or not back.outcomes:
            return Waits(f"plan {back.id} is {back.state}")
        left = f"; not taken back: {', '.join(back.left_out)}" if back.left_out else ""
        return Done(back.steps[-1].at_ms, f"plan {back.id}: {summary(back.outcomes)}{left}")

    def _plan(self, name: str) -> Plan | None:
        found = self._shelf.documents.get(name)
        return None if found is None else found.value

    def _revision(self, bundle: str, source: str) -> int | None:
        """Of a bundle that rests at this broker."""
        entry = self._deciding.table.get(Bundle.parse(bundle))
        if entry is None or entry.holder is None or entry.state is not State.ASSIGNED:
            return None
        return entry.revision if entry.holder.name == source else None


def _of(advice: Advice) -> MoveBundles:
    assert isinstance(advice.change, MoveBundles)
    return advice.change


def _name(advice: Advice) -> str:
    return f"advice-{advice.id}"
