"""Where a bundle might go: every other broker of the model, its usage before and after, the hard rule against it.

Pure. The hard rules are the plan's reading of them; they hold for every strategy. The order is the plan's too: by what
would be gained, then by how full the broker would be.
"""

from __future__ import annotations

from loadmanager.decisions.explaining.answer import Target
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.model.cluster import NOWHERE, ClusterModel
from loadmanager.strategies.rebalancing.plan.judging import NO_GAIN, NO_ROOM, WITHIN_TOLERANCE, Judgement, judge_in

SOFT = frozenset({"", WITHIN_TOLERANCE, NO_ROOM, NO_GAIN})
"""What the plan weighs; everything else is a hard rule."""


def judgement_of(situation: Situation, row: int) -> Judgement | None:
    """The plan's judgement of a bundle; None without a model."""
    return None if situation.draft is None else judge_in(situation.draft, row)


def targets(situation: Situation, judged: Judgement) -> tuple[Target, ...]:
    """All brokers but its own, those that may take it first."""
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
