"""All analyses by name."""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.history.analyses import capacity, forecast, forecast_error, seasonality
from loadmanager.history.analyses.analysis import Analysis
from loadmanager.history.analyses.texts import analysis

ANALYSES: Mapping[str, Analysis] = {
    each.name: each
    for each in (
        analysis("imbalance"),
        analysis("hot_bundles"),
        analysis("skew"),
        seasonality.ANALYSIS,
        forecast.ANALYSIS,
        forecast_error.ANALYSIS,
        analysis("transfers"),
        analysis("gaps"),
        analysis("benefit"),
        analysis("churn"),
        analysis("ownership"),
        analysis("time_in_state"),
        analysis("outages"),
        analysis("failovers"),
        analysis("leaders"),
        capacity.ANALYSIS,
        analysis("bundle_count"),
        analysis("groups"),
    )
}
