"""Strategy `transfer`: Pulsar's TransferShedder, decision by decision; the reference for ours.

Brokers are sorted by the moving average of their fullest resource. After the standard deviation has missed its target
for some rounds in a row, the fullest gives to the emptiest until the target is met. Figures follow the expected effect
of the round's own decisions. A bundle is judged by its bytes only, from the smallest to the largest. If the next one
would be too much, it goes nevertheless if bundles of the emptiest broker can come back in exchange.

These weaknesses of Pulsar are kept:

* bundles are chosen by bytes only and from the smallest up, so that many clients reconnect for little load;
* one broker that has not reported, or that has just shed, stops the round for the whole cluster;
* destinations get no time to settle;
* a bundle that comes back in a swap may have been moved just now.

These are not kept:

* traffic that comes back in a swap counts only while a setting for log messages is on, so the expected result is wrong;
* brokers with outdated data can be chosen although they are left out of the mean (here old data never moves anything);
* if no broker has any load, everything moves, since 0/0 is above nothing.

Policies, pauses and drains hold as for every strategy; they cause no moves here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cmp_to_key
from math import isfinite, sqrt

import msgspec
import numpy as np

from loadmanager.model.cluster import FREE, ClusterModel, Flags, Floats
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Refused, Stage
from loadmanager.strategies.rebalancing.pulsar.shedder import (
    AS_IN_PULSAR,
    RESTING,
    Average,
    Averages,
    Cause,
    Label,
    Moves,
    Outcome,
    Times,
    Tuning,
    columns,
    folded,
    younger_than,
)


class Ranking:
    """Brokers by their rows, in the order of their average load; `highest` and `lowest` move towards each other."""

    def __init__(
        self, rows: list[int], load: Floats, throughput_bytes_s: Floats, settings: Settings, tuning: Tuning
    ) -> None:
        self._settings, self._tuning = settings, tuning
        self._load = load
        self._throughput_bytes_s = throughput_bytes_s
        self._rows = sorted(rows, key=lambda row: load[row])
        chosen = [float(load[row]) for row in rows]
        self.mean = sum(chosen) / len(chosen)
        self._squares = sum(each * each for each in chosen)
        self.deviation = self._deviation()
        self._low, self._high, self._shed = 0, len(rows) - 1, 0

    @property
    def highest(self) -> int:
        return self._rows[self._high]

    @property
    def lowest(self) -> int:
        return self._rows[self._low]

    @property
    def goes_on(self) -> bool:
        """Whether two brokers are left to pair, and another one may shed in this round."""
        return self._shed < self._tuning.max_brokers and self._low < self._high

    def condition(self) -> Cause | None:
        """Why bundles should move now, None if none should."""
        if self.deviation > self._tuning.target_std:
            return Cause.OVERLOADED
        if self._is_underloaded(self.lowest):
            return Cause.UNDERLOADED
        return Cause.OVERLOADED if self._is_overloaded(self.highest) else None

    def load(self, row: int) -> float:
        """The average usage of a broker before any move."""
        return float(self._load[row])

    def pass_highest(self) -> int:
        """The fullest broker, which is not considered again in this round."""
        self._high -= 1
        return self._rows[self._high + 1]

    def moved(self, source: int, destination: int, load: float) -> None:
        """Note load expected to move between the two; the destination gets no more in this round."""
        before, after = (self.load(source), self.load(destination)), (self.load(source) - load, 0.0)
        after = (max(0.0, after[0]), before[1] + load)
        self._squares += sum(each * each for each in after) - sum(each * each for each in before)
        self.deviation = self._deviation()
        self._shed += 1
        self._low += 1

    def _deviation(self) -> float:
        return sqrt(abs(self._squares / len(self._rows) - self.mean * self.mean))

    def _is_underloaded(self, row: int) -> bool:
        part = min(0.5, max(0.0, self._tuning.target_std / 2))
        bytes_s = self._throughput_bytes_s
        return self._load[row] < self.mean * part or bool(bytes_s[row] < bytes_s[self.highest] * part)

    def _is_overloaded(self, row: int) -> bool:
        load = self._load[row]
        full = self._settings.overloaded_percent / 100
        return bool(load > full and load > self.mean + self._tuning.target_std)


def usable(model: ClusterModel, unloaded_ms: Times, settings: Settings) -> list[int] | Cause:
    """The rows to compare, or why the whole round is skipped.

    As in Pulsar, one live broker that has never reported, or that shed and has not reported for `shedder_delay_s`
    since, stops the round for all.
    """
    brokers = model.brokers
    there = ~brokers.draining & ~brokers.paused
    age_s = _ages_s(model)
    fresh = there & brokers.known & (age_s <= settings.load_ttl_s)
    rows = [int(row) for row in np.flatnonzero(fresh)]
    for row in rows:
        unloaded = unloaded_ms.get(str(brokers.ids[row]))
        if unloaded is not None and model.at_ms - age_s[row] * 1000 - unloaded < settings.shedder_delay_s * 1000:
            return Cause.COOL_DOWN
    outdated = [row for row in np.flatnonzero(there & ~fresh) if isfinite(age_s[row])]
    if not rows:
        return Cause.OUTDATED_DATA if outdated else Cause.NO_BROKERS
    return rows if len(rows) + len(outdated) == int(there.sum()) else Cause.NO_LOAD_DATA


def _ages_s(model: ClusterModel) -> Floats:
    """(n,), the age of the brokers' reports; infinite without one."""
    if model.brokers.report_age_s is not None:
        return model.brokers.report_age_s
    known: Flags = model.brokers.known
    return np.where(known, 0.0, np.inf)


