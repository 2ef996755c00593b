"""When a bundle is hot or cold, and which of its bundles an owner splits now. Pure; the memory goes in and out.

The rule is Pulsar's (`DefaultNamespaceBundleSplitStrategyImpl`), taken from its code. Its limits, in this order, are
topics, sessions, message rate and bandwidth. The first that is exceeded is the cause; a limit of 0 means none. A bundle
of two or more keys is split if it is above a limit in more than `split_hits` looks in a row. Its namespace must stay
within `namespace_max_bundles`, and no neighbour may be in a split. At most `split_bundles_per_round` begin at a time.

Differences: the fullest goes first (Pulsar: in map order), one split may make more than two parts, and bundles that the
round has no room for keep their hits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

import msgspec

from loadmanager.errors import Conflict
from loadmanager.model.boundaries import FEWEST_PARTS, MOST_PARTS
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import TopBundlesLoadData, heat, total_of
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State

FILL_AIMED_AT = 0.75
"""A split makes enough parts that each stays below this fraction of its limit, if the load divides evenly.

That leaves room to grow: a bundle a little above its limit gets two children, one at eight times the limit more than
eight full ones.
"""


class Cause(StrEnum):
    """Why a bundle is split; Pulsar's labels."""

    TOPICS = "Topics"
    SESSIONS = "Sessions"
    MSG_RATE = "MsgRate"
    BANDWIDTH = "Bandwidth"
    ADMIN = "Admin"


_IN_WORDS = {
    Cause.TOPICS: "keys",
    Cause.SESSIONS: "sessions",
    Cause.MSG_RATE: "messages/s",
    Cause.BANDWIDTH: "bytes/s",
}


class Limits(msgspec.Struct, frozen=True):
    """The limits of one bundle; infinite if the setting is 0."""

    keys: float
    sessions: float
    rate_msg_s: float
    bandwidth_bytes_s: float

    @staticmethod
    def of(settings: Settings) -> Limits:
        return Limits(
            settings.split_max_keys or math.inf,
            settings.split_max_sessions or math.inf,
            settings.split_max_rate_msg_s or math.inf,
            settings.split_max_bandwidth_bytes_s or math.inf,
        )

    @property
    def any(self) -> bool:
        """Whether there is any limit at all."""
        return any(limit < math.inf for limit in msgspec.structs.astuple(self))


class Measure(msgspec.Struct, frozen=True):
    """One quantity of a bundle against its limit."""

    cause: Cause
    value: float
    limit: float

    @property
    def fill(self) -> float:
        return self.value / self.limit

    def __str__(self) -> str:
        return f"{self.value:,.0f} {_IN_WORDS[self.cause]} of {self.limit:,.0f}"


def measures(load: BundleLoad, limits: Limits) -> tuple[Measure, ...]:
    """The quantities that have a limit, in the order of the conditions."""
    found = (
        Measure(Cause.TOPICS, load.keys, limits.keys),
        Measure(Cause.SESSIONS, load.sessions, limits.sessions),
        Measure(Cause.MSG_RATE, load.rate_msg_s, limits.rate_msg_s),
        Measure(Cause.BANDWIDTH, load.throughput_bytes_s, limits.bandwidth_bytes_s),
    )
    return tuple(measure for measure in found if measure.limit < math.inf)


def exceeded(load: BundleLoad, limits: Limits) -> Measure | None:
    """The first quantity above its limit, None if the bundle is within all of them."""
    return next((measure for measure in measures(load, limits) if measure.value > measure.limit), None)


def fullest(load: BundleLoad, limits: Limits) -> Measure | None:
    """The quantity nearest to (or farthest above) its limit; None without limits."""
    return max(measures(load, limits), key=lambda measure: measure.fill, default=None)


def is_cold(load: BundleLoad, limits: Limits, below: float) -> bool:
    """Whether every quantity is below this fraction of its limit. Without any limit nothing is cold."""
    return limits.any and all(measure.fill < below for measure in measures(load, limits))


def parts_for(load: BundleLoad, limits: Limits) -> int:
    """Into how many parts to split a hot bundle, if its load divides evenly."""
    hottest = fullest(load, limits)
    wanted = 0 if hottest is None else math.ceil(min(hottest.fill / FILL_AIMED_AT, MOST_PARTS))
    return min(max(FEWEST_PARTS, wanted), MOST_PARTS)


class Extreme(StrEnum):
    """A shorthand for one bundle of a namespace."""

    LARGEST = "LARGEST"
    HOT = "HOT"


