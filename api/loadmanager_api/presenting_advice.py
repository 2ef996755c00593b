"""Fills the shapes of `advice_schemas.py`."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from loadmanager.leader.advice.board import Entry
from loadmanager.leader.advice.effect import told
from loadmanager.leader.advice.model import Advice, Change, ChangeSettings, CutBundles, Effect, MoveBundles
from loadmanager.leader.advice.states import offered
from loadmanager_api.advice_schemas import (
    AdviceShown,
    AdviceStepShown,
    AdviceSummary,
    AdviceWished,
    EffectShown,
    ReviewShown,
)

NAMED = 3
"""How many bundles a line names."""


def advice_of(wish: AdviceWished) -> Advice:
    """What is to be published."""
    return msgspec.convert(wish.model_dump(), Advice)


def summary_shown(entry: Entry, waiting: str) -> AdviceSummary:
    """In one line."""
    advice = entry.advice
    return AdviceSummary(
        id=advice.id,
        state=entry.state,
        kind=advice.kind,
        what=in_words(advice.change),
        reason=advice.reason,
        data_to_ms=advice.provenance.data_to_ms,
        expires_ms=advice.expires_ms,
        may=offered(entry.state),
        waiting=waiting,
    )


def advice_shown(entry: Entry, waiting: str) -> AdviceShown:
    """All of it."""
    advice, said, progress = entry.advice, entry.review, entry.progress
    return AdviceShown(
        **summary_shown(entry, waiting).model_dump(),
        change=msgspec.to_builtins(advice.change),
        expected=msgspec.to_builtins(advice.expected),
        provenance=msgspec.to_builtins(advice.provenance),
        review=None
        if said is None
        else ReviewShown(verdict=said.verdict, author=said.author, at_ms=said.at_ms, reason=said.reason),
        steps=[
            AdviceStepShown(state=step.state, at_ms=step.at_ms, author=step.author, reason=step.reason)
            for step in (() if progress is None else progress.steps)
        ],
        baseline=None if progress is None or progress.baseline is None else msgspec.to_builtins(progress.baseline),
        effect=None if progress is None or progress.effect is None else _effect(progress.effect),
    )


def in_words(change: Change) -> str:
    """What it would do."""
    match change:
        case ChangeSettings():
            return ", ".join(f"{each.name}: {each.was} → {each.to}" for each in change.changes)
        case CutBundles():
            return f"{change.namespace}: cut {_some([f'{cut.bundle} into {cut.parts}' for cut in change.cuts])}"
        case MoveBundles():
            return f"move {_some([f'{move.bundle} to {move.destination}' for move in change.moves])}"


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def _effect(found: Effect) -> EffectShown:
    return EffectShown(
        measure=found.measure,
        before=found.before,
        after=found.after,
        change=found.change,
        bound=found.bound,
        harm=found.harm,
        measured_from=_utc(found.period.begin_ms),
        measured_to=_utc(found.period.end_ms),
        rounds=found.period.rounds,
        text=told(found),
    )


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