SWAPPED_BELOW = 0.75
"""After a swap the fuller broker must be below this fraction of its former throughput."""

POLICIES = "under an isolation policy or in an anti-affinity group"
ZERO = "no traffic"
_STEPS = (100_000.0, 100_000.0, 100.0)
"""Differences of bytes in, bytes out and messages per second that distinguish bundles in a report's order."""
_COMPARED = (2, 3, 4)
"""The columns of a bundle's load in that order."""


class Traffic(msgspec.Struct):
    """The bytes/s of one pair that are chosen to go and to come back."""

    going: float = 0.0
    coming: float = 0.0

    @property
    def net(self) -> float:
        return self.going - self.coming


class Pair(msgspec.Struct, frozen=True):
    """Rows of two brokers, how many bytes/s should go from the full one to the empty one, and why."""

    full: int
    empty: int
    wanted_bytes_s: float
    cause: Cause


class Walk:
    """Chooses the bundles of a pair. `resting`: rows of bundles that were unloaded recently."""

    def __init__(self, model: ClusterModel, tuning: Tuning, moves: Moves, resting: frozenset[int]) -> None:
        self._model = model
        self._tuning = tuning
        self._moves = moves
        self._resting = resting

    def reported(self, broker: int) -> list[int]:
        """The bundles in the broker's report in Pulsar's order, from the smallest to the largest."""
        load = self._model.bundles.load

        def compare(one: int, other: int) -> int:
            for column, step in zip(_COMPARED, _STEPS, strict=True):
                difference = load[one, column] - load[other, column]
                if abs(difference) > step:
                    return 1 if difference > 0 else -1
            return 0

        return sorted(map(int, np.flatnonzero(self._model.bundles.owner == broker)), key=cmp_to_key(compare))

    def shed(self, pair: Pair) -> Traffic:
        """Decide the moves of this pair; returns their traffic."""
        mine, back = self.reported(pair.full), iter(self.reported(pair.empty))
        traffic, remaining = Traffic(), len(mine)
        for bundle in mine:
            rule = self._stays(bundle, pair)
            if rule is not None:
                self._moves.counts[rule] += 1
                continue
            if remaining <= 1:
                self._moves.counts["the last one of the report"] += 1
                break
            swapped: list[int] = []
            bytes_s = self._bytes_s(bundle)
            if traffic.net + bytes_s > pair.wanted_bytes_s:
                swapped = self._swapped(pair, traffic, bytes_s, back)
                if not swapped:
                    self._moves.counts["more than is to go"] += 1
                    break
            self._make(pair, bundle, swapped)
            traffic.going += bytes_s
            traffic.coming += sum(map(self._bytes_s, swapped))
            remaining -= 1
        return traffic

    def _bytes_s(self, bundle: int) -> float:
        return float(self._model.bundles.throughput_bytes_s[bundle])

    def _stays(self, bundle: int, pair: Pair) -> str | None:
        if bundle in self._resting:
            return RESTING
        return self._refusal(bundle, pair.empty) or (ZERO if self._bytes_s(bundle) == 0 else None)

    def _refusal(self, bundle: int, destination: int) -> str | None:
        """Pulsar's gate for bundles under policies, then the hard rules."""
        constraints = self._model.constraints
        isolated = constraints.isolated is not None and bool(constraints.isolated[bundle])
        grouped = int(constraints.group[bundle]) != FREE
        if not may_shed(self._tuning, isolated=isolated, grouped=grouped):
            return POLICIES
        return self._moves.refusal(bundle, destination)

    def _swapped(self, pair: Pair, traffic: Traffic, bytes_s: float, back: Iterator[int]) -> list[int]:
        """Bundles to come back for one of `bytes_s`; none if no choice improves the pair.

        As in Pulsar, a tried bundle is used up for the whole pair, and recent unloads are ignored.
        """
        if not self._tuning.transfer:
            return []
        brokers = self._model.brokers
        before = float(brokers.throughput_bytes_s[pair.full])
        full = before - traffic.net - bytes_s
        empty = float(brokers.throughput_bytes_s[pair.empty]) + traffic.net + bytes_s
        taken: list[int] = []
        for bundle in back:
            size = self._bytes_s(bundle)
            rule = self._refusal(bundle, pair.full)
            if rule is not None or size == 0:
                self._moves.counts[rule or ZERO] += 1
                continue
            if full + size >= before or empty - size >= before:
                continue
            full, empty = full + size, empty - size
            taken.append(bundle)
            if empty <= full < before * SWAPPED_BELOW:
                return taken
        return []

    def _make(self, pair: Pair, bundle: int, swapped: list[int]) -> None:
        stage = Stage.SWAP if swapped else Stage.OVERLOAD if pair.cause is Cause.OVERLOADED else Stage.BALANCE
        group = len(self._moves.made) + 1 if swapped else 0
        bytes_s = f"{self._bytes_s(bundle) / 1e6:.3g} MB/s"
        if not self._tuning.transfer:
            self._moves.make(bundle, None, f"{pair.cause}: {bytes_s} are unloaded", stage)
            return
        self._moves.make(bundle, pair.empty, f"{pair.cause}: {bytes_s}", stage, group)
        for each in swapped:
            why = f"{pair.cause}: {self._bytes_s(each) / 1e6:.3g} MB/s come back for {bytes_s}"
            self._moves.make(each, pair.full, why, stage, group)


