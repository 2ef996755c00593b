"""Moves of bundles: the plan chooses sources and destinations when it begins.

`leader/rebalancing/plan_runner.py` makes the moves under the usual limits, as for any plan. The plan `ID-undo` undoes
them; it exists once, whichever leader makes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.errors import Conflict
from loadmanager.leader.advice.appliers.contract import Done, Obstacle, Waits, advised
from loadmanager.leader.plans.advice import MoveBundles
from loadmanager.leader.plans.model import MoveStatus, Plan, PlannedMove
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.plans.table import OPEN, PlanAction, summary
from loadmanager.leader.rebalancing.deciding import Deciding
from loadmanager.leader.rebalancing.planning import Occasion, running, undoing
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State


class MovesApplier:
    """See `contract.Applier`."""

    def __init__(self, store: PlanStore, deciding: Deciding) -> None:
        self._store = store
        self._deciding = deciding

    def obstacle(self, plan: Plan) -> Obstacle | None:
        """An obstacle if no bundle is where the advice expects it, or no destination takes bundles."""
        there = [move for move in advised(plan, MoveBundles).moves if self._at(move.bundle, move.source) is not None]
        if not there:
            return Obstacle(PlanAction.SUPERSEDE, "none of its bundles is where it was")
        if all(self._deciding.taking(move.destination) is None for move in there):
            return Obstacle(None, "its destinations take no bundles now")
        return None

    def noted(self, plan: Plan) -> Mapping[str, object]:
        """The moves, from the present holders to brokers that take bundles now. Raises Conflict if there are none."""
        moves: list[PlannedMove] = []
        left_out: dict[str, str] = {}
        for move in advised(plan, MoveBundles).moves:
            found, to = self._at(move.bundle, move.source), self._deciding.taking(move.destination)
            if found is None:
                left_out[move.bundle] = "it is not where the advice expects it"
            elif to is None:
                left_out[move.bundle] = f"{move.destination} takes no bundles now"
            else:
                holder, revision = found
                moves.append(PlannedMove(Bundle.parse(move.bundle), holder, to, revision))
        if not moves:
            raise Conflict(f"there is nothing to move: {next(iter(left_out.values()), 'no moves')}")
        return {"moves": tuple(moves), "left_out": left_out}

    async def apply(self, plan: Plan) -> Waits:
        """Nothing to do here: `PlanRunner` makes the moves and ends the run."""
        return Waits(f"its moves: {summary(self._store.progress(plan))}")

    def changed_since(self, plan: Plan) -> str:  # noqa: ARG002 - see the contract
        """Always empty: later moves of the bundles for balance are no objection."""
        return ""

    async def undo(self, plan: Plan) -> Done | Waits:
        """Once the moves under way have arrived, move back the bundles that are still where the plan put them."""
        if not plan.outcomes:
            return Waits("moves under way have not arrived yet")
        if not any(outcome.status is MoveStatus.DONE for outcome in plan.outcomes):
            return Done("nothing had been moved")
        found = self._store.documents.get(f"{plan.id}-undo")
        back = None if found is None else found.value
        if back is None:
            occasion = Occasion(f"{plan.id}-undo", f"plan {plan.id}, undone", self._deciding.wall_ms())
            try:
                made = undoing(occasion, plan, self._deciding.table, self._deciding.taking)
            except Conflict as error:
                return Done(str(error))
            back = await self._store.add(running(made, self._deciding.table))
        if back.state in OPEN or not back.outcomes:
            return Waits(f"plan {back.id} is {back.state}")
        left = f"; not taken back: {', '.join(back.left_out)}" if back.left_out else ""
        return Done(f"plan {back.id}: {summary(back.outcomes)}{left}")

    def _at(self, bundle: str, source: str) -> tuple[BrokerId, int] | None:
        """The holder and revision of a bundle if it is assigned to this broker."""
        entry = self._deciding.table.get(Bundle.parse(bundle))
        if entry is None or entry.holder is None or entry.state is not State.ASSIGNED:
            return None
        return (entry.holder, entry.revision) if entry.holder.name == source else None
