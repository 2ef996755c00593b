"""Previews the moves of a changed policy: runs the strategy on the model with the new policies. Changes nothing."""

from __future__ import annotations

from itertools import islice

from loadmanager.broker.node import Incarnation
from loadmanager.model.policies.constraints import misplaced
from loadmanager.model.policies.model import Policies
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager_api.policy_schemas import Misplaced, PolicyMove, Preview

SHOWN = 1_000
_BY_RULE = (Stage.POLICY, Stage.DRAIN)


async def preview(acting: Incarnation, policies: Policies) -> Preview:
    """As if these were the policies."""
    deciding = acting.rebalancer.deciding
    settings = deciding.settings()
    model = await deciding.model(settings, policies)
    wrong = misplaced(policies, model.brokers, deciding.table, settings)
    shown = [Misplaced(bundle=str(bundle), broker=broker.name) for bundle, broker in islice(wrong, SHOWN)]
    total = len(shown) + sum(1 for _ in wrong)
    decision = await deciding.would_decide(model, settings)
    moves = [
        PolicyMove(
            bundle=str(move.bundle),
            source=move.source.name,
            destination=move.destination.name if move.destination else None,
            stage=move.stage.value,
            reason=move.reason,
        )
        for move in decision.moves
        if move.stage in _BY_RULE
    ]
    return Preview(misplaced_total=total, misplaced=shown, moves=moves, reason=decision.reason)
