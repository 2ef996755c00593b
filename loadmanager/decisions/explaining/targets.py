"""The possible destinations of a bundle: every other broker, its usage before and after, and the rule against it.

Pure. The hard rules are as the plan reads them; they hold for every strategy. The order is the plan's too: by gain,
then by the broker's usage after the move.
"""

from __future__ import annotations

from loadmanager.decisions.explaining.answer import Target
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.model.cluster import NOWHERE, ClusterModel
from loadmanager.strategies.rebalancing.plan.judging import NO_GAIN, NO_ROOM, WITHIN_TOLERANCE, Judgement, judge_in

SOFT = frozenset({"", WITHIN_TOLERANCE, NO_ROOM, NO_GAIN})
"""Results that the plan weighs; all others are hard rules."""


def judgement_of(situation: Situation, row: int) -> Judgement | None:
    """The plan's judgement of a bundle; None without a model."""
    return None if situation.draft is None else judge_in(situation.draft, row)


def targets(situation: Situation, judged: Judgement) -> tuple[Target, ...]:
    """All other brokers, those that may take it first."""
    model, draft = situation.model, situation.draft
    if model is None or draft is None:
        return ()
    found: list[Target] = []
    for each in judged.destinations:
        at = model.brokers.rows[each.destination]
        known = bool(model.brokers.known[at])
        found.append(
            Target(
                each.destination.name,
                float(draft.peak[at]) if known else None,
                each.usage_after if known else None,
                "" if each.rule in SOFT else each.detail or each.rule,
            )
        )
    return tuple(sorted(found, key=lambda target: target.rule != ""))


def rule_text(model: ClusterModel, rule: int) -> str:
    """A rule of the constraints in words."""
    rules = model.constraints.rules
    return rules[rule] if 0 <= rule < len(rules) else f"rule {rule}"


def owner_name(model: ClusterModel, row: int) -> str:
    """The owner's name, empty without one."""
    owner = int(model.bundles.owner[row])
    return "" if owner == NOWHERE else model.brokers.ids[owner].name