def choose(
    which: Extreme,
    namespace: str,
    table: OwnershipTable,
    tops: Mapping[str, TopBundlesLoadData],
    own: Mapping[Bundle, BundleLoad],
) -> Bundle:
    """The chosen bundle of those with known load: the ones that brokers report as hottest, and our own.

    Raises Conflict if none has any keys, or load. A bundle that is neither among its owner's hottest nor ours is not
    seen, however large; the setting `load_top_bundles` says how many are reported.
    """
    loads = {
        each.bundle: each.load
        for top in tops.values()
        for each in top.bundles
        if (entry := table.get(each.bundle)) is not None and entry.holder == top.broker
    } | dict(own)
    here = {bundle: load for bundle, load in loads.items() if bundle.namespace == namespace and _at_rest(table, bundle)}
    total = total_of(here.values())
    sizes = {
        bundle: float(load.keys) if which is Extreme.LARGEST else heat(load, total) for bundle, load in here.items()
    }
    largest = max(sorted(sizes), key=lambda bundle: sizes[bundle], default=None)
    if largest is None or sizes[largest] <= 0:
        what = "keys" if which is Extreme.LARGEST else "load"
        raise Conflict(f"no {what} was reported for any bundle of {namespace}; name the bundle by its range")
    return largest


def _at_rest(table: OwnershipTable, bundle: Bundle) -> bool:
    entry = table.get(bundle)
    return entry is not None and entry.state is State.ASSIGNED


WORTH_AVERAGING = 0.5
"""From this fraction of a limit on, a bundle is judged by its mean over the window; below, by the last sample."""
FEWEST_KEYS = 2
"""A bundle with fewer keys does not become cooler by a cut."""

SettingsOf = Callable[[Bundle], Settings]
"""The settings of a bundle: policies may override some for a namespace or a bundle."""


def nothing_said(_bundle: Bundle) -> str:
    """Say that no policy applies."""
    return ""


class Rule(StrEnum):
    """Why a bundle is not split."""

    SWITCHED_OFF = "switched off"
    POLICY = "policy"
    TOO_FEW_KEYS = "too few keys"
    NO_LIMIT = "no limit is set"
    BELOW_LIMITS = "below its limits"
    NOT_AT_REST = "not at rest"
    TOO_NARROW = "too narrow"
    HITS = "not long enough"
    NAMESPACE_FULL = "namespace_max_bundles"
    NEIGHBOUR_SPLITS = "a neighbour is being split"
    ROUND_FULL = "split_bundles_per_round"
    NO_CUTS = "no cuts"


class View(msgspec.Struct, frozen=True):
    """What an owner knows of its bundles.

    `loads`: of all its bundles. `assigned`: those at rest. `counts`: bundles of each namespace. `splitting`: all
    bundles that are being split. `left_alone`: the policy that forbids splitting a bundle, else empty.
    """

    loads: Mapping[Bundle, BundleLoad]
    assigned: Collection[Bundle]
    counts: Mapping[str, int]
    splitting: Collection[Bundle] = ()
    left_alone: Callable[[Bundle], str] = nothing_said


class Hot(msgspec.Struct, frozen=True):
    """A bundle to split: the measure above its limit, for how many looks, and how many parts (at most `room`)."""

    bundle: Bundle
    load: BundleLoad
    measure: Measure
    hits: int
    parts: int
    room: int

    def __str__(self) -> str:
        return f"{self.measure}, {self.hits} looks in a row"


class Kept(msgspec.Struct, frozen=True):
    """A bundle that is not split, with the rule and its numbers."""

    bundle: Bundle
    rule: Rule
    detail: str


class SplitDecision(msgspec.Struct, frozen=True):
    """What to split, fullest first; the hot bundles that stay, and how many stay by each rule."""

    splits: tuple[Hot, ...]
    kept: tuple[Kept, ...]
    """The kept bundles that are above a limit. `judge` explains any other."""
    counts: Mapping[Rule, int]
    hits: Mapping[Bundle, int]
    """The memory: looks in a row in which a bundle was above a limit."""


