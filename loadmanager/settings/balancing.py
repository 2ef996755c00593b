"""Automatic moves: which strategy, how eagerly, how many at once; and placement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import PULSAR, live

Tolerance = Literal["tight", "default", "loose"]
TOLERANCES: Mapping[str, float] = {"tight": 0.05, "default": 0.1, "loose": 0.25}
"""By how much a broker may be fuller than the mean of those that could take its bundles."""

_EXTENSIONS = "org.apache.pulsar.broker.loadbalance.extensions"
_MODULAR = "org.apache.pulsar.broker.loadbalance.impl"
STRATEGY_CLASSES: Mapping[str, str] = {
    f"{_EXTENSIONS}.scheduler.TransferShedder": "transfer",
    f"{_MODULAR}.ThresholdShedder": "threshold",
    f"{_MODULAR}.UniformLoadShedder": "uniform",
    f"{_MODULAR}.OverloadShedder": "overload",
    f"{_MODULAR}.AvgShedder": "avg",
}
PLACEMENT_CLASSES: Mapping[str, str] = {
    f"{_EXTENSIONS}.strategy.LeastResourceUsageWithWeight": "least-resource-usage",
    f"{_MODULAR}.LeastResourceUsageWithWeight": "least-resource-usage",
}


class Balancing(BaseSettings):
    """Rebalancing and placement."""

    balancing: bool = live(
        True,
        "master switch: automatic moves, splits and merges",
        "what nobody watches should stay even by itself",
        pulsar={"loadBalancerEnabled": 1.0, "loadBalancerSheddingEnabled": 1.0},
    )
    balancing_strategy: str = live(
        "plan",
        "name of the strategy that decides moves",
        "it weighs what a move gains against what it costs",
        pulsar="loadBalancerLoadSheddingStrategy",
        words=STRATEGY_CLASSES,
    )
    balancing_interval_s: float = live(
        60.0, "between two rounds", PULSAR, pulsar={"loadBalancerSheddingIntervalMinutes": 60.0}, ge=0.01
    )
    balancing_tolerance: Tolerance | float = live(
        "default",
        "by how much a broker may be fuller than the mean: tight, default, loose, or a fraction",
        "default is 0.1: less is noise of most loads",
    )
    balancing_budget: float = live(
        0.2,
        "part of the cluster's load moved in one round; a first move, or a group that helps together, may exceed it",
        "a wrong decision stays small",
        gt=0,
        le=1,
    )
    balancing_moves_per_round: int = live(
        100, "moves decided in one round at most", "what clients bear in a minute", ge=1
    )
    balancing_review: bool = live(
        False,
        "moves wait for somebody's approval (drains and policies too)",
        "else nothing would move without a person",
    )
    bundle_rest_s: float = live(
        1800.0,
        "a moved bundle is not moved again within",
        PULSAR,
        pulsar={"loadBalancerSheddingGracePeriodMinutes": 60.0},
        ge=0,
    )
    load_change_percent: float = live(
        50.0,
        "change of a bundle's load after which its last move does not bind any more",
        "a bundle that has grown by half is another one",
        gt=0,
    )
    overloaded_percent: float = live(
        85.0,
        "usage from which a broker is overloaded",
        PULSAR,
        pulsar="loadBalancerBrokerOverloadedThresholdPercentage",
        gt=0,
        le=100,
    )
    moves_in_flight: int = live(
        100, "planned moves under way at most, in all", "clients that reconnect at once are a load of their own", ge=1
    )
    moves_in_flight_per_broker: int = live(
        10, "planned moves under way from or to a broker", "a broker opens bundles one after the other as well", ge=1
    )
    moves_in_flight_per_namespace: int = live(
        50, "planned moves under way of a namespace", "half of all: one tenant is not the only one that moves", ge=1
    )
    weight_cpu: float = live(1.0, "what CPU counts", PULSAR, pulsar="loadBalancerCPUResourceWeight", ge=0, le=10)
    weight_memory: float = live(
        0.0,
        "what memory counts; it does not fall when a bundle goes",
        PULSAR,
        pulsar={"loadBalancerMemoryResourceWeight": 1.0, "loadBalancerDirectMemoryResourceWeight": 1.0},
        ge=0,
        le=10,
    )
    weight_bandwidth: float = live(
        1.0,
        "what bandwidth counts, where a capacity is declared",
        PULSAR,
        pulsar={"loadBalancerBandwidthInResourceWeight": 1.0, "loadBalancerBandwidthOutResourceWeight": 1.0},
        ge=0,
        le=10,
    )
    weight_message_rate: float = live(
        1.0, "what messages count, where one is declared", "counts only where somebody declared a capacity", ge=0, le=10
    )
    prefer_later_versions: bool = live(
        False, "bundles go to brokers of the newest release only", PULSAR, pulsar="preferLaterVersions"
    )
    failure_domains: bool = live(
        True,
        "anti-affinity groups are spread over failure domains first",
        "who declares domains means it (Pulsar: off)",
        pulsar="failureDomainsEnabled",
    )
    broker_max_bundles: int | None = live(
        None, "no broker is given more, unless it declares a limit", "load limits a broker, not a count", ge=1
    )
    placement: str = live(
        "least-loaded",
        "name of the placement strategy",
        "counts what was given since the last report",
        pulsar="loadBalancerLoadPlacementStrategy",
        words=PLACEMENT_CLASSES,
    )
    placement_margin_percent: float = live(
        10.0,
        "least-resource-usage: below the mean",
        PULSAR,
        pulsar="loadBalancerAverageResourceUsageDifferenceThresholdPercentage",
        ge=0,
        le=100,
    )
