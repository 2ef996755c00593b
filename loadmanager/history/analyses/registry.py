"""All analyses by name."""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.history.analyses import (
    benefit,
    bundle_count,
    capacity,
    forecast,
    forecast_error,
    groups,
    hot_bundles,
    imbalance,
    seasonality,
    skew,
)
from loadmanager.history.analyses.analysis import Analysis
from loadmanager.history.analyses.texts import analysis

ANALYSES: Mapping[str, Analysis] = {
    each.name: each
    for each in (
        imbalance.ANALYSIS,
        hot_bundles.ANALYSIS,
        skew.ANALYSIS,
        seasonality.ANALYSIS,
        forecast.ANALYSIS,
        forecast_error.ANALYSIS,
        analysis("transfers"),
        analysis("gaps"),
        benefit.ANALYSIS,
        analysis("churn"),
        analysis("ownership"),
        analysis("time_in_state"),
        analysis("outages"),
        analysis("failovers"),
        analysis("leaders"),
        capacity.ANALYSIS,
        bundle_count.ANALYSIS,
        groups.ANALYSIS,
    )
}