def decide_splits(view: View, settings_of: SettingsOf, hits: Mapping[Bundle, int]) -> SplitDecision:
    """One look at all bundles of an owner. `hits` is the last decision's memory, empty at the start."""
    counted: dict[Bundle, int] = {}
    hot: list[Hot] = []
    counts: Counter[Rule] = Counter()
    kept: list[Kept] = []
    for bundle in view.loads:
        found = judge(view, bundle, settings_of(bundle), hits.get(bundle, 0) + 1)
        if isinstance(found, Hot):
            counted[bundle] = found.hits
            hot.append(found)
            continue
        counts[found.rule] += 1
        if found.rule is Rule.HITS:
            counted[bundle] = hits.get(bundle, 0) + 1
        if found.rule not in _NOT_HOT:
            kept.append(found)
    hot.sort(key=lambda each: (-each.measure.fill, each.bundle))
    splits, left = _within_caps(view, hot, settings_of)
    for each in splits:
        del counted[each.bundle]
    for each in left:
        counts[each.rule] += 1
    return SplitDecision(tuple(splits), (*kept, *left), dict(counts), counted)


def worth_averaging(
    loads: Mapping[Bundle, BundleLoad], settings_of: SettingsOf, hits: Mapping[Bundle, int]
) -> list[Bundle]:
    """The bundles near a limit, or above one the last time: to be judged by more than one sample."""
    return [
        bundle
        for bundle, load in loads.items()
        if bundle in hits
        or ((near := fullest(load, Limits.of(settings_of(bundle)))) is not None and near.fill >= WORTH_AVERAGING)
    ]


_NOT_HOT = frozenset({Rule.BELOW_LIMITS, Rule.NO_LIMIT, Rule.TOO_FEW_KEYS, Rule.SWITCHED_OFF})


def judge(view: View, bundle: Bundle, settings: Settings, hits: int) -> Hot | Kept:
    """Judge one bundle by itself, in its `hits`-th hot look in a row; ignores the caps on all bundles together."""
    load, limits = view.loads[bundle], Limits.of(settings)
    if not settings.balancing or not settings.split:
        return Kept(bundle, Rule.SWITCHED_OFF, "`balancing` or `split` is off")
    if not limits.any:
        return Kept(bundle, Rule.NO_LIMIT, "every split_max_… is 0")
    if load.keys < FEWEST_KEYS:
        return Kept(bundle, Rule.TOO_FEW_KEYS, f"{load.keys} keys; a cut would not make it cooler")
    measure = exceeded(load, limits)
    if measure is None:
        return Kept(bundle, Rule.BELOW_LIMITS, f"at most {fullest(load, limits)}")
    if policy := view.left_alone(bundle):
        return Kept(bundle, Rule.POLICY, f"{measure}; {policy}")
    if bundle.hi - bundle.lo < FEWEST_PARTS:
        return Kept(bundle, Rule.TOO_NARROW, f"{measure}; there is no position inside it")
    if bundle not in view.assigned:
        return Kept(bundle, Rule.NOT_AT_REST, f"{measure}; it is on its way, or being split")
    if hits <= settings.split_hits:
        return Kept(bundle, Rule.HITS, f"{measure} in {hits} looks in a row; more than {settings.split_hits} make it")
    return Hot(bundle, load, measure, hits, parts_for(load, limits), FEWEST_PARTS)


def _within_caps(view: View, hot: list[Hot], settings_of: SettingsOf) -> tuple[list[Hot], list[Kept]]:
    """The bundles that the namespaces and the round have room for, in this order, and why the others wait."""
    splits: list[Hot] = []
    kept: list[Kept] = []
    more: Counter[str] = Counter()
    for each in hot:
        settings, namespace = settings_of(each.bundle), each.bundle.namespace
        count = view.counts.get(namespace, 0) + more[namespace]
        room = settings.namespace_max_bundles - count + 1
        if room < FEWEST_PARTS:
            detail = f"{each}; {namespace} has {count} bundles, {settings.namespace_max_bundles} at most"
            kept.append(Kept(each.bundle, Rule.NAMESPACE_FULL, detail))
        elif (neighbour := _splitting_beside(each.bundle, view.splitting)) is not None:
            kept.append(Kept(each.bundle, Rule.NEIGHBOUR_SPLITS, f"{each}; {neighbour.range} is being split"))
        elif len(splits) >= settings.split_bundles_per_round:
            kept.append(Kept(each.bundle, Rule.ROUND_FULL, f"{each}; {len(splits)} splits begin in this round"))
        else:
            parts = min(each.parts, room)
            splits.append(msgspec.structs.replace(each, parts=parts, room=room))
            more[namespace] += parts - 1
    return splits, kept


def _splitting_beside(bundle: Bundle, splitting: Collection[Bundle]) -> Bundle | None:
    edges = {bundle.lo, bundle.hi}
    same = (other for other in splitting if other.namespace == bundle.namespace and other != bundle)
    return next((other for other in same if other.lo in edges or other.hi in edges), None)
