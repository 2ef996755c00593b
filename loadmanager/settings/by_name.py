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
from loadmanager.settings.catalogue import Tolerance, descriptions
from loadmanager.settings.removed import check_settable


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings with these values over the environment's. Raises Invalid."""
    check_settable(given)
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
        near = get_close_matches(name, list(descriptions()), n=3)
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
    superusers: str
    http_hosts: str
    http_probe_port: int
    http_requests: int
    http_request_rate: float | None
    http_body_limit_bytes: int
    proof_validity_s: float
    session_timeout_s: float
    in_flight_timeout_s: float
    snapshot_records: int
    snapshot_interval_s: float
    log_retention_s: float
    lookup_timeout_s: float
    host_acquire_timeout_s: float
    drain_timeout_s: float
    group_retention_s: float
    audit_retention_s: float
    load_report_max_interval_s: float
    load_window_s: float
    balancing: bool
    balancing_strategy: str
    balancing_interval_s: float
    balancing_tolerance: Tolerance | float
    balancing_budget: float
    balancing_moves_per_round: int
    balancing_review: bool
    bundle_rest_s: float
    overloaded_percent: float
    weight_cpu: float
    weight_bandwidth: float
    weight_message_rate: float
    prefer_later_versions: bool
    placement: str
    shedder_hit_count: int
    shedder_delay_s: float
    split: bool
    split_max_keys: int
    split_max_sessions: int
    split_max_rate_msg_s: float
    split_max_bandwidth_bytes_s: float
    split_algorithm: str
    namespace_max_bundles: int
    merge: bool
    advice_apply: bool
