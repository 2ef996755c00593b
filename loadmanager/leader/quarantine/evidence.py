"""Weighs the deaths of a bundle's holders against the bundle: a running likelihood ratio. Pure.

It compares two hypotheses each time a broker was given the bundle. *Deadly*: the bundle kills its holder with
probability `KILLS`, after a time whose logarithm is uniform up to the window: a second is as likely as minutes.
*Chance*: brokers are lost at the recent rate (after a calm of `c` seconds the hazard of the next loss is `1/c`), this
broker with its `share` of it; or another of its bundles is to blame, as far as that one is suspected. A death
multiplies the odds by `survival + density / (chance + others)`. A holder that lived with the bundle multiplies them by
`survival`, which is less than 1.

Three limits apply, since this model of chance may be wrong. No single death counts for more than `MOST`. Somebody who
kills brokers *because* all bundles are served again kills soon after the last one was given out: `PROVOKED` is the part
of chance for that. And a broker may die repeatedly by itself: the deaths under one broker name count for at most `MOST`
times what they would count if that broker were always the next to be lost.

The score is the logarithm (base 10) of the odds, never below 0: a CUSUM. If the model of chance is right, the mean
number of times that an innocent bundle is given out between two verdicts is at least 10**bar (Lorden 1971). A verdict
needs `quarantine_deaths` deaths and a score of one more than that.
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
"""The fraction of chance losses soon after a bundle was given out: some kill brokers as soon as all is served again."""
PRIOR = 0.001
"""The prior odds of a bundle without evidence."""
AT_ONCE_S = 0.5
"""Brokers that are lost within this time are lost together."""
WATCHED_SCORE, WATCHED_IN_A_ROW = 1.0, 3
FIRST_PAUSE, PAUSE_GROWS = 60, 5
"""The first pause is the window divided by 60, each further one 5 times longer, up to the window."""
TIMES_HELD = (1, 3, 10)
"""The first three pauses are at least this many times as long as the last broker lived with the bundle."""


class Death(msgspec.Struct, frozen=True, gc=False):
    """A broker that was lost `held_ms` after it was given the bundle; `danger`: the bundle's part of `Loss.danger`."""

    broker: BrokerId
    at_ms: int
    held_ms: int
    taking: bool
    danger: float


class Lived(msgspec.Struct, frozen=True, gc=False):
    """A broker that had the bundle for `held_ms`, and gave it away alive or was lost for another reason."""

    broker: BrokerId
    at_ms: int
    held_ms: int


Step = Death | Lived


def density(held_s: float, window_s: float) -> float:
    """The probability per second that a deadly bundle kills after that time."""
    return KILLS / ((1 + held_s) * log1p(window_s)) if held_s <= window_s else 0.0


def survival(held_s: float, window_s: float) -> float:
    """The probability that a holder of a deadly bundle lives longer than that."""
    return 1 - KILLS * log1p(min(held_s, window_s)) / log1p(window_s)


def guilt(score: float) -> float:
    """The probability that a bundle with that score is deadly."""
    odds = PRIOR * 10**score
    return odds / (1 + odds)


class Weighed(msgspec.Struct, frozen=True):
    """One step, the broker's fate, and the factor for the odds."""

    step: Step
    fate: Fate
    times: float
    if_ill: float
    """The same factor, if that broker dies repeatedly by itself."""
    calm_s: float = 0.0
    share: float = 1.0

    def __str__(self) -> str:
        held = f"{self.step.held_ms / 1000:.1f} s"
        if isinstance(self.step, Lived):
            return f"{self.step.broker} lived with it for {held}: odds x {self.times:.2g}"
        how = "while it acquired the bundle" if self.step.taking else f"{held} after it got the bundle"
        said = f"{self.step.broker} was lost {how}, "
        if self.fate is Fate.LIVES:
            return f"{said}but its process lives: counts for nothing"
        known = {Fate.OPEN: "not known yet whether it crashed", Fate.GONE: "for good"}.get(self.fate, "crashed")
        return (
            f"{said}{known}; {self.calm_s:.0f} s from any other loss, its turn by chance {self.share:.0%}: "
            f"odds x {self.times:.2g}, if that broker dies again and again by itself x {self.if_ill:.2g}"
        )


class Sum(msgspec.Struct, frozen=True):
    """A score, and the deaths since it was last 0."""

    score: float = 0.0
    deaths: int = 0

    def plus(self, times: float, deaths: int) -> Sum:
        """The sum after another step."""
        score = self.score + log10(times)
        return Sum(score, self.deaths + deaths) if score > 0 else Sum()


class Evidence(msgspec.Struct, frozen=True):
    """The evidence against a bundle.

    `feared` assumes that brokers with an open fate crashed; `proven` counts known crashes. `in_a_row` counts the losses
    since a broker last lived with the bundle.
    """

    bundle: Bundle
    steps: tuple[Weighed, ...]
    feared: Sum
    proven: Sum
    in_a_row: int
    last: Weighed | None = None
    """The newest loss that may count against the bundle."""

    @property
    def watched(self) -> bool:
        """Whether only the leader gives the bundle out, and nothing else with it, so that the next death tells."""
        return self.in_a_row >= 2 and (self.feared.score >= WATCHED_SCORE or self.in_a_row >= WATCHED_IN_A_ROW)

    def is_to_be_locked(self, least: int) -> bool:
        """Whether to lock up the bundle; `least` is `quarantine_deaths`."""
        return least > 0 and self.proven.deaths >= max(least, 2) and self.proven.score >= bar(least) <= self.odds

    @property
    def odds(self) -> float:
        """The logarithm of the odds that the bundle kills.

        The deaths under one broker name count for at most `MOST` times what they would if that broker died repeatedly
        by itself.
        """
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


def evidence_against(bundle: Bundle, steps: Sequence[Step], losses: Losses, window_s: float) -> Evidence:
    """Add up the evidence so far."""
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
    return Evidence(bundle, tuple(weighed), feared, proven, in_a_row, last)


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


def pause_s(found: Evidence, window_s: float, dice: float) -> float:
    """How long a watched bundle is held back after the last death; `dice` are in [0, 1).

    The pause grows with the deaths, and with the time that the last broker lived with it, so that the next death is
    unlikely to be chance.
    """
    last = found.last
    assert last is not None
    again = found.in_a_row - 2
    held_s = last.step.held_ms / 1000
    by_deaths_s = window_s / FIRST_PAUSE * PAUSE_GROWS ** min(again, 8)
    return min(window_s, max(by_deaths_s, held_s * TIMES_HELD[min(again, 2)])) * (1 + dice / 2)
