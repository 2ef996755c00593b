"""The leaders' rounds as the decision log has them, measured by one ruler: also where a leader or a setting changed.

A round that looked at nothing (balance is off or paused) says nothing. Where a round's model was kept the spread is
worked out anew by the ruler; else what the round said itself counts, if it had the same weights.
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
    """Gives the rounds of a time. `MeasuredRounds` is one."""

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
    """The tolerance of before; and the weights of before, or those that are advised: that they are the right ones is
    just what such advice says."""
    weights: dict[str, float] = {name: getattr(settings, name) for name in WEIGHTS}
    if isinstance(change, ChangeSettings):
        weights |= {each.name: as_number(each.name, each.to) for each in change.changes if each.name in WEIGHTS}
    return Ruler(**weights, tolerance=settings.tolerance)


def sample(record: DecisionRecord, ruler: Ruler) -> Sample | None:
    """What one round says; None if nothing."""
    if not record.digest:
        return None
    weights = {name: getattr(ruler, name) for name in WEIGHTS}
    if record.model is not None:
        settings = Settings.model_construct(None, **weights)
        return Sample(record.at_ms, max(0.0, figures(record.model, settings, ()).spread))
    alike = all(record.settings.get(name) == weight for name, weight in weights.items())
    return Sample(record.at_ms, record.decision.spread_before) if alike else None
