"""For each alert, series on which it fires and series on which it does not, in promtool's notation."""

from __future__ import annotations

AT = 'job="loadmanager",instance="a"'
MINUTES = 30
"""How long the series last; long enough for every `for`, and for ranges of 15 minutes."""


def one(name: str, values: str, labels: str = AT) -> dict[str, str]:
    return {"series": f"{name}{{{labels}}}", "values": values}


def gauge(name: str, value: object, labels: str = AT) -> dict[str, str]:
    steady = " ".join([str(value)] * 2 * MINUTES) if isinstance(value, str) else f"{value}x{2 * MINUTES}"
    return one(f"loadmanager_{name}", steady, labels)


def counter(name: str, a_minute: int, labels: str = AT) -> dict[str, str]:
    return one(f"loadmanager_{name}_total", f"0+{a_minute}x{2 * MINUTES}", labels)


def gaps(slow_a_minute: int) -> list[dict[str, str]]:
    """A hundred transfers a minute, some of them slower than a second."""
    labels = f'{AT},kind="transfer"'
    return [
        one("loadmanager_move_gap_seconds_bucket", f"0+{100 - slow_a_minute}x60", f'{labels},le="1.0"'),
        *(one("loadmanager_move_gap_seconds_bucket", "0+100x60", f'{labels},le="{le}"') for le in ("5.0", "+Inf")),
    ]


def lookups(unavailable: int) -> list[dict[str, str]]:
    return [
        counter("lookups", unavailable, f'{AT},outcome="unavailable"'),
        counter("lookups", 1_000, f'{AT},outcome="answered"'),
    ]


