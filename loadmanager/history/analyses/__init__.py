"""Analyses of the load history: one SQL text each, for Spark and DuckDB, a few of them with a function behind it.

`ANALYSES` has them by name, in the order in which people read them; docs/analyses.md gives the question, inputs,
columns and formulas of each.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.history.analyses.analysis import DEFAULTS, Analysis, Options, Tables, analysis
from loadmanager.history.analyses.capacity import CAPACITY
from loadmanager.history.analyses.forecast import FORECAST, FORECAST_ERROR
from loadmanager.history.analyses.series import SEASONALITY

__all__ = ["ANALYSES", "DEFAULTS", "Analysis", "Options", "Tables"]


ANALYSES: Mapping[str, Analysis] = {
    each.name: each
    for each in (
        analysis("imbalance"),
        analysis("hot_bundles"),
        analysis("skew"),
        SEASONALITY,
        FORECAST,
        FORECAST_ERROR,
        analysis("transfers"),
        analysis("gaps"),
        analysis("benefit"),
        analysis("churn"),
        analysis("ownership"),
        analysis("time_in_state"),
        analysis("outages"),
        analysis("failovers"),
        analysis("leaders"),
        CAPACITY,
        analysis("bundle_count"),
        analysis("groups"),
    )
}
