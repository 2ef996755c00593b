"""Strategy and settings, by replay: the best candidate one step away that surely beats record and present settings.

"Record" is what the cluster did. The present settings are replayed too, because a replay does better than a cluster: it
moves at once and knows what is moved. "Surely" means that the whole interval of the cost difference is below zero, and
so is that of the spread or of the time above tolerance. The smaller of the two gains is promised. A candidate more than
one step away is not advised, as later advice may go on from there. Nothing is advised where the replay of the present
settings is not near what the cluster had (`replay.ranking.compared`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from loadmanager.errors import Invalid
from loadmanager.history.advising.origin import Origin, promised
from loadmanager.history.replay import RECORDED, Candidate, Ranked, ReplayResult, WindowRow, parsed
from loadmanager.history.replay.ranking import mean
from loadmanager.leader.plans.advice import (
    NAMES,
    NUMBERS,
    STEP_FACTOR,
    Advice,
    ChangeSettings,
    Expected,
    Measure,
    SettingChange,
    check_steps,
)
from loadmanager.settings import Settings
from loadmanager.strategies.registry import STRATEGIES

METHOD = "replay"
TABLES = ("broker_load", "bundle_load", "bundle_total", "transition", "decision", "bronze")
DIGITS = 4
"""Decimal places of an advised tolerance."""
READINGS: tuple[tuple[Measure, Callable[[WindowRow], float | None]], ...] = (
    (Measure.SPREAD, lambda row: None if row.max_over_mean is None else max(0.0, row.max_over_mean - 1)),
    (Measure.ABOVE_TOLERANCE, lambda row: None if row.above_percent is None else row.above_percent / 100),
)
"""The measures that may be promised; the first one that surely falls is."""


def candidates(base: Settings) -> tuple[str, ...]:
    """Candidates in the syntax of `replay`: what the cluster did, and every setting that one step reaches."""
    most = STEP_FACTOR
    tolerances = [round(base.tolerance * factor, DIGITS) for factor in (1 / most, most**-0.5, most**0.5, most)]
    allowed = "|".join(f"{each:g}" for each in tolerances if 0 < each <= 1)
    here = base.balancing_strategy
    others = [name for name in STRATEGIES.names() if name != here]
    return (RECORDED, here, f"{here}:balancing_tolerance={allowed}", *others)


def advised(result: ReplayResult, base: Settings, origin: Origin) -> Advice | str:
    """Advice, or why there is none: what speaks against the best candidate. `base` are the settings in force."""
    if result.fidelity is None:
        return "this replay was not compared with what happened: replay again with this release"
    if not result.fidelity.agrees:
        return result.fidelity.against
    by_name = _candidates(result, base)
    present = _present(by_name, base)
    against: list[str] = []
    for found in result.ranked:
        candidate = by_name[found.candidate]
        if candidate.is_recorded or found.candidate == present or found.violations:
            continue
        change = _change(candidate, base)
        expected = _promise(result, found, present)
        if isinstance(expected, str):
            against.append(expected)
        elif change is None:
            against.append(f"{found.candidate} would do better, but no single step leads there")
        else:
            return origin.advice(change, _reason(result, found, expected), expected, METHOD, TABLES)
    return next(iter(against), "no other candidate was replayed to the end without breaking a rule")


def _present(by_name: Mapping[str, Candidate], base: Settings) -> str | None:
    """The name of the candidate that equals the present settings; None where it was not replayed."""
    return next((name for name, each in by_name.items() if not each.is_recorded and not each.changes(base)), None)


def _is_cheaper(result: ReplayResult, before: str, after: str) -> bool:
    pairs = list(_pairs(_rows(result, before), _rows(result, after), lambda row: row.objective))
    gain = mean([then - now for then, now in pairs])
    return gain is not None and gain.low > 0


def _candidates(result: ReplayResult, base: Settings) -> dict[str, Candidate]:
    return {each.name: each for each in parsed([each.candidate for each in result.ranked], base)}


def _change(candidate: Candidate, base: Settings) -> ChangeSettings | None:
    """The change to the candidate's settings; None if there is nothing to change, or it is too much for one step."""
    changes = candidate.changes(base)
    if not changes or not changes.keys() <= NUMBERS | NAMES:
        return None
    change = ChangeSettings(tuple(SettingChange(name, getattr(base, name), to) for name, to in changes.items()))
    try:
        check_steps(change, base)
    except Invalid:
        return None
    return change


def _rows(result: ReplayResult, candidate: str) -> dict[str, WindowRow]:
    return {row.begin: row for row in result.rows if row.candidate == candidate}


def _promise(result: ReplayResult, found: Ranked, present: str | None) -> Expected | str:
    """The smaller of its gains over the record and over the present settings, or why it surely gains nothing."""
    name, gain = found.candidate, found.against_recorded
    if gain is None or not gain.high < 0:
        return f"{name} may be no better than what the cluster did"
    if present is not None and not _is_cheaper(result, present, name):
        return f"{name} may be no better than the present settings, which were replayed too"
    after, before = _rows(result, name), [_rows(result, each) for each in (RECORDED, present) if each is not None]
    for measure, read in READINGS:
        gained = [_gained(measure, list(_pairs(each, after, read))) for each in before]
        sure = [each for each in gained if each is not None]
        if len(sure) == len(gained):
            return min(sure, key=lambda each: each.before - each.after)
    return f"{name} costs less, but neither spread nor time above tolerance is certain to fall"


def _gained(measure: Measure, pairs: Sequence[tuple[float, float]]) -> Expected | None:
    gain = mean([then - now for then, now in pairs])
    if gain is None or gain.low <= 0:
        return None
    return promised(measure, sum(then for then, _ in pairs) / len(pairs), gain)


def _pairs(
    before: dict[str, WindowRow], after: dict[str, WindowRow], read: Callable[[WindowRow], float | None]
) -> Iterator[tuple[float, float]]:
    for begin in sorted(before.keys() & after.keys()):
        then, now = read(before[begin]), read(after[begin])
        if then is not None and now is not None:
            yield then, now


def _reason(result: ReplayResult, found: Ranked, expected: Expected) -> str:
    gain = found.against_recorded
    assert gain is not None, "asked before"
    what = "spread" if expected.measure is Measure.SPREAD else "time above tolerance"
    return (
        f"Over {found.windows} windows of {result.window_s:g} s of the recorded load {found.candidate} would have cost "
        f"{-gain.mean:.3g} brokers less than what the cluster did (between {-gain.high:.3g} and {-gain.low:.3g}); "
        f"{what} {expected.before:.1%} → {expected.after:.1%}, better by {expected.low:.1%} to {expected.high:.1%}."
    )
