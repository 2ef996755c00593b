"""Judges the facts about a ZooKeeper and makes findings of them. Pure; `audit.py` gathers the facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from kazoo.security import ACL

from statechannel.adapters.zookeeper.access import SECURE, open_to_all
from statechannel.adapters.zookeeper.probe import Server
from statechannel.audit import Finding, Severity
from statechannel.ports import Identity

OLDEST = (3, 8)
"""Older releases get no fixes any more."""
CLOCKS_APART_MS = 1_000

OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR


class Expected(msgspec.Struct, frozen=True):
    """What a broker's settings expect of ZooKeeper. `log_identity` is None if the log was not asked."""

    cluster: str
    log_identity: str | None = None
    session_timeout_s: float = 6.0
    proof_validity_s: float = 1.25
    development: bool = False
    insecure: bool = False


def judge_server(address: str, answer: Server | BaseException, *, any_other: bool) -> Iterator[Finding]:
    """Whether a server answers, its release and its role."""
    subject = f"zookeeper: {address}"
    if not isinstance(answer, Server):
        advice = "start it, or correct the address, the firewall or TLS; brokers use the other servers meanwhile"
        if not any_other:
            advice = "start ZooKeeper, or correct the address, the firewall or TLS: no broker can start"
        yield Finding(subject, WARNING if any_other else ERROR, str(answer), advice)
        return
    answers = f"answers in {answer.answer_ms:.1f} ms"
    if not answer.version:
        advice = "add srvr to 4lw.commands.whitelist of the server, so that the check can read its version and role"
        yield Finding(subject, WARNING, f"{answers}; it does not answer `srvr`", advice)
        return
    found = f"{answers}; version {answer.version}, {answer.mode or 'role unknown'}"
    numbers = tuple(int(part) for part in answer.version.split(".")[:2] if part.isdigit())
    if answer.mode == "read-only":
        yield Finding(subject, ERROR, found, "it has lost its quorum: bring the other servers back")
    elif numbers < OLDEST:
        yield Finding(subject, WARNING, found, "upgrade it: this release gets no fixes any more; 3.9 was tested")
    else:
        yield Finding(subject, OK, found)


def judge_sessions(servers: Sequence[Server], expected: Expected) -> Iterator[Finding]:
    """Whether servers grant the session time-out of the settings, and whether it is long enough for proofs."""
    asked_ms, proof_ms = int(expected.session_timeout_s * 1_000), int(expected.proof_validity_s * 1_000)
    for granted in dict.fromkeys(server.granted for server in servers):
        where = ", ".join(server.address for server in servers if server.granted == granted)
        found = (
            f"{where}: session_timeout_s={expected.session_timeout_s:g} requested, {granted.timeout_ms / 1_000:g} s "
            f"granted (limits {granted.shortest_ms / 1_000:g} to {granted.longest_ms / 1_000:g} s)"
        )
        severity, advice = OK, ""
        if granted.timeout_ms < proof_ms:
            severity = ERROR
            advice = (
                f"set maxSessionTimeout of the server to at least {asked_ms}: sessions end before proofs do "
                f"(proof_validity_s={expected.proof_validity_s:g})"
            )
        elif granted.timeout_ms < asked_ms:
            severity = WARNING
            advice = (
                f"set maxSessionTimeout of the server to at least {asked_ms}, or session_timeout_s to what it grants"
            )
        elif granted.timeout_ms > asked_ms:
            severity = WARNING
            advice = (
                f"set minSessionTimeout of the server to at most {asked_ms} (by default it is twice tickTime): "
                "leadership and leases of a crashed broker stay taken for that long"
            )
        yield Finding("zookeeper: sessions", severity, found, advice)


