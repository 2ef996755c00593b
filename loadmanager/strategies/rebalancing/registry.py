"""Balancing strategies by name; see `loadmanager.settings.choices`."""

from __future__ import annotations

from loadmanager.settings.choices import BALANCING_NAMES, Plugins
from loadmanager.strategies.rebalancing.evacuating import Evacuating
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.pulsar.avg import Avg
from loadmanager.strategies.rebalancing.pulsar.shedding import Overload, Threshold, Uniform
from loadmanager.strategies.rebalancing.pulsar.transfer import Transfer
from loadmanager.strategies.rebalancing.strategy import Strategy

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
