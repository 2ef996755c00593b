"""All analyses by name."""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.history.analyses import (
    benefit,
    bundle_count,
    capacity,
    churn,
    failovers,
    forecast,
    forecast_error,
    gaps,
    groups,
    hot_bundles,
    imbalance,
    leaders,
    outages,
    ownership,
    seasonality,
    skew,
    time_in_state,
    transfers,
)
from loadmanager.history.analyses.analysis import Analysis

ANALYSES: Mapping[str, Analysis] = {
    each.name: each
    for each in (
        imbalance.ANALYSIS,
        hot_bundles.ANALYSIS,
        skew.ANALYSIS,
        seasonality.ANALYSIS,
        forecast.ANALYSIS,
        forecast_error.ANALYSIS,
        transfers.ANALYSIS,
        gaps.ANALYSIS,
        benefit.ANALYSIS,
        churn.ANALYSIS,
        ownership.ANALYSIS,
        time_in_state.ANALYSIS,
        outages.ANALYSIS,
        failovers.ANALYSIS,
        leaders.ANALYSIS,
        capacity.ANALYSIS,
        bundle_count.ANALYSIS,
        groups.ANALYSIS,
    )
}
