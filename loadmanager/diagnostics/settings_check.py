"""Checks whether settings fit each other, where validation cannot refuse them because it is a matter of degree.

Pure: settings in, findings out. The stores' adapters check the stores.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadmanager.settings import Settings
from loadmanager.strategies.registry import PLACEMENTS, STRATEGIES
from statechannel.audit import Finding, Severity

DETECTION_S = 0.1
"""Time to notice a crash of a process: its connections end. That of a machine shows when its session ends."""
SAFE_MIN_INSYNC = 2
SHORT_RETENTION_S = 86_400.0
LOOPBACK = ("127.", "localhost:", "[::1]:")


def check_settings(settings: Settings) -> list[Finding]:
    """Findings about these settings."""
    return [
        *_sessions(settings),
        *_failover(settings),
        *_hooks(settings),
        *_keeping(settings),
        *_stores(settings),
        *_strategies(settings),
    ]


def failover_s(settings: Settings) -> float:
    """Seconds from a crash until another broker may own its bundles: detection, proof time and margin."""
    return DETECTION_S + settings.proof_validity_s + settings.margin_s


def _sessions(s: Settings) -> Iterator[Finding]:
    found = f"session_timeout_s={s.session_timeout_s:g}, proof_validity_s={s.proof_validity_s:g}"
    if s.session_timeout_s < 2 * s.proof_validity_s:
        advice = "set session_timeout_s to at least twice proof_validity_s: otherwise a short pause costs every bundle"
        yield Finding("settings: sessions", Severity.WARNING, found, advice)
    else:
        yield Finding("settings: sessions", Severity.OK, found)


def _failover(s: Settings) -> Iterator[Finding]:
    found = f"bundles of a crashed broker are owned again after some {failover_s(s):.1f} s, plus the time of `acquire`"
    if s.lookup_timeout_s < failover_s(s):
        advice = (
            f"set lookup_timeout_s={s.lookup_timeout_s:g} above that: otherwise lookups answer 503 in every failover"
        )
        yield Finding("settings: failover", Severity.WARNING, found, advice)
    else:
        yield Finding("settings: failover", Severity.OK, found)


def _hooks(s: Settings) -> Iterator[Finding]:
    found = f"in_flight_timeout_s={s.in_flight_timeout_s:g}, host_acquire_timeout_s={s.host_acquire_timeout_s:g}"
    if s.in_flight_timeout_s <= s.host_acquire_timeout_s:
        advice = "set in_flight_timeout_s above host_acquire_timeout_s: otherwise the leader gives up healthy moves"
        yield Finding("settings: moves", Severity.WARNING, found, advice)
    else:
        yield Finding("settings: moves", Severity.OK, found)
    if s.drain_timeout_s < s.host_release_timeout_s + s.host_acquire_timeout_s:
        found = f"drain_timeout_s={s.drain_timeout_s:g}"
        advice = (
            "set it above one and a half times host_acquire_timeout_s, for a release and an acquire: "
            "else one slow bundle stays behind"
        )
        yield Finding("settings: drain", Severity.WARNING, found, advice)


def _keeping(s: Settings) -> Iterator[Finding]:
    if s.log_retention_s < SHORT_RETENTION_S:
        found = f"log_retention_s={s.log_retention_s:g}"
        advice = "set it to a day at least: otherwise the history of a night is gone by the next morning"
        yield Finding("settings: retention", Severity.WARNING, found, advice)


def _stores(s: Settings) -> Iterator[Finding]:
    on_kafka = s.log.startswith("kafka:")
    on_zookeeper = (s.coordination or "").startswith("zookeeper:")
    if on_kafka:
        yield from _replication(s)
    if (on_kafka or on_zookeeper) and s.advertised.startswith(LOOPBACK):
        found = f"advertised={s.advertised}: only this machine reaches it"
        yield Finding("settings: address", Severity.WARNING, found, "set it to an address that all others reach")
    if on_kafka != on_zookeeper:
        found = f"log={_scheme(s.log)}, coordination={_scheme(s.coordination or s.log)}"
        advice = "SQLite ties all brokers to one machine; use Kafka and ZooKeeper together"
        yield Finding("settings: stores", Severity.WARNING, found, advice)
    if s.insecure:
        open_to_all = "" if s.authentication else "anyone may do anything; "
        advice = f"{open_to_all}set up TLS and authentication (docs/security.md), or let only trusted machines reach it"
        yield Finding("settings: endpoints", Severity.WARNING, "insecure=true", advice)


def _replication(s: Settings) -> Iterator[Finding]:
    found = f"replication={s.replication}, min_insync_replicas={s.min_insync_replicas}"
    if s.development:
        advice = "leave it out in production: one lost disk loses the channel"
        yield Finding("settings: replication", Severity.WARNING, "development=true", advice)
    elif s.min_insync_replicas < SAFE_MIN_INSYNC or s.replication <= SAFE_MIN_INSYNC:
        advice = "set replication to 3 and min_insync_replicas to 2 at least: otherwise a broker refuses to start"
        yield Finding("settings: replication", Severity.ERROR, found, advice)
    elif s.min_insync_replicas >= s.replication:
        advice = "set min_insync_replicas below replication: otherwise one Kafka broker that is down stops all writes"
        yield Finding("settings: replication", Severity.WARNING, found, advice)
    else:
        yield Finding("settings: replication", Severity.OK, found)


def _strategies(s: Settings) -> Iterator[Finding]:
    for setting, name, known in (
        ("placement", s.placement, PLACEMENTS.names()),
        ("balancing_strategy", s.balancing_strategy, STRATEGIES.names()),
    ):
        if name not in known:
            advice = f"set it to one of: {', '.join(known)}, or install the package that brings it"
            yield Finding(f"settings: {setting}", Severity.ERROR, f"{setting}={name} is not installed here", advice)


def _scheme(address: str) -> str:
    return address.partition(":")[0]
