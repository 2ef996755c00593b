"""Strategy `avg`: Pulsar's AvgShedder (PIP-364). Pairs the fullest broker with the emptiest, and so on inwards.

A pair acts after some rounds in a row far apart, or after more rounds apart. A bundle's destination is decided when it
is unloaded, so that it does not return to its source; Pulsar remembers it for the placement, here the move has it too.
Bundles that exceed the load to be moved stay, so nothing overshoots. Pulsar sorts brokers by whole percents, in no
order within one; here they are sorted by exact usage.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Refused, Stage
from loadmanager.strategies.rebalancing.pulsar.shedder import (
    AS_IN_PULSAR,
    RESTING,
    Cause,
    Label,
    Moves,
    Outcome,
    Tuning,
)

Hits = Mapping[str, int]
"""In how many rounds in a row a broker was in a pair that is apart, by incarnation (`host:port#7`)."""


class AvgMemory(msgspec.Struct, frozen=True):
    """The memory between rounds."""

    low: Hits = msgspec.field(default_factory=dict[str, int])
    high: Hits = msgspec.field(default_factory=dict[str, int])
    outcome: Outcome = Outcome()


class Avg:
    """Pulsar's AvgShedder."""

    name = "avg"

    def __init__(self, tuning: Tuning = AS_IN_PULSAR) -> None:
        self._tuning = tuning

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """See `Strategy`; `memory` is an AvgMemory."""
        tuning = self._tuning
        before = memory if isinstance(memory, AvgMemory) else AvgMemory()
        moves = Moves(model, settings)
        score = moves.usage * 100
        rows = sorted(map(int, np.flatnonzero(moves.participants)), key=lambda row: score[row])
        names, low, high = [str(broker) for broker in model.brokers.ids], dict[str, int](), dict[str, int]()
        refused: list[Refused] = []
        apart = 0
        for emptier, fuller in zip(rows[: len(rows) // 2], reversed(rows), strict=False):
            if score[fuller] - score[emptier] < tuning.low_percent:
                continue  # neither keeps its hits
            apart += 1
            far = score[fuller] - score[emptier] >= tuning.high_percent
            pair = names[emptier], names[fuller]
            highs = {name: before.high.get(name, 0) + 1 if far else 0 for name in pair}
            lows = {name: before.low.get(name, 0) + 1 for name in pair}
            if max(highs.values()) < tuning.high_hits and max(lows.values()) < tuning.low_hits:
                high |= highs
                low |= lows
            elif (why := _even_out(model, tuning, moves, fuller, emptier)) is not None:
                refused.append(Refused(model.brokers.ids[fuller].name, Cause.NO_BUNDLES, why))
        return _decision(moves, AvgMemory(low, high), tuple(refused), apart if rows else None)


def _decision(moves: Moves, memory: AvgMemory, refused: tuple[Refused, ...], apart: int | None) -> Decision:
    """The decision; `apart` is the number of pairs apart, None if no broker can be paired."""
    if moves.made:
        outcome, why = Outcome(Label.SUCCESS, Cause.OVERLOADED), f"{len(moves.made)} moves between {apart} pairs"
    elif apart is None:
        outcome, why = Outcome(cause=Cause.NO_BROKERS), "no broker takes part"
    elif apart == 0:
        outcome, why = Outcome(cause=Cause.BALANCED), "no pair of brokers is apart"
    elif refused:
        outcome, why = Outcome(cause=Cause.NO_BUNDLES), f"{refused[0].subject}: {refused[0].detail}"
    else:
        hits = max((*memory.low.values(), *memory.high.values()), default=0)
        outcome, why = Outcome(cause=Cause.HIT_COUNT), f"{apart} pairs are apart, for {hits} rounds at most"
    return moves.decision(f"{outcome}: {why}", refused, msgspec.structs.replace(memory, outcome=outcome))


def _even_out(model: ClusterModel, tuning: Tuning, moves: Moves, fuller: int, emptier: int) -> str | None:
    """Move a part of the pair's difference; why nothing moves, None if something does."""
    brokers, bundles = model.brokers, model.bundles
    part = tuning.unload_fraction
    messages = float(brokers.rate_msg_s[fuller] - brokers.rate_msg_s[emptier]) * part
    bytes_s = float(brokers.throughput_bytes_s[fuller] - brokers.throughput_bytes_s[emptier]) * part
    if messages > tuning.unload_min_rate_msg_s:
        remaining, traffic, unit = messages, bundles.rate_msg_s, "messages/s"
    elif bytes_s > tuning.unload_min_throughput_bytes_s:
        remaining, traffic, unit = bytes_s, bundles.throughput_bytes_s, "bytes/s"
    else:
        return f"{messages:.0f} messages/s and {bytes_s:.0f} bytes/s would go: less than is worth it"
    decided = len(moves.made)
    mine = sorted(map(int, np.flatnonzero(bundles.owner == fuller)), key=lambda bundle: -traffic[bundle])
    for bundle in mine:
        rule = _stays(model, moves, bundle, emptier, 0 < traffic[bundle] <= remaining)
        if rule is not None:
            moves.counts[rule] += 1
            continue
        why = f"{Cause.OVERLOADED}: {traffic[bundle]:.0f} of {remaining:.0f} {unit} that are to go"
        moves.make(bundle, emptier, why, Stage.OVERLOAD)
        remaining -= float(traffic[bundle])
    return None if len(moves.made) > decided else f"none of its bundles fits into {remaining:.0f} {unit}"


def _stays(model: ClusterModel, moves: Moves, bundle: int, destination: int, fits: bool) -> str | None:
    if model.bundles.moved_s[bundle] < model.constraints.rest_s[bundle]:
        return RESTING
    return moves.refusal(bundle, destination) if fits else "no traffic, or more than is to go"