def may_shed(tuning: Tuning, *, isolated: bool, grouped: bool) -> bool:
    """Pulsar's policy gate: bundles under isolation or in an anti-affinity group stay, unless `policy_bundles`."""
    return tuning.policy_bundles or not (isolated or grouped)


_SKIPPED: Mapping[Cause, str] = {
    Cause.NO_BROKERS: "no broker has load data",
    Cause.OUTDATED_DATA: "all load data is out of date",
    Cause.NO_LOAD_DATA: "a live broker has not reported yet",
    Cause.COOL_DOWN: "a broker that shed has not settled and reported yet",
}


class TransferMemory(msgspec.Struct, frozen=True):
    """The memory between rounds. `hits`: rounds in a row in which something should have moved; times as in `Times`."""

    hits: int = 0
    averages: Averages = msgspec.field(default_factory=dict[str, Average])
    brokers_ms: Times = msgspec.field(default_factory=dict[str, int])
    """When brokers last gave something away, by incarnation."""
    bundles_ms: Times = msgspec.field(default_factory=dict[str, int])
    """When bundles were unloaded without a destination; other moves are in the model."""
    outcome: Outcome = Outcome()


class Transfer:
    """Pulsar's TransferShedder."""

    name = "transfer"

    def __init__(self, tuning: Tuning = AS_IN_PULSAR) -> None:
        self._tuning = tuning

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """See `Strategy`; `memory` is a TransferMemory."""
        before = memory if isinstance(memory, TransferMemory) else TransferMemory()
        now = msgspec.structs.replace(
            before,
            averages=folded(before.averages, model, settings, self._tuning.history),
            brokers_ms=younger_than(before.brokers_ms, _longest_s(settings), model.at_ms),
            bundles_ms=younger_than(before.bundles_ms, settings.bundle_rest_s, model.at_ms),
        )
        rows = usable(model, now.brokers_ms, settings)
        if isinstance(rows, Cause):
            return _nothing(model, settings, now, Outcome(cause=rows), _SKIPPED[rows])
        ranking = Ranking(rows, *columns(now.averages, model.brokers.ids), settings, self._tuning)
        measured = Outcome(Label.SKIP, Cause.HIT_COUNT, ranking.mean, ranking.deviation, ranking.deviation)
        hits = now.hits + 1 if ranking.condition() else 0
        now = msgspec.structs.replace(now, hits=hits)
        if hits <= settings.shedder_hit_count:
            return _nothing(model, settings, now, measured, _hit_count(hits, measured, settings, self._tuning))
        return _shed(model, settings, self._tuning, now, ranking, measured)


