"""Placement strategies by name; see `loadmanager.plugins`."""

from __future__ import annotations

from loadmanager.assignment.least_loaded import LeastLoaded
from loadmanager.assignment.placement import Placement
from loadmanager.plugins import Plugins

PLACEMENTS: Plugins[Placement] = Plugins("placement", "loadmanager.placements", {LeastLoaded.name: LeastLoaded})