def judge_ensemble(voters: int, listed: int, expected: Expected) -> Finding:
    """How many failed servers the ensemble tolerates."""
    subject, found = "zookeeper: ensemble", f"{voters} voting, {listed} in the settings"
    if voters == 1:
        if expected.development:
            return Finding(subject, OK, "one server (development)")
        advice = "run three or five in production: while it is down nothing can be revoked, and no broker can start"
        return Finding(subject, WARNING, "one server, standalone", advice)
    if voters % 2 == 0:
        advice = f"run {voters + 1} or {voters - 1}: one server more than an odd number tolerates no further failure"
        return Finding(subject, WARNING, found, advice)
    if listed < min(voters, 3):
        advice = "name all servers in the coordination address: a broker uses only the named ones"
        return Finding(subject, WARNING, found, advice)
    return Finding(subject, OK, found)


def judge_root(root: str, tied: Identity | None, expected: Expected, *, exists: bool) -> Finding:
    """Which cluster the root belongs to."""
    subject = f"zookeeper: root {root}"
    if not exists:
        return Finding(subject, OK, "it does not exist; the first broker makes it")
    if tied is None:
        return Finding(subject, OK, "it exists and belongs to no cluster yet; the first broker ties it to its own")
    found = f"it belongs to cluster {tied.cluster!r} with log {tied.log!r}"
    if tied.cluster != expected.cluster or expected.log_identity not in (None, tied.log):
        advice = (
            f"these settings are of cluster {expected.cluster!r}"
            + (f" with log {expected.log_identity!r}" if expected.log_identity else "")
            + ": correct them, or choose another root (zookeeper://host:port/ROOT)"
        )
        return Finding(subject, ERROR, found, advice)
    return Finding(subject, OK, found)


def judge_settings(acl: Sequence[ACL], expected: Expected) -> Iterator[Finding]:
    """A finding if nodes of this ACL may be changed by everybody: a broker with these settings refuses to start."""
    if open_to_all(acl) and not (expected.development or expected.insecure):
        found = "with these settings everybody may change what the brokers create"
        yield Finding("zookeeper: identity", ERROR, found, SECURE)


def judge_acls(acls: Mapping[str, Sequence[ACL]], expected: Expected) -> Finding:
    """Whether everybody can change our nodes."""
    subject = "zookeeper: access"
    exposed = [path for path, entries in acls.items() if open_to_all(entries)]
    if not exposed:
        return Finding(subject, OK, f"none of the {len(acls)} checked nodes can be changed by everybody")
    found = f"everybody may change {len(exposed)} of the {len(acls)} checked nodes, such as {exposed[0]}"
    if expected.development:
        return Finding(subject, OK, found)
    advice = f"{SECURE}; once all have one, change the existing nodes: `setAcl -R` of zkCli.sh on the root"
    return Finding(subject, WARNING, found, advice)


def judge_writes(times_ms: Sequence[float], expected: Expected) -> Finding:
    """Whether a checked write is short compared with the time that a proof counts."""
    ordered = sorted(times_ms)
    p50_ms, p99_ms = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    proof_ms = expected.proof_validity_s * 1_000
    found = (
        f"a checked write takes {p50_ms:.1f} ms (p99 {p99_ms:.1f} ms of {len(ordered)}); a proof counts {proof_ms:g} ms"
    )
    if p50_ms > proof_ms / 4:
        advice = (
            "give it faster disks or a faster network, or raise proof_validity_s: otherwise brokers fence themselves"
        )
        return Finding("zookeeper: writes", ERROR, found, advice)
    if p99_ms > proof_ms / 4:
        advice = "check the servers' disks (dataLogDir needs a disk of its own) and pauses, or raise proof_validity_s"
        return Finding("zookeeper: writes", WARNING, found, advice)
    return Finding("zookeeper: writes", OK, found)


def judge_clock(apart_ms: float) -> Finding:
    """Whether the wall clocks agree; only ages of loads and people who compare logs need them."""
    if abs(apart_ms) <= CLOCKS_APART_MS:
        return Finding("zookeeper: clock", OK, "it agrees with this machine's")
    way = "ahead of" if apart_ms > 0 else "behind"
    found = f"the server's wall clock is {abs(apart_ms) / 1_000:.1f} s {way} this machine's"
    return Finding("zookeeper: clock", WARNING, found, "run chrony or ntpd on both machines")
