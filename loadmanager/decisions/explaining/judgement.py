"""The plan's reasons for a bundle that it did not move, judged again from the model. Pure.

Only for the strategy `plan`: other strategies weigh differently, and give their reasons in their decisions.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadmanager.decisions.explaining.answer import Obstacle, percent
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.decisions.explaining.targets import SOFT
from loadmanager.strategies.rebalancing.plan.judging import Judgement

PLAN = "plan"
OTHERS_FIRST = "others came first"


def judgement(situation: Situation, judged: Judgement) -> Iterator[Obstacle]:
    """The plan's reason against the bundle's best move; nothing if a rule keeps the bundle anyway."""
    if situation.strategy != PLAN or judged.rule:
        return
    if judged.best is not None:
        best = judged.best
        sentence = (
            f"alone it might go to {best.destination.name} ({percent(best.usage_after)} full with it), "
            "but the round had better moves, or no budget left"
        )
        yield Obstacle(OTHERS_FIRST, sentence, ("those moves are made: the next round weighs it again",))
        return
    weighed = next((each for each in judged.destinations if each.rule in SOFT), None)
    if weighed is not None:
        yield Obstacle(weighed.rule, f"{weighed.rule}: {weighed.detail}", judged.changes)
