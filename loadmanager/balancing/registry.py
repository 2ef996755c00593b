"""Balancing strategies by name; see `loadmanager.plugins`."""

from __future__ import annotations

from loadmanager.balancing.evacuating import Evacuating
from loadmanager.balancing.plan import Plan
from loadmanager.balancing.pulsar.avg import Avg
from loadmanager.balancing.pulsar.overload import Overload
from loadmanager.balancing.pulsar.threshold import Threshold
from loadmanager.balancing.pulsar.transfer import Transfer
from loadmanager.balancing.pulsar.uniform import Uniform
from loadmanager.balancing.strategy import Strategy
from loadmanager.plugins import BALANCING_NAMES, Plugins

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
