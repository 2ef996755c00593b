"""Strategies and placements by name (see `loadmanager.settings.choices`): the only module that imports all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.settings.choices import BALANCING_NAMES, PLACEMENT_NAMES, Plugins
from loadmanager.strategies.placement.baselines import LeastResourceUsage, PowerOfTwo
from loadmanager.strategies.placement.least_loaded import LeastLoaded
from loadmanager.strategies.placement.placement import Batch, Candidate, Given, NoPlace, Placed, Placement, begin
from loadmanager.strategies.placement.rendezvous import Rendezvous
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.planner import evacuation
from loadmanager.strategies.rebalancing.pulsar.avg import Avg
from loadmanager.strategies.rebalancing.pulsar.shedding import Overload, Threshold, Uniform
from loadmanager.strategies.rebalancing.pulsar.transfer import Transfer
from loadmanager.strategies.rebalancing.strategy import Strategy
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

STRATEGIES: Plugins[Strategy] = Plugins(
    BALANCING_NAMES,
    {
        "plan": Plan,
        Transfer.name: lambda: Evacuating(Transfer()),
        Threshold.name: lambda: Evacuating(Threshold()),
        Uniform.name: lambda: Evacuating(Uniform()),
        Overload.name: lambda: Evacuating(Overload()),
        Avg.name: lambda: Evacuating(Avg()),
    },
)


class Evacuating:
    """Adds drains and policies to `strategy`, under its name: first the moves that must be, then the strategy's.

    Pulsar's shedders only ask whether a bundle may go somewhere, never whether it must leave its broker (there a
    changed policy unloads whole namespaces). A round with bundles to evacuate does nothing else, so that the strategy
    decides in a cluster at rest, exactly as it would by itself.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    @property
    def name(self) -> str:
        """The wrapped strategy's name."""
        return self._strategy.name

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """The moves that must be; if there are none, the strategy's decision."""
        must = evacuation(model, settings)
        if must.moves:
            return msgspec.structs.replace(must, memory=memory)
        return self._strategy.decide(model, settings, memory)


PLACEMENTS: Plugins[Placement] = Plugins(
    PLACEMENT_NAMES,
    {each.name: each for each in (LeastLoaded, LeastResourceUsage, PowerOfTwo, Rendezvous)},
)


class SwitchedPlacement:
    """Delegates to the placement that the setting `placement` names now."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._placement = PLACEMENTS.make(settings().placement)

    @property
    def name(self) -> str:
        """The name of the present strategy."""
        return self._now().name

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """As that strategy."""
        return self._now().choose(bundle, candidates, given)

    def batch(self, candidates: Sequence[Candidate], given: Mapping[BrokerId, int]) -> Batch:
        """Begin a batch with that strategy."""
        return begin(self._now(), candidates, Given(given))

    def _now(self) -> Placement:
        wanted = self._settings().placement
        if wanted != self._placement.name:
            self._placement = PLACEMENTS.make(wanted)
        return self._placement
