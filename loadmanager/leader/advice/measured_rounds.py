"""Rounds from the decision log, measured by one ruler, although leaders and settings changed in between.

A round without a decision (balancing is off or paused) does not count. If the round's model was kept, the spread is
recomputed with the ruler; else the recorded spread counts, if the weights were the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from loadmanager.decisions.log import DecisionLog
from loadmanager.decisions.record import DecisionRecord
from loadmanager.leader.plans.advice import Change, ChangeSettings, Ruler
from loadmanager.leader.plans.bounds import as_number
from loadmanager.leader.plans.effect import Sample
from loadmanager.leader.rebalancing.planning import figures
from loadmanager.settings import Settings

WEIGHTS = ("weight_cpu", "weight_memory", "weight_bandwidth", "weight_message_rate")


class Rounds(Protocol):
    """Gives the rounds of a period. `MeasuredRounds` is one implementation."""

    async def __call__(self, begin_ms: int, end_ms: int, ruler: Ruler) -> Sequence[Sample]:
        """Oldest first. Raises LogUnavailable."""
        ...


class MeasuredRounds:
    """Reads the decision log."""

    def __init__(self, decisions: DecisionLog) -> None:
        self._decisions = decisions

    async def __call__(self, begin_ms: int, end_ms: int, ruler: Ruler) -> Sequence[Sample]:
        """Oldest first. Raises LogUnavailable."""
        found = await self._decisions.between(begin_ms, end_ms, partial(sample, ruler=ruler))
        return sorted(found, key=lambda each: each.at_ms)


def ruler_of(settings: Settings, change: Change) -> Ruler:
    """The present tolerance and weights; but advised weights, since such advice claims that they are the right ones."""
    weights: dict[str, float] = {name: getattr(settings, name) for name in WEIGHTS}
    if isinstance(change, ChangeSettings):
        weights |= {each.name: as_number(each.name, each.to) for each in change.changes if each.name in WEIGHTS}
    return Ruler(**weights, tolerance=settings.tolerance)


def sample(record: DecisionRecord, ruler: Ruler) -> Sample | None:
    """The sample of one round; None if it has none."""
    if not record.digest:
        return None
    weights = {name: getattr(ruler, name) for name in WEIGHTS}
    if record.model is not None:
        settings = Settings.model_construct(None, **weights)
        return Sample(record.at_ms, max(0.0, figures(record.model, settings, ()).spread))
    alike = all(record.settings.get(name) == weight for name, weight in weights.items())
    return Sample(record.at_ms, record.decision.spread_before) if alike else None
