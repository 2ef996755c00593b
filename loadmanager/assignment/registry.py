"""Placement strategies by name; see `loadmanager.plugins`."""

from __future__ import annotations

from loadmanager.assignment.by_rank import Rendezvous
from loadmanager.assignment.least_loaded import LeastLoaded
from loadmanager.assignment.least_resource_usage import LeastResourceUsage
from loadmanager.assignment.placement import Placement
from loadmanager.assignment.power_of_two import PowerOfTwo
from loadmanager.plugins import PLACEMENT_NAMES, Plugins

PLACEMENTS: Plugins[Placement] = Plugins(
    PLACEMENT_NAMES,
    {each.name: each for each in (LeastLoaded, LeastResourceUsage, PowerOfTwo, Rendezvous)},
)
