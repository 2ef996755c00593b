"""How load is measured, and when it is reported."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import PULSAR, live


class Load(BaseSettings):
    """Load reports."""

    load_sample_interval_s: float = live(
        1.0,
        "between two samples of the process and its bundles",
        "a sample is cheap (Pulsar: a minute)",
        pulsar={"loadBalancerHostUsageCheckIntervalMinutes": 60.0},
        ge=0.01,
    )
    load_report_min_interval_s: float = live(
        5.0, "report tick", PULSAR, pulsar={"loadBalancerReportUpdateMinIntervalMillis": 0.001}, ge=0.01
    )
    load_report_max_interval_s: float = live(
        900.0, "report at least this often", PULSAR, pulsar={"loadBalancerReportUpdateMaxIntervalMinutes": 60.0}, gt=0
    )
    load_report_threshold_percent: float = live(
        10.0, "change that triggers a report", PULSAR, pulsar="loadBalancerReportUpdateThresholdPercentage", ge=0
    )
    load_ttl_s: float = live(
        1800.0,
        "older load data takes no part and is tombstoned",
        "twice load_report_max_interval_s",
        pulsar="loadBalancerBrokerLoadDataTTLInSeconds",
        gt=0,
    )
    load_top_bundles: int = live(
        25,
        "bundles in a TopBundlesLoadData report",
        "with Pulsar's 10 a round after a restart finds all of them resting",
        pulsar="loadBalancerMaxNumberOfBundlesInBundleLoadReport",
        ge=1,
    )
    load_window_s: float = live(30.0, "loads are means over this time", "peaks of seconds are no reason to move", gt=0)
