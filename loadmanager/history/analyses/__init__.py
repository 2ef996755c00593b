"""Analyses of the load history: one file each, a function from DataFrames to a DataFrame.

`ANALYSES` has them by name; docs/analyses.md gives the question, inputs, columns and formulas of each.
"""

from __future__ import annotations

from loadmanager.history.analyses.analysis import DEFAULTS, Analysis, Options, Tables
from loadmanager.history.analyses.registry import ANALYSES

__all__ = ["ANALYSES", "DEFAULTS", "Analysis", "Options", "Tables"]
