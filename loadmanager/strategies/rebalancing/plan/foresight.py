"""Keeps brokers so far below their limit that they stay within tolerance until the next round's moves are done. Pure.

A plan is made from reports that are some seconds old, and has to hold for a round. The strategy's memory has what it
expected of each broker; the next model shows what became of that. Two things follow, both in parts of the target, so
that a load that rises everywhere does not count as an error:

    rate    how fast a broker's usage rises by itself; a rise counts once it was seen twice
    doubt   how far brokers are from where they were expected, their rates considered: the root of the mean square

A broker's margin is its rise until the next round, plus DOUBTS times the doubt. Margins use at most KEPT of the room
between target and limit, in the mean over a pool, or its load would fit nowhere.

Some brokers teach nothing in a round:

* one whose number of bundles is not the expected one: moves of others, or moves that were not made, changed its load;
* one that exchanged bundles in the last round, where the number says nothing;
* one whose report is a mean over a time (`load_window_s`) in which its bundles changed.

docs/decisions/0043-plan-for-the-next-round.md has the figures behind the constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from loadmanager.model.cluster import Brokers, ClusterModel, Flags, Floats
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.plan.scale import Scale

NEWEST = 0.5
"""The weight of the newest rise in a broker's rate."""
TWICE = 2.0
"""A rate is at most this many times the smaller one of the last two rises."""
OLD_ROUNDS = 3.0
"""An expectation that is older says nothing: balancing was paused, or the round failed."""
FORGOTTEN = 0.2
"""The part of the doubt that a round replaces."""
DOUBTS = 1.5
"""This many times the doubt is kept free; one in fifteen errors of a normal distribution is larger."""
KEPT = 0.7
NOTHING = -1
"""In place of a number of bundles: the broker will teach nothing."""


class Expected(msgspec.Struct, frozen=True, array_like=True):
    """What the plan of a round expected of a broker: its usage in parts of the target, at the time of its report."""

    usage: float
    bundles: int
    """NOTHING if it exchanged bundles."""
    changed_s: float
    """When its bundles last changed, by the leader's clock."""
    sampled_s: float
    rate: float
    """Per second."""
    rise: float
    """The last rise, per second."""


class Expectations(msgspec.Struct, frozen=True):
    """The strategy's memory: by broker incarnation, and the square of the doubt."""

    brokers: Mapping[str, Expected]
    doubt: float


class Outlook(msgspec.Struct, frozen=True, eq=False):
    """What a model shows of the expectations of the round before. Rates (n,) per second, in parts of the target."""

    margin: Floats
    """(n,): by how much each broker's limit is lowered, as a usage."""
    changed_s: Floats
    """(n,): when each broker's bundles last changed, by the leader's clock."""
    rate: Floats
    rise: Floats
    doubt: float


def outlook_of(model: ClusterModel, settings: Settings, scale: Scale, memory: object) -> Outlook:
    """The outlook. Without the memory of an earlier round there are no margins."""
    n = len(model.brokers)
    none = np.zeros(n)
    if not isinstance(memory, Expectations):
        return Outlook(none, none - np.inf, none, none, 0.0)
    then = _columns(model, settings, memory)
    taught = _taught(model, settings, scale, then)
    span = np.where(taught, sampled_s(model) - then.sampled_s, 0.0)
    newer = span > 0
    error = np.where(newer, usage_of(scale) - then.usage, 0.0)
    rise = np.where(newer, error / np.where(newer, span, 1.0), then.rise)
    rate = np.where(newer, then.rate + NEWEST * (rise - then.rate), then.rate)
    wrong = np.clip(error - then.rate * span, -settings.tolerance, settings.tolerance)[newer]
    doubt = memory.doubt
    if wrong.size:
        doubt += FORGOTTEN * (float(np.square(wrong).mean()) - doubt)
    rising = np.minimum(rate, TWICE * np.maximum(0.0, np.minimum(rise, then.rise)))
    ahead = settings.balancing_interval_s + age_s(model.brokers)
    wanted = (np.maximum(0.0, rising) * ahead + DOUBTS * doubt**0.5) * scale.target
    changed_s = np.where(then.bundles == model.brokers.bundles, then.changed_s, model.at_ms / 1000)
    return Outlook(_kept(wanted, scale), changed_s, rate, rise, doubt)


