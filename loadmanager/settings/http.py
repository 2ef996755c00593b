"""Limits of the endpoints: how much of a broker its clients may use. Fixed; each broker has its own."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import fixed


class HttpLimits(BaseSettings):
    """Limits and names of the admin port."""

    http_hosts: str = fixed(
        "",
        "further names, separated by commas, by which clients may call this broker (an ingress, an alias)",
        "its advertised name, localhost and addresses are known; a browser may be led here under any other name",
    )
    http_probe_port: int = fixed(
        0,
        "port that answers health, liveness and readiness alone, without TLS; 0: none",
        "for probes of who has no certificate, with tls_client_required",
        ge=0,
        le=65_535,
    )
    http_connections: int = fixed(
        4_096,
        "connections at most; fewer where the descriptors of the process are fewer",
        "16 more answer health, readiness and metrics",
        pulsar="maxHttpServerConnections",
        ge=16,
        le=100_000,
    )
    http_requests: int = fixed(
        512, "requests at most that run at the same time, without lookups", "the next one is told to come back", ge=8
    )
    http_lookup_rate: float | None = fixed(
        None, "lookups a second that one client may send; none: no limit", "lookups are cheap", gt=0
    )
    http_request_rate: float | None = fixed(
        None,
        "other requests a second that one client may send; none: no limit",
        "a client is a principal, or an address where nobody is asked who they are",
        pulsar="httpRequestsMaxPerSecond",
        gt=0,
    )
    http_head_limit_bytes: int = fixed(
        32_768,
        "of a request line and its headers",
        "the longest names of topics take a tenth of it",
        pulsar="httpMaxRequestHeaderSize",
        ge=4_096,
        le=1_048_576,
    )
    http_body_limit_bytes: int = fixed(
        1_048_576, "of a request's body", "65,536 boundaries, or 1,000 topics of 1,000 characters", ge=65_536, le=2**26
    )
    http_head_timeout_s: float = fixed(
        10.0, "until the whole head must have come, from its first byte", "one packet, as a rule", gt=0, le=600
    )
    http_body_timeout_s: float = fixed(
        30.0,
        "until the whole body must have come, from the end of the head",
        "a megabyte over a slow line",
        gt=0,
        le=600,
    )
    http_send_timeout_s: float = fixed(
        30.0,
        "until a client that takes nothing of an answer is cut off",
        "longer than a network's hiccups",
        gt=0,
        le=600,
    )
    http_idle_timeout_s: float = fixed(
        75.0,
        "until a connection without a request is closed",
        "above the 60 s after which proxies close theirs",
        gt=0,
        le=3_600,
    )
