"""Strategy `transfer`: Pulsar's TransferShedder, decision by decision; the reference for ours.

Brokers are sorted by the moving average of their fullest resource. After the standard deviation has missed its target
for some rounds in a row, the fullest gives to the emptiest until the target is met. These weaknesses of Pulsar are
kept: bundles are chosen by bytes only and from the smallest up, so that many clients reconnect for little load; one
broker that has not reported, or that has just shed, stops the round for the whole cluster; destinations get no time to
settle; a bundle that comes back in a swap may have been moved just now.

These are not kept: traffic that comes back in a swap counts only while a setting for log messages is on, so that the
expected result is wrong; brokers with outdated data can be chosen although they are left out of the mean (here old data
never moves anything); if no broker has any load, everything moves, since 0/0 is above nothing.

Policies, pauses and drains hold as for every strategy; they cause no moves here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Refused
from loadmanager.strategies.rebalancing.pulsar.averages import Average, Averages, Times, columns, folded, younger_than
from loadmanager.strategies.rebalancing.pulsar.moves import Moves
from loadmanager.strategies.rebalancing.pulsar.outcome import Cause, Label, Outcome
from loadmanager.strategies.rebalancing.pulsar.pairing import Pair, Walk
from loadmanager.strategies.rebalancing.pulsar.ranking import Ranking, usable

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

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """See `Strategy`; `memory` is a TransferMemory."""
        before = memory if isinstance(memory, TransferMemory) else TransferMemory()
        now = msgspec.structs.replace(
            before,
            averages=folded(before.averages, model, settings),
            brokers_ms=younger_than(before.brokers_ms, _longest_s(settings), model.at_ms),
            bundles_ms=younger_than(before.bundles_ms, settings.bundle_rest_s, model.at_ms),
        )
        rows = usable(model, now.brokers_ms, settings)
        if isinstance(rows, Cause):
            return _nothing(model, settings, now, Outcome(cause=rows), _SKIPPED[rows])
        ranking = Ranking(rows, *columns(now.averages, model.brokers.ids), settings)
        measured = Outcome(Label.SKIP, Cause.HIT_COUNT, ranking.mean, ranking.deviation, ranking.deviation)
        hits = now.hits + 1 if ranking.condition() else 0
        now = msgspec.structs.replace(now, hits=hits)
        if hits <= settings.shedder_hit_count:
            return _nothing(model, settings, now, measured, _hit_count(hits, measured, settings))
        return _shed(model, settings, now, ranking, measured)


def _shed(
    model: ClusterModel, settings: Settings, memory: TransferMemory, ranking: Ranking, measured: Outcome
) -> Decision:
    moves = Moves(model, settings)
    walk = Walk(model, settings, moves, _resting(model, memory))
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
    text += f"{outcome.std_after:.3f}, the target is {settings.shedder_target_std:g}"
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


def _hit_count(hits: int, measured: Outcome, settings: Settings) -> str:
    figures = f"standard deviation of usage {measured.load_std:.3f}, target {settings.shedder_target_std:g}"
    if hits == 0:
        return f"{figures}: nobody is over- or underloaded"
    return f"{figures}; asked for in {hits} rounds in a row, it takes {settings.shedder_hit_count + 1}"


def _longest_s(settings: Settings) -> float:
    """How long a broker's unload matters: until no usable report can be older."""
    return settings.shedder_delay_s + settings.load_ttl_s
