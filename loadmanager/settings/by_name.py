"""Settings by name, as `Broker(log=…, advertised=…)` takes them, for editors and type checkers.

Also explains errors in our words instead of pydantic's.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from pydantic import ValidationError
from pydantic_settings import SettingsError

from loadmanager.errors import Invalid
from loadmanager.settings import Settings
from loadmanager.settings.catalogue import Tolerance


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings with these values over the environment's. Raises Invalid."""
    try:
        return Settings(**given)
    except SettingsError as error:  # a variable of the environment that should be JSON
        raise Invalid(str(error)) from None
    except ValidationError as error:
        raise Invalid("; ".join(wrong(each["type"], each["loc"], each["msg"]) for each in error.errors())) from None


def wrong(kind: str, place: tuple[int | str, ...], message: str) -> str:
    """An error of one setting, in our words if pydantic's are about its internals."""
    name = ".".join(str(part) for part in place) or "settings"
    if kind == "extra_forbidden":
        near = get_close_matches(name, list(Settings.model_fields), n=3)
        return f"there is no setting {name}" + (f"; did you mean {' or '.join(near)}?" if near else "")
    return f"{name}: {message.removeprefix('Value error, ')}"


class Given(TypedDict, total=False):
    """Every setting, in the order of `Settings`; `descriptions()` explains each."""

    cluster: str
    advertised: str
    log: str
    coordination: str | None
    partitions: int | None
    topic_prefix: str
    replication: int
    min_insync_replicas: int
    development: bool
    kafka: Mapping[str, str]
    zookeeper: Mapping[str, str]
    insecure: bool
    history_dir: str | None
    start_timeout_s: float
    failure_domain: str
    capacity: Mapping[str, float]
    properties: Mapping[str, str]
    log_format: Literal["console", "json"]
    otlp_endpoint: str
    tls_certificate: str
    tls_key: str
    tls_client_ca: str
    tls_client_required: bool
    token_keys: str
    token_issuer: str
    token_audience: str
    token_subject_claim: str
    token_leeway_s: float
    superusers: str
    http_hosts: str
    http_probe_port: int
    http_connections: int
    http_requests: int
    http_lookup_rate: float | None
    http_request_rate: float | None
    http_head_limit_bytes: int
    http_body_limit_bytes: int
    http_head_timeout_s: float
    http_body_timeout_s: float
    http_send_timeout_s: float
    http_idle_timeout_s: float
    proof_validity_s: float
    clock_drift: float
    session_timeout_s: float
    recovery_grace_s: float
    probe_interval_s: float
    probe_refusals: int
    monitor_interval_s: float
    in_flight_timeout_s: float
    publish_timeout_s: float
    publish_limit: int
    lead_timeout_s: float
    snapshot_records: int
    snapshot_interval_s: float
    snapshot_timeout_s: float
    log_retention_s: float
    reader_ttl_s: float
    lookup_timeout_s: float
    host_prepare_timeout_s: float
    host_acquire_timeout_s: float
    host_release_timeout_s: float
    host_load_timeout_s: float
    drain_timeout_s: float
    group_retention_s: float
    decision_retention_s: float
    audit_retention_s: float
    tombstone_delay_s: float
    compaction_lag_s: float
    load_sample_interval_s: float
    load_report_min_interval_s: float
    load_report_max_interval_s: float
    load_report_threshold_percent: float
    load_ttl_s: float
    load_top_bundles: int
    load_window_s: float
    balancing: bool
    balancing_strategy: str
    balancing_interval_s: float
    balancing_tolerance: Tolerance | float
    balancing_budget: float
    balancing_moves_per_round: int
    balancing_review: bool
    bundle_rest_s: float
    load_change_percent: float
    overloaded_percent: float
    moves_in_flight: int
    moves_in_flight_per_broker: int
    moves_in_flight_per_namespace: int
    weight_cpu: float
    weight_memory: float
    weight_bandwidth: float
    weight_message_rate: float
    prefer_later_versions: bool
    failure_domains: bool
    broker_max_bundles: int | None
    placement: str
    placement_margin_percent: float
    shedder_target_std: float
    shedder_hit_count: int
    shedder_transfer: bool
    shedder_max_brokers: int
    shedder_delay_s: float
    shedder_history: float
    shedder_policy_bundles: bool
    shedder_threshold_percent: float
    shedder_lower_boundary: bool
    shedder_min_throughput_bytes_s: float
    uniform_rate_percent: float
    uniform_throughput_factor: float
    unload_min_rate_msg_s: float
    unload_min_throughput_bytes_s: float
    unload_max_fraction: float
    unload_max_bundles: int
    avg_low_percent: float
    avg_high_percent: float
    avg_low_hits: int
    avg_high_hits: int
    split: bool
    split_interval_s: float
    split_hits: int
    split_max_keys: int
    split_max_sessions: int
    split_max_rate_msg_s: float
    split_max_bandwidth_bytes_s: float
    split_margin_percent: float
    split_algorithm: str
    split_bundles_per_round: int
    split_children: bool
    namespace_max_bundles: int
    namespace_default_bundles: int
    merge: bool
    merge_below_percent: float
    merge_rest_s: float
    namespace_min_bundles: int
    quarantine_deaths: int
    quarantine_window_s: float
    quarantine_retry_s: float
    advice_apply: bool
    advice_measure_s: float
    advice_harm_percent: float
    advice_step_factor: float
