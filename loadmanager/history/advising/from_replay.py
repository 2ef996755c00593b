"""Strategy and settings, by replay: the best candidate to which one step leads, if it beats what the cluster did.

Surely means: its cost is lower in the whole interval, and so is the spread, or the time above tolerance. What lies
beyond one step is not advised: the next advice may go on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from loadmanager.advice.bounds import NAMES, NUMBERS, check_steps
from loadmanager.advice.model import Advice, ChangeSettings, Expected, Measure, SettingChange
from loadmanager.balancing.registry import STRATEGIES
from loadmanager.errors import Invalid
from loadmanager.history.advising.intervals import Mean, mean
from loadmanager.history.advising.origin import Origin
from loadmanager.history.replay import RECORDED, Candidate, Ranked, ReplayResult, WindowRow, parsed
from loadmanager.settings import Settings

METHOD = "replay"
TABLES = ("broker_load", "bundle_load", "bundle_total", "transition", "decision")
DIGITS = 4
"""Of an advised tolerance."""


def candidates(base: Settings) -> tuple[str, ...]:
    """What one step leads to, and what the cluster did: as `replay` takes it."""
    tolerances = [_rounded(base.tolerance * factor) for factor in _factors(base.advice_step_factor)]
    allowed = "|".join(f"{each:g}" for each in tolerances if 0 < each <= 1)
    here = base.balancing_strategy
    others = [name for name in STRATEGIES.names() if name != here]
    return (RECORDED, here, f"{here}:balancing_tolerance={allowed}", *others)


def advised(result: ReplayResult, base: Settings, origin: Origin) -> Advice | str:
    """Advice, or why there is none. `base` are the settings that hold."""
    by_name = _candidates(result, base)
    recorded = _rows(result, RECORDED)
    why = "no other candidate was replayed to the end without breaking a rule"
    for found in result.ranked:
        candidate = by_name.get(found.candidate)
        if candidate is None or candidate.is_recorded or found.violations:
            continue
        gain = found.against_recorded
        if gain is None or not gain.high < 0:
            why = f"{found.candidate} may be no better than what the cluster did"
            continue
        change = _change(candidate, base)
        if change is None:
            why = f"{found.candidate} would do better, but no single step leads there"
            continue
        expected = _promise(recorded, _rows(result, found.candidate))
        if expected is None:
            why = f"{found.candidate} costs less, but neither spread nor time above tolerance falls for sure"
            continue
        return origin.advice(change, _reason(result, found, expected), expected, METHOD, TABLES)
    return why


def _factors(most: float) -> tuple[float, ...]:
    return (1 / most, most**-0.5, most**0.5, most)


def _rounded(value: float) -> float:
    return round(value, DIGITS)


def _candidates(result: ReplayResult, base: Settings) -> dict[str, Candidate]:
    return {each.name: each for each in parsed([each.candidate for each in result.ranked], base)}


def _change(candidate: Candidate, base: Settings) -> ChangeSettings | None:
    """None if there is nothing to change, or it is too much for one step."""
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


def _promise(before: dict[str, WindowRow], after: dict[str, WindowRow]) -> Expected | None:
    readings: tuple[tuple[Measure, Callable[[WindowRow], float | None]], ...] = (
        (Measure.SPREAD, lambda row: None if row.max_over_mean is None else max(0.0, row.max_over_mean - 1)),
        (Measure.ABOVE_TOLERANCE, lambda row: None if row.above_percent is None else row.above_percent / 100),
    )
    for measure, read in readings:
        pairs = list(_pairs(before, after, read))
        gain = mean([then - now for then, now in pairs])
        if gain is not None and gain.low > 0:
            return _expected(measure, pairs, gain)
    return None


def _pairs(
    before: dict[str, WindowRow], after: dict[str, WindowRow], read: Callable[[WindowRow], float | None]
) -> Iterator[tuple[float, float]]:
    for begin in sorted(before.keys() & after.keys()):
        then, now = read(before[begin]), read(after[begin])
        if then is not None and now is not None:
            yield then, now


def _expected(measure: Measure, pairs: Sequence[tuple[float, float]], gain: Mean) -> Expected:
    before = sum(then for then, _ in pairs) / len(pairs)
    after = max(0.0, before - gain.value)
    return Expected(measure, before, after, min(gain.low, before - after), max(gain.high, before - after))


def _reason(result: ReplayResult, found: Ranked, expected: Expected) -> str:
    gain = found.against_recorded
    assert gain is not None, "asked before"
    what = "spread" if expected.measure is Measure.SPREAD else "time above tolerance"
    return (
        f"Over {found.windows} windows of {result.window_s:g} s of the recorded load {found.candidate} would have cost "
        f"{-gain.mean:.3g} brokers less than what the cluster did (between {-gain.high:.3g} and {-gain.low:.3g}); "
        f"{what} {expected.before:.1%} → {expected.after:.1%}, better by {expected.low:.1%} to {expected.high:.1%}."
    )
