"""Automatic splits and merges, and the quarantine of bundles that kill brokers."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import PULSAR, live

MIB = 2.0**20


class Reshaping(BaseSettings):
    """Automatic splits and merges."""

    split: bool = live(True, "hot bundles are split", PULSAR, pulsar="loadBalancerAutoBundleSplitEnabled")
    split_interval_s: float = live(
        60.0, "between two looks at the bundles", PULSAR, pulsar={"loadBalancerSplitIntervalMinutes": 60.0}, ge=0.01
    )
    split_hits: int = live(
        3,
        "looks in a row to pass before a split",
        PULSAR,
        pulsar="loadBalancerNamespaceBundleSplitConditionHitCountThreshold",
        ge=0,
    )
    split_max_keys: int = live(
        1000,
        "topics or keys of a bundle; 0 = no limit",
        PULSAR,
        pulsar="loadBalancerNamespaceBundleMaxTopics",
        ge=0,
    )
    split_max_sessions: int = live(
        1000, "sessions of a bundle; 0 = no limit", PULSAR, pulsar="loadBalancerNamespaceBundleMaxSessions", ge=0
    )
    split_max_rate_msg_s: float = live(
        30_000.0,
        "messages in and out of a bundle; 0 = no limit",
        PULSAR,
        pulsar="loadBalancerNamespaceBundleMaxMsgRate",
        ge=0,
    )
    split_max_bandwidth_bytes_s: float = live(
        100 * MIB,
        "bytes in and out; 0 = no limit",
        PULSAR,
        pulsar={"loadBalancerNamespaceBundleMaxBandwidthMbytes": MIB},
        ge=0,
    )
    split_margin_percent: float = live(
        10.0,
        "flow_or_qps_equally_divide: excess before it cuts",
        PULSAR,
        pulsar="flowOrQpsDifferenceThresholdPercentage",
        ge=0,
    )
    split_algorithm: str = live(
        "range_equally_divide",
        "how automatic splits find the boundaries",
        PULSAR,
        pulsar="defaultNamespaceBundleSplitAlgorithm",
    )
    split_bundles_per_round: int = live(
        10,
        "splits that a broker begins in one round at most",
        PULSAR,
        pulsar="loadBalancerMaxNumberOfBundlesToSplitPerCycle",
        ge=1,
    )
    split_children: bool = live(
        True,
        "children of a split are spread over brokers",
        PULSAR,
        pulsar="loadBalancerAutoUnloadSplitBundlesEnabled",
    )
    namespace_max_bundles: int = live(
        128, "a namespace is not split beyond", PULSAR, pulsar="loadBalancerNamespaceMaximumBundles", ge=1
    )
    namespace_default_bundles: int = live(
        4, "bundles of a namespace that names none", PULSAR, pulsar="defaultNumberOfNamespaceBundles", ge=1, le=1024
    )
    merge: bool = live(False, "cold neighbours of one owner are merged", "off: who made many bundles meant it so")
    merge_below_percent: float = live(
        10.0,
        "of the split limits: both together are cold",
        "far from the limits: they are not split again",
        ge=0,
        le=50,
    )
    merge_rest_s: float = live(
        3600.0, "a bundle must have been as it is for so long", "a pause of minutes is no reason", ge=0
    )
    namespace_min_bundles: int = live(
        4, "a namespace is not merged below", "as it began: namespace_default_bundles", ge=1
    )
    quarantine_deaths: int = live(
        3,
        "brokers that must have crashed in a row before a bundle is suspected, at least 3; 0 = never",
        "two may be chance",
        ge=0,
    )
    quarantine_window_s: float = live(
        60.0,
        "a crash within this time after a bundle was acquired may be its fault",
        "later ones have other causes",
        gt=0,
    )
    quarantine_retry_s: float = live(
        60.0,
        "a locked bundle is tried again, then after twice as long each time",
        "a wrong verdict costs minutes",
        gt=0,
    )
