"""Placement strategies by name; see `loadmanager.settings.plugins`."""

from __future__ import annotations

from loadmanager.settings.plugins import PLACEMENT_NAMES, Plugins
from loadmanager.strategies.placement.by_rank import Rendezvous
from loadmanager.strategies.placement.least_loaded import LeastLoaded
from loadmanager.strategies.placement.least_resource_usage import LeastResourceUsage
from loadmanager.strategies.placement.placement import Placement
from loadmanager.strategies.placement.power_of_two import PowerOfTwo

PLACEMENTS: Plugins[Placement] = Plugins(
    PLACEMENT_NAMES,
    {each.name: each for each in (LeastLoaded, LeastResourceUsage, PowerOfTwo, Rendezvous)},
)