B = AT.replace('"a"', '"b"')
CASES: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "LoadManagerNoLeader": (
        [gauge("leader", 0), gauge("leader", 0, B)], [gauge("leader", 0), gauge("leader", 1, B)]),
    "LoadManagerTwoLeaders": (
        [gauge("leader", 1), gauge("leader", 1, B)], [gauge("leader", 1), gauge("leader", 0, B)]),
    "LoadManagerNoRound": (
        [gauge("balancing_round_age_seconds", 200), gauge("balancing_interval_seconds", 60)],
        [gauge("balancing_round_age_seconds", 100), gauge("balancing_round_age_seconds", "NaN", B),
         gauge("balancing_interval_seconds", 60), gauge("balancing_interval_seconds", 60, B)]),
    "LoadManagerBalancingFailures": (
        [counter("balancing_failures", 1)], [counter("balancing_failures", 0)]),
    "LoadManagerBrokerDown": (
        [one("up", "0x60", B)], [one("up", "1x60"), one("up", "0x60", 'job="node",instance="a"')]),
    "LoadManagerNoBroker": (
        [one("up", "0x60"), one("up", "0x60", B)],
        [one("up", "1x60"), one("up", "0x60", B), one("up", "0x60", 'job="node",instance="a"')]),
    "LoadManagerBrokerNotReady": ([gauge("ready", "0 stale")], [gauge("ready", 1), gauge("ready", "0 1", B)]),
    "LoadManagerSuspicion": ([gauge("members_suspected", 1)], [gauge("members_suspected", 0)]),
    "LoadManagerBrokerBehind": ([gauge("members_behind", 1)], [gauge("members_behind", 0)]),
    "LoadManagerBrokerUnfit": ([gauge("members_unfit", 1)], [gauge("members_unfit", 0)]),
    "LoadManagerDrainStuck": (
        [gauge("draining", 1), gauge("owned_bundles", 2, f'{AT},state="assigned"')],
        [gauge("draining", 1), gauge("owned_bundles", 0, f'{AT},state="assigned"'),
         gauge("draining", 0, B), gauge("owned_bundles", 2, f'{B},state="assigned"')]),
    "LoadManagerLoopSlow": (
        [gauge("loop_longest_turn_seconds", 0.4)], [gauge("loop_longest_turn_seconds", 0.1)]),
    "LoadManagerHookFailures": (
        [one("loadmanager_hook_duration_seconds_count", "0+1x60", f'{AT},hook="acquire",result="failed"')],
        [one("loadmanager_hook_duration_seconds_count", "0+1x60", f'{AT},hook="acquire",result="ok"'),
         one("loadmanager_hook_duration_seconds_count", "5x60", f'{AT},hook="acquire",result="failed"')]),
    "LoadManagerProofNearEnd": (
        [gauge("proof_age_seconds", 1.8, f'{AT},partition="1"'), gauge("proof_validity_seconds", 2),
         gauge("ready", 1)],
        [gauge("proof_age_seconds", 0.5, f'{AT},partition="1"'), gauge("proof_validity_seconds", 2),
         gauge("ready", 1),
         gauge("proof_age_seconds", "Inf", f'{B},partition="1"'), gauge("proof_validity_seconds", 2, B),
         gauge("ready", 0, B)]),
    "LoadManagerOrphans": ([gauge("bundles_orphaned", 3)], [gauge("bundles_orphaned", 0)]),
    "LoadManagerGapTooLong": (gaps(5), gaps(0)),
    "LoadManagerMoveStuck": (
        [gauge("move_oldest_seconds", 130), gauge("move_timeout_seconds", 30)],
        [gauge("move_oldest_seconds", 130), gauge("move_timeout_seconds", 60)]),
    "LoadManagerReturns": ([counter("move_returns", 1)], [counter("move_returns", 0)]),
    "LoadManagerQuarantine": ([counter("bundles_quarantined", 1)], [counter("bundles_quarantined", 0)]),
    "LoadManagerReplicaLag": (
        [gauge("channel_lag_records", 1_500, f'{AT},partition="0"')],
        [gauge("channel_lag_records", 900, f'{AT},partition="0"'),
         gauge("channel_lag_records", 900, f'{AT},partition="1"')]),
    "LoadManagerAppendFailures": ([counter("channel_append_failures", 1)], [counter("channel_append_failures", 0)]),
    "LoadManagerRefusals": (
        [counter("channel_records", 120, f'{AT},outcome="refused",reason="stale"')],
        [counter("channel_records", 120, f'{AT},outcome="accepted",reason=""'),
         *(counter("channel_records", 40, f'{at},outcome="refused",reason="stale"') for at in (AT, B))]),
    "LoadManagerForeignRecords": (
        [counter("channel_records", 1, f'{AT},outcome="refused",reason="malformed"')],
        [counter("channel_records", 1, f'{AT},outcome="refused",reason="stale"')]),
    "LoadManagerCoordinationLost": ([gauge("coordination_connected", 0)], [gauge("coordination_connected", 1)]),
    "LoadManagerSafeMode": ([gauge("safe_mode", 1)], [gauge("safe_mode", 0)]),
    "LoadManagerPartitionWithoutOwner": (
        [gauge("channel_owned_partitions", 1), gauge("channel_owned_partitions", 0, B),
         *(gauge("channel_epoch", 4, f'{AT},partition="{p}"') for p in "01")],
        [gauge("channel_owned_partitions", 1), gauge("channel_owned_partitions", 1, B),
         *(gauge("channel_epoch", 4, f'{at},partition="{p}"') for p in "01" for at in (AT, B))]),
    "LoadManagerSnapshotFailures": ([counter("snapshot_failures", 1)], [counter("snapshot_failures", 0)]),
    "LoadManagerClockApart": ([gauge("clock_offset_seconds", -40)], [gauge("clock_offset_seconds", 10)]),
    "LoadManagerLoadDataStale": (
        [gauge("load_oldest_age_seconds", 1_300), gauge("members_without_load", 0)],
        [gauge("load_oldest_age_seconds", 300), gauge("members_without_load", 0)]),
    "LoadManagerLookupsUnavailable": (lookups(100), lookups(1)),
    "LoadManagerRequestsRefused": (
        [counter("http_requests_refused", 1, f'{AT},why="running"')],
        [counter("http_requests_refused", 0, f'{AT},why="running"')]),
    "LoadManagerLogInFailures": (
        [counter("http_access_refused", 120, f'{AT},why="expired"')],
        [counter("http_access_refused", 120, f'{AT},why="role"')]),
    "LoadManagerCertificateExpires": (
        [gauge("tls_certificate_expires_seconds", 13 * 86_400)],
        [gauge("tls_certificate_expires_seconds", 20 * 86_400), gauge("tls_certificate_expires_seconds", "NaN", B)]),
    "LoadManagerAuditEntriesLost": ([counter("audit_entries_lost", 1)], [counter("audit_entries_lost", 0)]),
}  # fmt: skip
"""By alert: series on which it fires, and series on which it does not. Promtool's clock begins in 1970."""