def _shed(
    model: ClusterModel,
    settings: Settings,
    tuning: Tuning,
    memory: TransferMemory,
    ranking: Ranking,
    measured: Outcome,
) -> Decision:
    moves = Moves(model, settings)
    walk = Walk(model, tuning, moves, _resting(model, memory))
    refused: list[Refused] = []
    first: Cause | None = None
    while ranking.goes_on and (cause := ranking.condition()):
        full, empty = ranking.pass_highest(), ranking.lowest
        empty_handed = _gives_nothing(model, walk, full)
        if empty_handed is None:
            load, bytes_s = ranking.load(full), float(model.brokers.throughput_bytes_s[full])
            part = (load - ranking.load(empty)) / 2 / load if load > 0 else 0.0
            traffic = walk.shed(Pair(full, empty, bytes_s * part, cause))
            if traffic.going > 0:
                ranking.moved(full, empty, traffic.net * load / bytes_s if bytes_s > 0 else 0.0)
                first = first or cause
                continue
            empty_handed = Refused(model.brokers.ids[full].name, Cause.NO_BUNDLES, "none of its bundles may or need go")
        refused.append(empty_handed)
    if first is None:
        rules = {each.rule for each in refused}
        order = (Cause.NO_LOAD_DATA, Cause.NO_BUNDLES)
        cause = next((each for each in order if each in rules), Cause.HIT_COUNT)
        why = "; ".join(f"{each.subject}: {each.detail}" for each in refused[:3]) or "nothing is left to do"
        outcome = msgspec.structs.replace(measured, cause=cause)
        return moves.decision(_reason(outcome, why), tuple(refused), _told(memory, outcome))
    outcome = msgspec.structs.replace(measured, label=Label.SUCCESS, cause=first, std_after=ranking.deviation)
    text = f"{len(moves.made)} moves; the standard deviation of usage goes from {measured.load_std:.3f} to "
    text += f"{outcome.std_after:.3f}, the target is {tuning.target_std:g}"
    return moves.decision(_reason(outcome, text), tuple(refused), _after(moves, model, _told(memory, outcome)))


def _gives_nothing(model: ClusterModel, walk: Walk, full: int) -> Refused | None:
    """Why a broker is skipped before any of its bundles is considered."""
    reported, name = len(walk.reported(full)), model.brokers.ids[full].name
    if reported == 0:
        return Refused(name, Cause.NO_LOAD_DATA, "it reported no bundle")
    return Refused(name, Cause.NO_BUNDLES, "its only bundle is its whole load") if reported == 1 else None


def _nothing(model: ClusterModel, settings: Settings, memory: TransferMemory, outcome: Outcome, why: str) -> Decision:
    return Moves(model, settings).decision(_reason(outcome, why), (), _told(memory, outcome))


def _reason(outcome: Outcome, why: str) -> str:
    return f"{outcome}: {why}"


def _told(memory: TransferMemory, outcome: Outcome) -> TransferMemory:
    return msgspec.structs.replace(memory, outcome=outcome)


def _after(moves: Moves, model: ClusterModel, memory: TransferMemory) -> TransferMemory:
    """Reset the hits; brokers that gave or got something lose their average, as Pulsar resets their load data."""
    made = moves.made
    touched = {str(broker) for each in made for broker in (each.source, each.destination)}
    return msgspec.structs.replace(
        memory,
        hits=0,
        averages={name: average for name, average in memory.averages.items() if name not in touched},
        brokers_ms={**memory.brokers_ms, **{str(each.source): model.at_ms for each in made}},
        bundles_ms={**memory.bundles_ms, **{str(m.bundle): model.at_ms for m in made if m.destination is None}},
    )


def _resting(model: ClusterModel, memory: TransferMemory) -> frozenset[int]:
    moved = np.flatnonzero(model.bundles.moved_s < model.constraints.rest_s)
    unloaded = [row for row, bundle in enumerate(model.bundles.ids) if str(bundle) in memory.bundles_ms]
    return frozenset(map(int, moved)).union(unloaded if memory.bundles_ms else ())


def _hit_count(hits: int, measured: Outcome, settings: Settings, tuning: Tuning) -> str:
    figures = f"standard deviation of usage {measured.load_std:.3f}, target {tuning.target_std:g}"
    if hits == 0:
        return f"{figures}: no broker is over- or underloaded"
    return f"{figures}; asked for in {hits} rounds in a row, it takes {settings.shedder_hit_count + 1}"


def _longest_s(settings: Settings) -> float:
    """How long a broker's unload matters: until no usable report can be older."""
    return settings.shedder_delay_s + settings.load_ttl_s
