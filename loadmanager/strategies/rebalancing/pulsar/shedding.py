"""The common part of Pulsar's older shedders: a broker gives its largest bundles first, without a destination.

A bundle is unloaded, and the next lookup places it by the setting `placement`, as in Pulsar's modular load manager. A
bundle that no other broker may take stays.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import ClusterModel, Floats
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Refused, Stage
from loadmanager.strategies.rebalancing.pulsar.averages import Average, Averages, Times, younger_than
from loadmanager.strategies.rebalancing.pulsar.moves import RESTING, Moves
from loadmanager.strategies.rebalancing.pulsar.outcome import Cause, Label, Outcome

MARGIN = 0.05
"""How far below its limit an overloaded broker should get."""


class SheddingMemory(msgspec.Struct, frozen=True):
    """The memory between rounds; `bundles_ms`: when bundles were unloaded, while they rest."""

    bundles_ms: Times = msgspec.field(default_factory=dict[str, int])
    averages: Averages = msgspec.field(default_factory=dict[str, Average])
    outcome: Outcome = Outcome()


class Shedding:
    """One round. Brokers that are draining, paused or without fresh load data take no part."""

    def __init__(self, model: ClusterModel, settings: Settings, memory: object) -> None:
        self.model = model
        self.settings = settings
        before = memory if isinstance(memory, SheddingMemory) else SheddingMemory()
        recent = younger_than(before.bundles_ms, settings.bundle_rest_s, model.at_ms)
        self.memory = msgspec.structs.replace(before, bundles_ms=recent)
        self.moves = Moves(model, settings)
        self.rows = [int(row) for row in np.flatnonzero(self.moves.participants)]
        self.refused: list[Refused] = []

    def name(self, row: int) -> str:
        return self.model.brokers.ids[row].name

    def may_give(self, row: int) -> bool:
        """Whether the broker has more than one bundle; if not, note why it gives none."""
        held = int(self.model.brokers.bundles[row])
        if held <= 1:
            detail = "its only bundle is its whole load" if held else "overloaded without any bundle"
            self.refused.append(Refused(self.name(row), Cause.NO_BUNDLES, detail))
        return held > 1

    def largest(self, row: int, traffic: Floats) -> list[int]:
        """The broker's bundles that are not resting, by traffic, the largest first."""
        bundles, at_ms = self.model.bundles, self.memory.bundles_ms
        mine = [int(each) for each in np.flatnonzero(bundles.owner == row)]
        rest_s = self.model.constraints.rest_s
        free = [b for b in mine if bundles.moved_s[b] >= rest_s[b] and str(bundles.ids[b]) not in at_ms]
        self.moves.counts[RESTING] += len(mine) - len(free)
        return sorted(free, key=lambda bundle: -traffic[bundle])

    def unload(self, bundle: int, why: str) -> bool:
        """Decide to unload the bundle unless a hard rule refuses it; whether it did."""
        rule = self.moves.refusal(bundle, None)
        if rule is not None:
            self.moves.counts[rule] += 1
            return False
        self.moves.make(bundle, None, f"{Cause.OVERLOADED}: {why}", Stage.OVERLOAD)
        return True

    def unload_bytes(self, row: int, wanted_bytes_s: float, why: str) -> None:
        """Unload the largest bundles of a broker until they add up to `wanted_bytes_s`, but at least one."""
        if not self.may_give(row):
            return
        bytes_s, going, chosen = self.model.bundles.throughput_bytes_s, 0.0, False
        for bundle in self.largest(row, bytes_s):
            if chosen and going >= wanted_bytes_s:
                break
            if self.unload(bundle, f"{why}; {going / 1e6:.3g} of {wanted_bytes_s / 1e6:.3g} MB/s so far"):
                chosen, going = True, going + float(bytes_s[bundle])

    def decision(self, skipped: Cause, why: str, averages: Averages | None = None) -> Decision:
        """The decision; `skipped` and `why` apply if nothing moves."""
        made = self.moves.made
        outcome = Outcome(cause=skipped)
        if made:
            outcome, why = Outcome(Label.SUCCESS, Cause.OVERLOADED), f"{len(made)} bundles are unloaded"
        memory = msgspec.structs.replace(
            self.memory,
            bundles_ms={**self.memory.bundles_ms, **{str(each.bundle): self.model.at_ms for each in made}},
            averages=self.memory.averages if averages is None else averages,
            outcome=outcome,
        )
        self.moves.counts += type(self.moves.counts)()  # drops rules that refused nothing
        return self.moves.decision(f"{outcome}: {why}", tuple(self.refused), memory)
