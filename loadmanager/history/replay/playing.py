"""Plays one window on one executor: makes its game, plays every candidate, judges them.

One window is in memory at a time. A strategy that breaks a rule, or fails, loses that window: the reason is kept, and
counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loadmanager.history.replay.candidates import Candidate
from loadmanager.history.replay.hindsight import least
from loadmanager.history.replay.judging import Gaps, Judge, Objective, Terms
from loadmanager.history.replay.recording import Missing, RecordedGame, recorded
from loadmanager.history.replay.rounds import Played, played_out
from loadmanager.history.replay.slices import Frame, sliced
from loadmanager.settings import Settings
from loadmanager.strategies.playground.bounds import Ruler
from loadmanager.strategies.playground.game import InvariantViolation


class Rules(msgspec.Struct, frozen=True):
    """What holds for every window and candidate. `settings` are the cluster's own."""

    settings: Settings
    candidates: tuple[Candidate, ...]
    objective: Objective
    gaps: Gaps
    coverage: float
    seed: int = 0
    own: Mapping[str, Settings] = {}
    """Candidates' settings by name, where they are combined already (that takes as long as some rounds)."""


class Outcome(msgspec.Struct, frozen=True):
    """One candidate in one window. `broke`: the broken rule or the raised error; `terms` is None then."""

    candidate: int
    bound: float
    terms: Terms | None = None
    broke: str = ""
    ruled: bool = False
    """The record says which policies held."""


def outcomes(table: Any, frame: Frame, rules: Rules, chosen: Sequence[int]) -> Missing | list[Outcome]:
    """Play the candidates with these numbers on the rows of one window (pyarrow.Table of `slicing.EVENT`)."""
    usual = rules.settings
    game = recorded(sliced(table, frame), rules.coverage, usual.load_window_s)
    if isinstance(game, Missing):
        return game
    judge = Judge(game.scenario, Ruler.of(rules.settings), rules.objective, rules.gaps)
    bound, ruled = least(judge), game.scenario.ruling is not None
    found = (_outcome(game, judge, bound, rules, number) for number in chosen)
    return [msgspec.structs.replace(each, ruled=ruled) for each in found]


def _outcome(game: RecordedGame, judge: Judge, bound: float, rules: Rules, number: int) -> Outcome:
    candidate = rules.candidates[number]
    if candidate.is_recorded:
        return Outcome(number, bound, judge.terms(game.owner, game.steps))
    try:
        run = played(game, candidate, rules)
    except InvariantViolation as violation:
        return Outcome(number, bound, broke=str(violation))
    except Exception as error:  # noqa: BLE001 - strategies are plug-ins, and may raise anything
        return Outcome(number, bound, broke=f"{candidate.strategy} failed: {type(error).__name__}: {error}")
    return Outcome(number, bound, judge.terms(run.owner, run.steps))


def played(game: RecordedGame, candidate: Candidate, rules: Rules) -> Played:
    """Play the candidate from the recorded placement. Raises InvariantViolation, and any error of the strategy."""
    settings = rules.own.get(candidate.name) or candidate.settings(rules.settings)
    return played_out(game.scenario, candidate.strategy, settings, rules.seed)
