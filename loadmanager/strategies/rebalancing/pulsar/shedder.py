"""What Pulsar's shedders share: moving averages, the moves of a round, and its outcome in Pulsar's words. Values only.

A broker's first sample is its average; then an average keeps the fraction `Tuning.history` of itself and takes the
rest from the new sample. Each round is one sample. A restarted broker begins without an average.

Hard rules hold for Pulsar's strategies as for any other, in place of Pulsar's broker filters. As in Pulsar, a bundle of
an anti-affinity group goes where the domain, then the broker, has the fewest namespaces of the group. Unlike there,
moves that were decided already count, so that a group does not all go to one broker in the same round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, FREE, NOWHERE, ClusterModel, Flags, Floats, spread_of
from loadmanager.model.load import weights_of
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Move, Refused, Stage
from statechannel.law.record import BrokerId

Times = Mapping[str, int]
"""When a broker or bundle was last unloaded, by name: the leader's wall clock, in milliseconds."""


MIB = 2.0**20


class Tuning(msgspec.Struct, frozen=True):
    """The parameters of Pulsar's shedders. Pulsar's defaults: who chooses such a strategy wants Pulsar as shipped.

    Tests of Pulsar's own cases and comparisons give others.
    """

    history: float = 0.9
    """`transfer`, `threshold`: the fraction that an average keeps of itself; [0, 1)."""
    target_std: float = 0.25
    """`transfer`: the standard deviation of usage to reach."""
    transfer: bool = True
    """`transfer` chooses the destination too."""
    max_brokers: int = 3
    """`transfer`: the most brokers that shed in one round."""
    policy_bundles: bool = False
    """`transfer` moves bundles under isolation or anti-affinity too."""
    threshold_percent: float = 10.0
    """`threshold`: points above the mean."""
    lower_boundary: bool = False
    """`threshold` also fills brokers far below the mean."""
    min_throughput_bytes_s: float = 10 * MIB
    """`threshold`: less is not worth a move."""
    rate_percent: float = 50.0
    """`uniform`: the difference of message rates that triggers."""
    throughput_factor: float = 4.0
    """`uniform`: the ratio of throughputs that triggers."""
    max_bundles: int = -1
    """`uniform`: the most bundles of one round; -1: no limit."""
    unload_fraction: float = 0.2
    """`uniform`, `avg`: the part of the difference that moves."""
    unload_min_rate_msg_s: float = 1000.0
    """`uniform`, `avg`: less is not worth a move."""
    unload_min_throughput_bytes_s: float = MIB
    """`uniform`, `avg`: less is not worth a move."""
    low_percent: float = 15.0
    """`avg`: the difference, in points, that counts a low hit."""
    high_percent: float = 40.0
    """`avg`: the difference, in points, that counts a high hit."""
    low_hits: int = 8
    """`avg`: the low hits that trigger."""
    high_hits: int = 2
    """`avg`: the high hits that trigger."""


AS_IN_PULSAR = Tuning()


class Average(msgspec.Struct, frozen=True):
    """The averages of one incarnation: its fullest resource as a weighted fraction, and its throughput."""

    usage: float
    throughput_bytes_s: float


Averages = Mapping[str, Average]
"""By incarnation, `host:port#7`."""


def fullest(used: Floats, capacity: Floats, settings: Settings) -> Floats:
    """(n,), the weighted fraction of each broker's fullest resource; 1.0 is a full broker."""
    return (used / capacity * np.array(weights_of(settings).row)).max(axis=1, initial=0.0)


def folded(averages: Averages, model: ClusterModel, settings: Settings, kept: float) -> Averages:
    """The averages with this round's sample, of which each keeps the fraction `kept` of itself.

    Unchanged without fresh data, dropped for other incarnations.
    """
    brokers = model.brokers
    usage = fullest(brokers.used, brokers.capacity, settings)
    result: dict[str, Average] = {}
    for row, broker in enumerate(brokers.ids):
        old = averages.get(str(broker))
        sample = Average(float(usage[row]), float(brokers.throughput_bytes_s[row]))
        if not brokers.known[row]:
            sample = old
        elif old is not None:
            sample = Average(
                kept * old.usage + (1 - kept) * sample.usage,
                kept * old.throughput_bytes_s + (1 - kept) * sample.throughput_bytes_s,
            )
        if sample is not None:
            result[str(broker)] = sample
    return result


