"""The settings of Pulsar's strategies; `plan` reads none of them."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import PULSAR, live

MIB = 2.0**20


class Shedding(BaseSettings):
    """Pulsar's shedders: `transfer`, `threshold`, `uniform`, `avg`."""

    shedder_target_std: float = live(
        0.25,
        "transfer: standard deviation of usage that is fine",
        PULSAR,
        pulsar="loadBalancerBrokerLoadTargetStd",
        gt=0,
        le=1,
    )
    shedder_hit_count: int = live(
        3,
        "transfer: rounds in a row to pass before a decision",
        PULSAR,
        pulsar="loadBalancerSheddingConditionHitCountThreshold",
        ge=0,
    )
    shedder_transfer: bool = live(
        True, "transfer: choose the destination too", PULSAR, pulsar="loadBalancerTransferEnabled"
    )
    shedder_max_brokers: int = live(
        3,
        "transfer: brokers that shed in one round at most",
        PULSAR,
        pulsar="loadBalancerMaxNumberOfBrokerSheddingPerCycle",
        ge=1,
    )
    shedder_delay_s: float = live(
        180.0,
        "transfer: a broker that shed must report after that first",
        PULSAR,
        pulsar={"loadBalanceSheddingDelayInSeconds": 1.0, "loadBalancerSheddingDelayInSeconds": 1.0},
        ge=0,
    )
    shedder_history: float = live(
        0.9,
        "transfer, threshold: weight of the past in usage",
        PULSAR,
        pulsar="loadBalancerHistoryResourcePercentage",
        ge=0,
        lt=1,
    )
    shedder_policy_bundles: bool = live(
        False,
        "transfer: bundles under isolation or anti-affinity too",
        PULSAR,
        pulsar="loadBalancerSheddingBundlesWithPoliciesEnabled",
    )
    shedder_threshold_percent: float = live(
        10.0,
        "threshold: points above the mean",
        PULSAR,
        pulsar="loadBalancerBrokerThresholdShedderPercentage",
        gt=0,
        le=100,
    )
    shedder_lower_boundary: bool = live(
        False, "threshold: also fill brokers far below the mean", PULSAR, pulsar="lowerBoundarySheddingEnabled"
    )
    shedder_min_throughput_bytes_s: float = live(
        10 * MIB,
        "threshold: less is not worth a move",
        PULSAR,
        pulsar={"loadBalancerBundleUnloadMinThroughputThreshold": MIB},
        ge=0,
    )
    uniform_rate_percent: float = live(
        50.0,
        "uniform: difference of message rates that triggers",
        PULSAR,
        pulsar="loadBalancerMsgRateDifferenceShedderThreshold",
        ge=0,
    )
    uniform_throughput_factor: float = live(
        4.0,
        "uniform: ratio of throughputs that triggers",
        PULSAR,
        pulsar="loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold",
        ge=1,
    )
    unload_min_rate_msg_s: float = live(
        1000.0, "uniform, avg: less is not worth a move", PULSAR, pulsar="minUnloadMessage", ge=0
    )
    unload_min_throughput_bytes_s: float = live(
        MIB, "uniform, avg: less is not worth a move", PULSAR, pulsar="minUnloadMessageThroughput", ge=0
    )
    unload_max_fraction: float = live(
        0.2, "uniform, avg: part of the difference that moves", PULSAR, pulsar="maxUnloadPercentage", gt=0, le=1
    )
    unload_max_bundles: int = live(
        -1,
        "uniform: bundles of one round at most; -1 = no limit",
        PULSAR,
        pulsar="maxUnloadBundleNumPerShedding",
        ge=-1,
    )
    avg_low_percent: float = live(
        15.0, "avg: difference that counts a low hit", PULSAR, pulsar="loadBalancerAvgShedderLowThreshold", ge=0, le=100
    )
    avg_high_percent: float = live(
        40.0,
        "avg: difference that counts a high hit",
        PULSAR,
        pulsar="loadBalancerAvgShedderHighThreshold",
        ge=0,
        le=100,
    )
    avg_low_hits: int = live(
        8, "avg: low hits that trigger", PULSAR, pulsar="loadBalancerAvgShedderHitCountLowThreshold", ge=1
    )
    avg_high_hits: int = live(
        2, "avg: high hits that trigger", PULSAR, pulsar="loadBalancerAvgShedderHitCountHighThreshold", ge=1
    )
