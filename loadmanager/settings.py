"""Every setting with its unit, default and bounds. Sources: environment (`LOADMANAGER_…`), command line, code.

Pydantic checks what comes from outside; inside, settings are passed as this frozen object, never read ambiently.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MAX_PORT = 65_535


class Settings(BaseSettings):
    """How one broker runs. Durations end in `_s`, sizes in `_bytes`."""

    model_config = SettingsConfigDict(env_prefix="LOADMANAGER_", frozen=True, extra="forbid")

    # --- where
    cluster: str = Field(
        "standalone", pattern=r"^[\w.-]+$", description="name of the cluster; tied to its log for ever"
    )
    advertised: str = Field("127.0.0.1:0", description="host:port by which others know this broker; its name")
    log: str = Field("sqlite:loadmanager.db", description="sqlite:FILE or kafka://host:port[,host:port…]")
    coordination: str | None = Field(
        None, description="sqlite:FILE or zookeeper://host:port[,…][/root]; default: as log"
    )
    partitions: int | None = Field(None, ge=1, le=1024, description="of the channel, at creation; default 4, Kafka 16")
    topic_prefix: str = Field("loadmanager.", description="prefix of every Kafka topic of this cluster")
    replication: int = Field(3, ge=1, description="of Kafka topics at creation")
    min_insync_replicas: int = Field(2, ge=1, description="of Kafka topics at creation")
    development: bool = Field(False, description="accept a Kafka without replication")
    kafka: Mapping[str, str] = Field(default_factory=dict, description="passed through to librdkafka (SASL, TLS)")
    zookeeper: Mapping[str, str] = Field(default_factory=dict, description="passed through to kazoo (auth, TLS)")
    insecure: bool = Field(False, description="listen where other machines reach it, although anybody may do anything")
    start_timeout_s: float = Field(60.0, gt=0, description="until log and coordination must have answered at start")

    # --- who we are
    failure_domain: str = Field("", description="rack or zone")
    capacity: Mapping[str, float] = Field(default_factory=dict, description="declared: cpu (cores), memory_bytes, …")
    properties: Mapping[str, str] = Field(default_factory=dict, description="free, shown to people")

    # --- proofs and failures
    proof_validity_s: float = Field(2.0, gt=0.2, le=60, description="V: how long a proof of ownership counts")
    clock_drift: float = Field(0.05, ge=0.001, le=0.2, description="one clock may run faster than another by this part")
    session_timeout_s: float = Field(6.0, ge=1, le=60, description="coordination session")
    recovery_grace_s: float = Field(150.0, ge=0, description="wait for brokers after the coordination service returned")
    probe_interval_s: float = Field(0.25, ge=0.05, description="between two looks at another broker's port")
    probe_refusals: int = Field(2, ge=1, description="refused connections in a row that make an accusation")
    monitor_interval_s: float = Field(5.0, gt=0, description="between two rounds of the ownership monitor")
    in_flight_timeout_s: float = Field(30.0, gt=0, description="until a bundle in flight is cancelled or revoked")
    publish_timeout_s: float = Field(5.0, gt=0, description="until a publish without verdict is Unknown")
    publish_limit: int = Field(20_000, ge=1, description="publishes in flight at most")
    lead_timeout_s: float = Field(15.0, gt=0, description="without progress on the channel, until a leader resigns")

    # --- lookups
    lookup_timeout_s: float = Field(10.0, gt=0, description="until a deferred lookup answers 503")

    # --- the service
    host_prepare_timeout_s: float = Field(10.0, gt=0, description="until `prepare` counts as failed")
    host_acquire_timeout_s: float = Field(10.0, gt=0, description="until `acquire` counts as failed")
    host_release_timeout_s: float = Field(5.0, gt=0, description="until `release` is overtaken by `abandon`")
    host_load_timeout_s: float = Field(5.0, gt=0, description="until `load` counts as failed; its last answer stays")
    drain_timeout_s: float = Field(60.0, gt=0, description="until a stopping broker leaves what is still there")

    # --- load
    load_sample_interval_s: float = Field(1.0, gt=0, description="between two samples of the process and its bundles")
    load_report_min_interval_s: float = Field(5.0, gt=0, description="report tick")
    load_report_max_interval_s: float = Field(900.0, gt=0, description="report at least this often")
    load_report_threshold_percent: float = Field(10.0, ge=0, description="change that triggers a report")
    load_ttl_s: float = Field(1800.0, gt=0, description="older load data takes no part and is tombstoned")
    load_top_bundles: int = Field(10, ge=1, description="bundles in a TopBundlesLoadData report")

    # --- balancing
    balancing: bool = Field(True, description="automatic moves")
    balancing_strategy: str = Field("difference", description="name of the shedding strategy")
    balancing_interval_s: float = Field(60.0, gt=0, description="between two rounds")
    balancing_tolerance: float = Field(
        0.1, ge=0, le=1, description="difference of usage (1 = a full broker) that is fine"
    )
    balancing_moves_per_round: int = Field(3, ge=1, description="transfers begun in one round at most")
    bundle_rest_s: float = Field(1800.0, ge=0, description="a moved bundle is not moved again within")
    placement: str = Field("least-loaded", description="name of the placement strategy")

    @model_validator(mode="after")
    def _ordered(self) -> Settings:
        if self.load_ttl_s < 2 * self.load_report_max_interval_s:
            raise ValueError("load_ttl_s must be at least twice load_report_max_interval_s")
        if self.load_report_max_interval_s < self.load_report_min_interval_s:
            raise ValueError("load_report_max_interval_s must not be below load_report_min_interval_s")
        if self.session_timeout_s < self.proof_validity_s:
            raise ValueError("session_timeout_s must not be below proof_validity_s")
        return self

    @property
    def margin_s(self) -> float:
        """What the leader waits beyond V: at least 100 ms, and enough for clocks that drift apart."""
        return max(0.1, self.clock_drift * self.proof_validity_s)