def columns(averages: Averages, brokers: Iterable[BrokerId]) -> tuple[Floats, Floats]:
    """(n,) usages and (n,) throughputs in bytes/s; 0 without an average."""
    rows = [averages.get(str(broker), Average(0.0, 0.0)) for broker in brokers]
    return np.array([each.usage for each in rows]), np.array([each.throughput_bytes_s for each in rows])


def younger_than(times: Times, rest_s: float, at_ms: int) -> dict[str, int]:
    """The unloads less than `rest_s` ago. A clock that was set back does not lengthen a rest."""
    return {name: ms for name, ms in times.items() if abs(at_ms - ms) < rest_s * 1000}


IN_FLIGHT = "in flight"
RESTING = "recently unloaded"


class Moves:
    """A decision in the making. Brokers and bundles are given by their rows."""

    def __init__(self, model: ClusterModel, settings: Settings) -> None:
        self._model = model
        self._settings = settings
        self._used = model.brokers.used.copy()
        self._held = model.brokers.bundles.copy()
        self._presence = model.constraints.presence
        self._here = model.constraints.namespace_here
        self.made: list[Move] = []
        self.counts: Counter[str] = Counter()
        self.taken: set[int] = set()
        """Bundles with a move."""

    @property
    def usage(self) -> Floats:
        """(n,), each broker's fullest resource as a weighted fraction, with the moves made."""
        return fullest(self._used, self._model.brokers.capacity, self._settings)

    @property
    def participants(self) -> Flags:
        """(n,): whether a broker gives and takes bundles."""
        brokers = self._model.brokers
        return brokers.known & ~brokers.draining & ~brokers.paused

    def kept(self, bundle: int) -> str | None:
        """The rule that keeps the bundle in place, whatever the destination; None if it may go."""
        fixed = int(self._model.constraints.fixed[bundle])
        if fixed != FREE:
            return self._model.constraints.rules[fixed]
        owner = int(self._model.bundles.owner[bundle])
        if bool(self._model.bundles.in_flight[bundle]) or bundle in self.taken:
            return IN_FLIGHT
        return None if owner != NOWHERE and self.participants[owner] else "its broker takes no part"

    def refusal(self, bundle: int, destination: int | None) -> str | None:
        """The first hard rule against this move, None if there is none; without a destination: against all others."""
        kept = self.kept(bundle)
        if kept is not None:
            return kept
        source = int(self._model.bundles.owner[bundle])
        open_to = self._open_to(bundle)
        open_to[source] = False
        if destination is None:
            return None if open_to.any() else "no other broker may take it"
        return None if open_to[destination] else self._why_closed(bundle, destination)

    def make(self, bundle: int, destination: int | None, reason: str, stage: Stage, group: int = 0) -> None:
        """Decide a move. `reason` is the text before the numbers."""
        model = self._model
        source, load = int(model.bundles.owner[bundle]), model.bundles.load[bundle]
        before = self.usage
        self._used[source] = np.maximum(0.0, self._used[source] - load)
        self._held[source] -= 1
        if destination is not None:
            self._used[destination] += load
            self._held[destination] += 1
        self._move_presence(bundle, source, destination)
        after = self.usage
        self.taken.add(bundle)
        at = source if destination is None else destination
        part = fullest(load[np.newaxis], model.brokers.capacity[at : at + 1], self._settings)
        there = destination is not None
        self.made.append(
            Move(
                bundle=model.bundles.ids[bundle],
                source=model.brokers.ids[source],
                destination=model.brokers.ids[destination] if destination is not None else None,
                reason=f"{reason}; {self._numbers(source, destination, before, after)}",
                stage=stage,
                load=float(part[0]),
                source_before=float(before[source]),
                source_after=float(after[source]),
                destination_before=float(before[at]) if there else 0.0,
                destination_after=float(after[at]) if there else 0.0,
                group=group,
            )
        )

    def decision(self, reason: str, refused: tuple[Refused, ...], memory: object) -> Decision:
        """The decision with all moves."""
        brokers = self._model.brokers
        return Decision(
            moves=tuple(self.made),
            reason=reason,
            refused=refused,
            counts=dict(sorted(self.counts.items())),
            spread_before=spread_of(brokers.fullness(self._settings)[self.participants]),
            spread_after=spread_of(self.usage[self.participants]),
            memory=memory,
        )

    def _open_to(self, bundle: int) -> Flags:
        """(n,): whether a broker may hold the bundle; True for its own."""
        constraints, brokers = self._model.constraints, self._model.brokers
        source = int(self._model.bundles.owner[bundle])
        room = self._held < brokers.max_bundles
        room[source] = True
        may = self.participants & room & (constraints.forbidden[constraints.kind[bundle]] == ALLOWED)
        group = int(constraints.group[bundle])
        if group == FREE or self._presence is None or not may.any():
            return may
        namespaces = self._presence[group]
        if constraints.spread_over_domains:
            domains = np.array(brokers.domains)
            there = {domain: int(namespaces[domains == domain].sum()) for domain in set(domains[may].tolist())}
            fewest = min(there.values())
            may &= np.array([there.get(domain, fewest + 1) == fewest for domain in brokers.domains])
        return may & (namespaces == namespaces[may].min())

    def _why_closed(self, bundle: int, destination: int) -> str:
        constraints, brokers = self._model.constraints, self._model.brokers
        rule = int(constraints.forbidden[constraints.kind[bundle], destination])
        if rule != ALLOWED:
            return constraints.rules[rule]
        for closed, why in (
            (brokers.draining, "the destination is draining"),
            (brokers.paused, "the destination is paused"),
            (~brokers.known, "no fresh load data of the destination"),
            (self._held >= brokers.max_bundles, "the destination is full"),
        ):
            if closed[destination]:
                return why
        return "anti-affinity group"

    def _move_presence(self, bundle: int, source: int, destination: int | None) -> None:
        """Count a move of a bundle in a group; its namespace may have other bundles at both ends."""
        group = int(self._model.constraints.group[bundle])
        if group == FREE or self._presence is None or self._here is None:
            return
        namespace = int(self._model.bundles.namespace[bundle])
        self._here, self._presence = here, presence = self._here.copy(), self._presence.copy()
        here[namespace, source] -= 1
        presence[group, source] -= here[namespace, source] == 0
        if destination is not None:
            presence[group, destination] += here[namespace, destination] == 0
            here[namespace, destination] += 1

    def _numbers(self, source: int, destination: int | None, before: Floats, after: Floats) -> str:
        rows = [source] if destination is None else [source, destination]
        names = self._model.brokers.ids
        return ", ".join(f"{names[row].name} {before[row]:.1%} to {after[row]:.1%}" for row in rows)


class Label(StrEnum):
    """How a round ended."""

    SUCCESS = "Success"
    SKIP = "Skip"
    FAILURE = "Failure"


class Cause(StrEnum):
    """The cause of a round's result; if it moves something, the cause of its first move."""

    OVERLOADED = "Overloaded"
    UNDERLOADED = "Underloaded"
    HIT_COUNT = "HitCount"
    NO_BUNDLES = "NoBundles"
    NO_BROKERS = "NoBrokers"
    NO_LOAD_DATA = "NoLoadData"
    OUTDATED_DATA = "OutDatedData"
    COOL_DOWN = "CoolDown"
    BALANCED = "Balanced"


class Outcome(msgspec.Struct, frozen=True):
    """One round as Pulsar's counters would count it. Loads are fractions; 0 if nothing could be measured."""

    label: Label = Label.SKIP
    cause: Cause = Cause.NO_BROKERS
    load_avg: float = 0.0
    load_std: float = 0.0
    std_after: float = 0.0
    """The expected deviation after the moves."""

    def __str__(self) -> str:
        return f"{self.label}/{self.cause}"
