"""Values that are fixed in a cluster, and that a test or a simulation makes small: arguments of `Settings`.

They are no settings: the environment, the command line, the cluster's settings and `Broker(…)` refuse them, see
`removed.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from pydantic_settings import BaseSettings


class Constants(BaseSettings):
    """What only code may give to `Settings`."""

    properties: Mapping[str, str] = Field(default_factory=dict)
    """A service's own, for its code at other brokers (`Registration.properties`); others see their names only."""

    http_connections: int = Field(default=4_096, ge=16, le=100_000)
    """The most connections, or what the process has file descriptors for; 16 more answer health and metrics."""
    http_head_limit_bytes: int = 32_768
    """Of a request line and its headers: the longest topic names take a tenth of it."""
    http_head_timeout_s: float = 10.0
    """Until the whole head must have come, from its first byte: it is one packet, as a rule."""
    http_body_timeout_s: float = 30.0
    """Until the whole body must have come, from the end of the head: a megabyte over a slow line."""
    http_send_timeout_s: float = 30.0
    """Until a client that reads nothing of an answer is disconnected: longer than a short network failure."""
    http_idle_timeout_s: float = 75.0
    """Until a connection without a request is closed: above the 60 s after which proxies close theirs."""

    clock_drift: float = Field(default=0.05, ge=0.001, le=0.2)
    """One clock may run faster than another by this fraction: far more than any quartz drifts. The log agrees on it."""
    recovery_grace_s: float = 150.0
    """The wait for brokers after the coordination service returned: enough for a whole cluster to return."""
    monitor_interval_s: float = 5.0
    """Between two rounds of the ownership monitor: a round costs nothing here (Pulsar: 60 s)."""
    publish_timeout_s: float = 5.0
    """Until a publish without verdict is Unknown: longer than any leader election in the log."""
    lead_timeout_s: float = 15.0
    """Without progress on the channel, until a leader resigns that no other broker replaces: three failed publishes."""
    snapshot_timeout_s: float = 60.0
    """Until writing or reading one snapshot counts as failed: a million bundles take a few seconds."""

    load_top_bundles: int = 25
    """Bundles in a report of the hottest: with Pulsar's 10 per report, all may be resting after a restart."""
    weight_memory: float = 0.0
    """The weight of memory: a process's use of it does not fall when a bundle leaves."""

    split_interval_s: float = 60.0
    """Between two looks at the bundles; Pulsar's default."""
    split_hits: int = 3
    """Looks in a row to pass before a split; Pulsar's default."""
    split_bundles_per_round: int = 10
    """The most splits or merges that a broker begins in one round; Pulsar's default."""
    merge_rest_s: float = 3_600.0
    """A bundle must have been cold, under one ownership, for this long: a pause of minutes must not cause a merge."""
    namespace_min_bundles: int = 4
    """A namespace is not merged below: the number that it is created with."""

    quarantine_deaths: int = 3
    """Crashes of different brokers in a row that make a bundle suspected: two may be chance. 0: never."""
    quarantine_window_s: float = 60.0
    """A crash within this time after a bundle was acquired may be its fault: later ones have other causes."""
    quarantine_retry_s: float = 60.0
    """A locked bundle is tried again, then after twice as long each time: a wrong verdict costs minutes."""

    advice_measure_s: float = 3_600.0
    """How long before and after advice its effect is measured: 60 rounds."""
