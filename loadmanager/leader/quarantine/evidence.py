"""How much the deaths of its holders speak against a bundle: a running likelihood ratio. Pure.

Two hypotheses for each time that a broker was given the bundle. *Deadly*: it kills its holder with probability
`KILLS`, at a time after it was given that may as well be a second as minutes (its logarithm is uniform, up to the
window). *Chance*: brokers are lost at the rate at which they were lost around then (after a calm of `c` seconds the
next one is lost with the hazard `1/c`), this one with its `share` of that; and its other bundles may be to blame, each
as far as it is suspected itself. A death multiplies the odds by `survival + density / (chance + others)`; a holder that
lived with the bundle for some time multiplies them by `survival`, which is less than 1.

Chance is not always what it is taken for, so there are three limits. No single death counts for more than `MOST`. Who
kills brokers *because* all is served again kills soon after the last bundle was given out: a part of chance
(`PROVOKED`) does that. And a broker may die again and again by itself: the deaths of no one name count for more than
`MOST` times what they would count if its turn were always next.

The score is the logarithm (base 10) of the odds, and never below 0: a CUSUM. So between two verdicts against an
innocent bundle there are, in the mean, at least 10**bar times that it is given to somebody (Lorden 1971), if chance is
what it is taken for here. A verdict needs `quarantine_deaths` deaths and a score of one more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log1p, log10

import msgspec

from loadmanager.leader.quarantine.losses import Fate, Losses
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

KILLS = 0.8
MOST = 100.0
PROVOKED = 0.05
"""How often chance waits for a bundle to be given out: who kills brokers because all is served again does it then."""
PRIOR = 0.001
"""Of a bundle that nothing speaks against."""
AT_ONCE_S = 0.5
"""Brokers that are lost within so long are lost together."""
WATCHED_SCORE, WATCHED_IN_A_ROW = 1.0, 3
FIRST_PAUSE, PAUSE_GROWS = 60, 5
"""The first pause is that part of the window, each further one so many times as long; none is longer than it."""
TIMES_HELD = (1, 3, 10)
"""The first pauses are at least so many times as long as the last broker lived with the bundle."""


class Death(msgspec.Struct, frozen=True, gc=False):
    """A broker that was lost with the bundle, and how long it had had it. `danger`: its part of `Loss.danger`."""

    broker: BrokerId
    at_ms: int
    held_ms: int
    taking: bool
    danger: float


class Lived(msgspec.Struct, frozen=True, gc=False):
    """A broker had the bundle for so long, and gave it away alive or was lost of something else."""

    broker: BrokerId
    at_ms: int
    held_ms: int


Step = Death | Lived


def density(held_s: float, window_s: float) -> float:
    """With which probability a deadly bundle kills at that time, per second."""
    return KILLS / ((1 + held_s) * log1p(window_s)) if held_s <= window_s else 0.0


def survival(held_s: float, window_s: float) -> float:
    """With which probability a holder outlives that time with a deadly bundle."""
    return 1 - KILLS * log1p(min(held_s, window_s)) / log1p(window_s)


def guilt(score: float) -> float:
    """How likely a bundle of that score is deadly."""
    odds = PRIOR * 10**score
    return odds / (1 + odds)


class Weighed(msgspec.Struct, frozen=True):
    """One step, what became of the broker, and by how much it multiplies the odds."""

    step: Step
    fate: Fate
    times: float
    if_ill: float
    """The same, if that broker dies again and again by itself."""
    calm_s: float = 0.0
    share: float = 1.0

    def __str__(self) -> str:
        held = f"{self.step.held_ms / 1000:.1f} s"
        if isinstance(self.step, Lived):
            return f"{self.step.broker} lived with it for {held}: odds x {self.times:.2g}"
        how = "while it acquired it" if self.step.taking else f"{held} after it was given it"
        said = f"{self.step.broker} was lost {how}, "
        if self.fate is Fate.LIVES:
            return f"{said}but its process lives: counts for nothing"
        known = {Fate.OPEN: "not known yet whether it crashed", Fate.GONE: "for good"}.get(self.fate, "crashed")
        return (
            f"{said}{known}; {self.calm_s:.0f} s from any other loss, its turn by chance {self.share:.0%}: "
            f"odds x {self.times:.2g}, if that broker dies again and again by itself x {self.if_ill:.2g}"
        )


class Sum(msgspec.Struct, frozen=True):
    """A score, and the deaths since it was 0 last."""

    score: float = 0.0
    deaths: int = 0

    def plus(self, times: float, deaths: int) -> Sum:
        """After another step."""
        score = self.score + log10(times)
        return Sum(score, self.deaths + deaths) if score > 0 else Sum()


class Standing(msgspec.Struct, frozen=True):
    """What is held against a bundle. `feared`: if all crashed whose fate is open; `proven`: of those who did.
    `in_a_row`: the losses since anybody lived with it."""

    bundle: Bundle
    steps: tuple[Weighed, ...]
    feared: Sum
    proven: Sum
    in_a_row: int
    last: Weighed | None = None
    """The newest loss that may count."""

    @property
    def watched(self) -> bool:
        """Whether the leader alone gives it out, by itself, so that the next death tells."""
        return self.in_a_row >= 2 and (self.feared.score >= WATCHED_SCORE or self.in_a_row >= WATCHED_IN_A_ROW)

    def is_to_be_locked(self, least: int) -> bool:
        """Whether it is to be locked up, with `quarantine_deaths` being `least`."""
        return least > 0 and self.proven.deaths >= max(least, 2) and self.proven.score >= bar(least) <= self.odds

    @property
    def odds(self) -> float:
        """The logarithm of the odds that it kills. The deaths of no one name count for more than `MOST` times what they
        would count if that broker died again and again by itself."""
        names = {each.step.broker.name for each in self.steps if isinstance(each.step, Death)}
        return min([self.proven.score, *(self._odds_if_ill(name) + log10(MOST) for name in names)])

    def _odds_if_ill(self, name: str) -> float:
        found = Sum()
        for each in self.steps:
            if isinstance(each.step, Lived) or each.fate.is_death:
                found = found.plus(each.if_ill if each.step.broker.name == name else each.times, 1)
        return found.score

    def __str__(self) -> str:
        lost = [w.step.broker for w in self.steps if isinstance(w.step, Death) and w.fate is not Fate.LIVES]
        crashed = sum(isinstance(w.step, Death) and w.fate.is_death for w in self.steps)
        odds = f"odds 10^{self.odds:.1f} that it kills"
        return f"{len(lost)} brokers were lost with it ({', '.join(map(str, lost))}), {crashed} of them crashed: {odds}"


def bar(least: int) -> float:
    """The score that a verdict needs."""
    return least + 1.0


def standing(bundle: Bundle, steps: Sequence[Step], losses: Losses, window_s: float) -> Standing:
    """Add up what is known by now."""
    own = frozenset(step.broker for step in steps if isinstance(step, Death))
    feared, proven, weighed, in_a_row = Sum(), Sum(), list[Weighed](), 0
    for step in steps:
        if isinstance(step, Lived):
            times = survival(step.held_ms / 1000, window_s)
            found = Weighed(step, Fate.LIVES, times, times)
            feared, proven, in_a_row = feared.plus(found.times, 0), proven.plus(found.times, 0), 0
        else:
            found = _weigh(step, losses, lambda at_ms: losses.calm_after_s(at_ms, own), window_s)
            if found is None:
                continue
            if found.fate is not Fate.LIVES:
                feared, in_a_row = feared.plus(found.times, 1), in_a_row + 1
            if found.fate.is_death:
                proven = proven.plus(found.times, 1)
        weighed.append(found)
    last = next((w for w in reversed(weighed) if isinstance(w.step, Death) and w.fate is not Fate.LIVES), None)
    return Standing(bundle, tuple(weighed), feared, proven, in_a_row, last)


def _weigh(death: Death, losses: Losses, after_s: Callable[[int], float], window_s: float) -> Weighed | None:
    loss = losses.get(death.broker)
    if loss is None:
        return None  # too long ago
    held_s = death.held_ms / 1000
    calm_s = max(AT_ONCE_S, min(loss.calm_s, after_s(death.at_ms)))
    others = max(0.0, loss.danger - death.danger)
    by_chance = 1 / calm_s + PROVOKED * density(held_s, window_s / FIRST_PAUSE)
    outlives, kills = survival(held_s, window_s), density(held_s, window_s)
    times, if_ill = (min(MOST, outlives + kills / (share * by_chance + others)) for share in (loss.share, 1.0))
    return Weighed(death, loss.fate, times, if_ill, calm_s, loss.share)


def pause_s(found: Standing, window_s: float, dice: float) -> float:
    """How long a watched bundle is held back after the last death: the longer, the more died, and the longer the last
    one lived with it, so that the next death cannot well be chance. `dice` are in [0, 1)."""
    last = found.last
    assert last is not None
    again = found.in_a_row - 2
    held_s = last.step.held_ms / 1000
    by_deaths_s = window_s / FIRST_PAUSE * PAUSE_GROWS ** min(again, 8)
    return min(window_s, max(by_deaths_s, held_s * TIMES_HELD[min(again, 2)])) * (1 + dice / 2)
