"""Balancing strategies by name; see `loadmanager.plugins`."""

from __future__ import annotations

from loadmanager.balancing.difference import Difference
from loadmanager.balancing.strategy import Strategy
from loadmanager.plugins import Plugins

STRATEGIES: Plugins[Strategy] = Plugins("balancing_strategy", "loadmanager.strategies", {Difference.name: Difference})
