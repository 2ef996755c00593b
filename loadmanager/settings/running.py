"""Proofs and failures, snapshots, lookups, the service's hooks, retention.

Mostly fixed: safety depends on them, and brokers must not change them one by one while they rely on each other's
values.
"""

from __future__ import annotations

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import PULSAR, fixed, live


class Running(BaseSettings):
    """Proofs, failover, time-outs, retention."""

    # --- proofs and failures
    proof_validity_s: float = fixed(
        1.25, "V: how long a proof of ownership counts", "a crash costs this and the margin", gt=0.2, le=60
    )
    clock_drift: float = fixed(
        0.05, "one clock may run faster than another by this part", "far beyond any quartz", ge=0.001, le=0.2
    )
    session_timeout_s: float = fixed(
        6.0,
        "coordination session; a control loop that hangs as long loses it",
        "several proofs",
        pulsar={"metadataStoreSessionTimeoutMillis": 0.001},
        ge=1,
        le=60,
    )
    recovery_grace_s: float = fixed(
        150.0, "wait for brokers after the coordination service returned", "time for a whole cluster to come back", ge=0
    )
    probe_interval_s: float = fixed(
        0.25, "between two connections to another broker's port", "each is held as long: its end shows a crash", ge=0.05
    )
    probe_refusals: int = fixed(
        2,
        "refused connections in a row that make a suspicion; one that ended counts",
        "one refusal may be a full backlog",
        ge=1,
    )
    monitor_interval_s: float = fixed(
        5.0,
        "between two rounds of the ownership monitor",
        "a round costs nothing here (Pulsar: 60 s)",
        pulsar="loadBalancerServiceUnitStateMonitorIntervalInSeconds",
        gt=0,
    )
    in_flight_timeout_s: float = fixed(
        30.0,
        "until a bundle in flight is cancelled or revoked",
        PULSAR,
        pulsar={"loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": 0.001},
        gt=0,
    )
    publish_timeout_s: float = fixed(
        5.0, "until a publish without verdict is Unknown", "longer than any election of the log", gt=0
    )
    publish_limit: int = fixed(
        20_000, "publishes in flight at most", "bounds memory; far above what a broker needs", ge=1
    )
    lead_timeout_s: float = fixed(
        15.0,
        "without progress on the channel, until a leader resigns though nobody else reaches it "
        "(if somebody does: `publish_timeout_s`)",
        "three publishes that came to nothing",
        gt=0,
    )

    # --- snapshots and retention
    snapshot_records: int = fixed(
        20_000,
        "records of the channel that a starting broker replays at most, over all partitions",
        "0.3 s of replay; a record of many bundles counts as several",
        ge=1,
    )
    snapshot_interval_s: float = fixed(
        3_600.0, "until the next snapshot if there was any entry", "a quiet channel has a young snapshot too", gt=0
    )
    snapshot_timeout_s: float = fixed(
        60.0, "until writing or reading one snapshot counts as failed", "a million bundles take a few seconds", gt=0
    )
    log_retention_s: float = fixed(604_800.0, "what is younger stays in the channel's log", "a week", ge=0)
    reader_ttl_s: float = fixed(2_592_000.0, "a registered reader that is not renewed is forgotten", "30 days", gt=0)

    # --- lookups
    lookup_timeout_s: float = live(10.0, "until a deferred lookup answers 503", "above any failover", gt=0)

    # --- the service
    host_prepare_timeout_s: float = live(
        10.0, "until `prepare` counts as failed", "a third of in_flight_timeout_s", gt=0
    )
    host_acquire_timeout_s: float = live(
        10.0, "until `acquire` counts as failed", "a third of in_flight_timeout_s", gt=0
    )
    host_release_timeout_s: float = live(
        5.0,
        "until `release` is overtaken by `abandon`",
        "in flight for longer would be revoked",
        pulsar={"namespaceBundleUnloadingTimeoutMs": 0.001},
        gt=0,
    )
    host_load_timeout_s: float = live(
        5.0, "until `load` counts as failed; its last answer stays", "reports go on without a service that hangs", gt=0
    )
    drain_timeout_s: float = live(
        60.0,
        "until a stopping broker leaves what is still there",
        PULSAR,
        pulsar={"brokerShutdownTimeoutMs": 0.001},
        gt=0,
    )

    # --- records
    group_retention_s: float = fixed(
        604_800.0, "a consumer group without members is forgotten", "a week, as Kafka keeps its offsets", ge=60
    )
    decision_retention_s: float = live(604_800.0, "decisions are kept for explanations", "a week", gt=0)
    audit_retention_s: float = live(7_776_000.0, "entries of the audit log are kept: who changed what", "90 days", gt=0)
    tombstone_delay_s: float = fixed(
        3600.0,
        "deletions stay readable in compacted topics",
        PULSAR,
        pulsar="loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds",
        ge=30,
    )
    compaction_lag_s: float = fixed(
        86_400.0,
        "load reports that were replaced stay readable, for jobs of the load history",
        "a job that is behind by less than a day misses nothing",
        ge=0,
        le=604_800,
    )
