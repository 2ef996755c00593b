"""Names that were settings once, ours and Pulsar's, and what holds now. Decision 0063 has the reasons.

A stored or given value of such a name is never used; the sentence says which value counts instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loadmanager.errors import Invalid

PULSARS_DEFAULT = "Pulsar's default"

REMOVED: Mapping[str, str] = {
    "advice_harm_percent": "fixed at 10 %: smaller differences are usually noise",
    "advice_measure_s": "fixed at 3,600 s: 60 rounds are enough to tell an effect from chance",
    "advice_step_factor": "fixed at 2: it limits the harm of a wrong step",
    "avg_high_hits": f"fixed at 2, {PULSARS_DEFAULT}",
    "avg_high_percent": f"fixed at 40 %, {PULSARS_DEFAULT}",
    "avg_low_hits": f"fixed at 8, {PULSARS_DEFAULT}",
    "avg_low_percent": f"fixed at 15 %, {PULSARS_DEFAULT}",
    "broker_max_bundles": "no limit by default; a broker's policy gives one (`max_bundles`)",
    "clock_drift": "fixed at 0.05: far more than any quartz drifts; a log that agreed on another value keeps it",
    "compaction_lag_s": "fixed at 86,400 s; on Kafka, change `min.compaction.lag.ms` of the topic",
    "decision_retention_s": "fixed at 604,800 s: a week of explanations",
    "failure_domains": "always on: declaring domains enables them",
    "host_load_timeout_s": "half of host_acquire_timeout_s",
    "host_prepare_timeout_s": "the same as host_acquire_timeout_s",
    "host_release_timeout_s": "half of host_acquire_timeout_s",
    "http_body_timeout_s": "fixed at 30 s: a megabyte over a slow line",
    "http_connections": "fixed at 4,096, or what `ulimit -n` leaves if that is less",
    "http_head_limit_bytes": "fixed at 32,768 bytes: the longest topic names take a tenth of it",
    "http_head_timeout_s": "fixed at 10 s: a head is one packet, as a rule",
    "http_idle_timeout_s": "fixed at 75 s: above the 60 s after which proxies close their connections",
    "http_lookup_rate": "ten times http_request_rate: a lookup costs far less than another request",
    "http_send_timeout_s": "fixed at 30 s: longer than a short network failure",
    "lead_timeout_s": "fixed at 15 s: three failed publishes",
    "load_change_percent": "fixed at 50 %: growth by half invalidates the old placement",
    "load_report_min_interval_s": "a sixth of load_window_s: 5 s by default",
    "load_report_threshold_percent": f"fixed at 10 %, {PULSARS_DEFAULT}",
    "load_sample_interval_s": "a thirtieth of load_window_s: 1 s by default",
    "load_top_bundles": "fixed at 25: with Pulsar's 10 a report, all may be resting after a restart",
    "load_ttl_s": "twice load_report_max_interval_s",
    "merge_below_percent": "fixed at 10 % of the split limits: far from them, so the result is not split again",
    "merge_rest_s": "fixed at 3,600 s: a pause of minutes must not cause a merge",
    "monitor_interval_s": "fixed at 5 s: a round costs nothing here",
    "moves_in_flight": "the same as balancing_moves_per_round",
    "moves_in_flight_per_broker": "a tenth of balancing_moves_per_round: a broker also opens bundles one by one",
    "moves_in_flight_per_namespace": "half of balancing_moves_per_round: one tenant does not block the others",
    "namespace_default_bundles": f"fixed at 4, {PULSARS_DEFAULT}: give a number where you create a namespace",
    "namespace_min_bundles": "fixed at 4: the number that a namespace is created with",
    "placement_margin_percent": f"fixed at 10 %, {PULSARS_DEFAULT}",
    "probe_interval_s": "fixed at 0.25 s: each connection stays open as long, and a crash ends it",
    "probe_refusals": "fixed at 2: one refusal may come from a full backlog",
    "properties": "none: a service in Python gives its own with `Settings(properties=…)`",
    "publish_limit": "fixed at 20,000: it bounds memory, far above what a broker needs",
    "publish_timeout_s": "fixed at 5 s: longer than any leader election in the log",
    "quarantine_deaths": "fixed at 3: two crashes may be chance",
    "quarantine_retry_s": "fixed at 60 s: a wrong verdict costs minutes",
    "quarantine_window_s": "fixed at 60 s: later crashes have other causes",
    "reader_ttl_s": "fixed at 2,592,000 s: 30 days",
    "recovery_grace_s": "fixed at 150 s: enough for a whole cluster to return",
    "shedder_history": f"fixed at 0.9, {PULSARS_DEFAULT}",
    "shedder_lower_boundary": f"always off, {PULSARS_DEFAULT}",
    "shedder_max_brokers": f"fixed at 3, {PULSARS_DEFAULT}",
    "shedder_min_throughput_bytes_s": f"fixed at 10,485,760 bytes/s, {PULSARS_DEFAULT}",
    "shedder_policy_bundles": f"always off, {PULSARS_DEFAULT}",
    "shedder_target_std": f"fixed at 0.25, {PULSARS_DEFAULT}",
    "shedder_threshold_percent": f"fixed at 10 %, {PULSARS_DEFAULT}",
    "shedder_transfer": f"always on, {PULSARS_DEFAULT}",
    "snapshot_timeout_s": "fixed at 60 s: a million bundles take a few seconds",
    "split_bundles_per_round": f"fixed at 10, {PULSARS_DEFAULT}",
    "split_children": f"always on, {PULSARS_DEFAULT}",
    "split_hits": f"fixed at 3, {PULSARS_DEFAULT}",
    "split_interval_s": f"fixed at 60 s, {PULSARS_DEFAULT}",
    "split_margin_percent": f"fixed at 10 %, {PULSARS_DEFAULT}",
    "token_leeway_s": "fixed at 30 s: it covers clocks that lost NTP",
    "tombstone_delay_s": f"fixed at 3,600 s, {PULSARS_DEFAULT}; on Kafka, change `delete.retention.ms` of the topic",
    "uniform_rate_percent": f"fixed at 50 %, {PULSARS_DEFAULT}",
    "uniform_throughput_factor": f"fixed at 4, {PULSARS_DEFAULT}",
    "unload_max_bundles": f"no limit, {PULSARS_DEFAULT}",
    "unload_max_fraction": f"fixed at 0.2, {PULSARS_DEFAULT}",
    "unload_min_rate_msg_s": f"fixed at 1,000 messages/s, {PULSARS_DEFAULT}",
    "unload_min_throughput_bytes_s": f"fixed at 1,048,576 bytes/s, {PULSARS_DEFAULT}",
    "weight_memory": "always 0: a process's memory does not fall when a bundle leaves",
}
"""Our names that are gone, and what holds now."""

PULSARS: Mapping[str, str] = {
    "defaultNumberOfNamespaceBundles": "namespace_default_bundles",
    "failureDomainsEnabled": "failure_domains",
    "flowOrQpsDifferenceThresholdPercentage": "split_margin_percent",
    "httpMaxRequestHeaderSize": "http_head_limit_bytes",
    "loadBalancerAutoUnloadSplitBundlesEnabled": "split_children",
    "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": "placement_margin_percent",
    "loadBalancerAvgShedderHighThreshold": "avg_high_percent",
    "loadBalancerAvgShedderHitCountHighThreshold": "avg_high_hits",
    "loadBalancerAvgShedderHitCountLowThreshold": "avg_low_hits",
    "loadBalancerAvgShedderLowThreshold": "avg_low_percent",
    "loadBalancerBrokerLoadDataTTLInSeconds": "load_ttl_s",
    "loadBalancerBrokerLoadTargetStd": "shedder_target_std",
    "loadBalancerBrokerThresholdShedderPercentage": "shedder_threshold_percent",
    "loadBalancerBundleUnloadMinThroughputThreshold": "shedder_min_throughput_bytes_s",
    "loadBalancerDirectMemoryResourceWeight": "weight_memory",
    "loadBalancerHistoryResourcePercentage": "shedder_history",
    "loadBalancerHostUsageCheckIntervalMinutes": "load_sample_interval_s",
    "loadBalancerMaxNumberOfBrokerSheddingPerCycle": "shedder_max_brokers",
    "loadBalancerMaxNumberOfBundlesInBundleLoadReport": "load_top_bundles",
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle": "split_bundles_per_round",
    "loadBalancerMemoryResourceWeight": "weight_memory",
    "loadBalancerMsgRateDifferenceShedderThreshold": "uniform_rate_percent",
    "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": "uniform_throughput_factor",
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": "split_hits",
    "loadBalancerReportUpdateMinIntervalMillis": "load_report_min_interval_s",
    "loadBalancerReportUpdateThresholdPercentage": "load_report_threshold_percent",
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds": "monitor_interval_s",
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds": "tombstone_delay_s",
    "loadBalancerSheddingBundlesWithPoliciesEnabled": "shedder_policy_bundles",
    "loadBalancerSplitIntervalMinutes": "split_interval_s",
    "loadBalancerTransferEnabled": "shedder_transfer",
    "lowerBoundarySheddingEnabled": "shedder_lower_boundary",
    "maxHttpServerConnections": "http_connections",
    "maxUnloadBundleNumPerShedding": "unload_max_bundles",
    "maxUnloadPercentage": "unload_max_fraction",
    "minUnloadMessage": "unload_min_rate_msg_s",
    "minUnloadMessageThroughput": "unload_min_throughput_bytes_s",
    "namespaceBundleUnloadingTimeoutMs": "host_release_timeout_s",
}
"""Pulsar's names of these."""


def why_removed(name: str) -> str | None:
    """The sentence for a name that was a setting, ours or Pulsar's; None for any other name."""
    holds = REMOVED.get(PULSARS.get(name, name))
    return None if holds is None else f"{name} cannot be set: {holds}"


def check_settable(names: Iterable[str]) -> None:
    """Raises Invalid if one of them was a setting and is none any more."""
    removed = [why for name in names if (why := why_removed(name)) is not None]
    if removed:
        raise Invalid("; ".join(removed))