def expectations(
    model: ClusterModel, scale: Scale, outlook: Outlook, peak: Floats, moves: Sequence[tuple[int, int]]
) -> Expectations:
    """What the next round should find if no load changes.

    `peak` (n,) is that after the plan, `moves` are the source and destination of each of its moves.
    """
    giving = np.bincount([source for source, _ in moves], minlength=len(peak))
    taking = np.bincount([destination for _, destination in moves], minlength=len(peak))
    rows = np.flatnonzero(scale.takes_part & (scale.target > 0))
    columns = (
        peak[rows] / scale.target[rows],
        np.where((giving > 0) & (taking > 0), NOTHING, model.brokers.bundles + taking - giving)[rows],
        np.where(giving + taking > 0, model.at_ms / 1000, outlook.changed_s)[rows],
        sampled_s(model)[rows],
        outlook.rate[rows],
        outlook.rise[rows],
    )
    values = zip(*(column.tolist() for column in columns), strict=True)
    ids = model.brokers.ids
    return Expectations(
        {str(ids[row]): Expected(*each) for row, each in zip(rows.tolist(), values, strict=True)}, outlook.doubt
    )


def usage_of(scale: Scale) -> Floats:
    """(n,): the usage of each broker's fullest resource, in parts of the target."""
    return np.maximum.reduce(scale.usage, axis=0, initial=0.0) / _positive(scale.target)


def age_s(brokers: Brokers) -> Floats:
    """(n,): how old the brokers' reports are; 0 if no ages are given, and where there is no report."""
    given = np.zeros(len(brokers)) if brokers.report_age_s is None else brokers.report_age_s
    return np.where(brokers.known, given, 0.0)


def sampled_s(model: ClusterModel) -> Floats:
    """(n,): when the brokers' reports were made, by the leader's clock."""
    return model.at_ms / 1000 - age_s(model.brokers)


def _positive(target: Floats) -> Floats:
    return np.where(target > 0, target, np.inf)


class _Then(msgspec.Struct, frozen=True, eq=False):
    """The fields of `Expected` as columns, (n,) each; NOTHING bundles where nothing was expected."""

    usage: Floats
    bundles: Floats
    changed_s: Floats
    sampled_s: Floats
    rate: Floats
    rise: Floats


def _columns(model: ClusterModel, settings: Settings, memory: Expectations) -> _Then:
    """The expectations that are not too old."""
    oldest_s = model.at_ms / 1000 - OLD_ROUNDS * settings.balancing_interval_s
    nothing = Expected(0.0, NOTHING, -np.inf, 0.0, 0.0, 0.0)
    found = (memory.brokers.get(str(broker), nothing) for broker in model.brokers.ids)
    rows = [msgspec.structs.astuple(each if each.sampled_s >= oldest_s else nothing) for each in found]
    return _Then(*np.array(rows, np.float64).reshape(-1, 6).T)


def _taught(model: ClusterModel, settings: Settings, scale: Scale, then: _Then) -> Flags:
    """(n,): the brokers that teach something."""
    since_s = sampled_s(model) - then.changed_s
    mixed = (since_s > 0) & (since_s < settings.load_window_s)
    return scale.takes_part & (then.bundles == model.brokers.bundles) & ~mixed


def _kept(wanted: Floats, scale: Scale) -> Floats:
    """The margins, made smaller in pools where they are more than the room allows."""
    margin = np.zeros_like(wanted)
    rows = np.flatnonzero(scale.takes_part)
    pool = scale.pool[rows]
    in_all = np.bincount(pool, wanted[rows])
    room = KEPT * np.bincount(pool, scale.limit[rows] - scale.target[rows])
    part = np.minimum(1.0, np.divide(room, in_all, out=np.ones_like(room), where=in_all > 0))
    margin[rows] = wanted[rows] * part[pool]
    return margin
