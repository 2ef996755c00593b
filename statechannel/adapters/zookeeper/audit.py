"""Looks at an existing ZooKeeper as a broker with these settings would find it, and says what to change.

Leaves nothing behind: it ends its sessions, and deletes the one ephemeral node that it writes to measure write times.
`probe.py` asks single servers. Judging the facts is pure.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.security import ACL

from statechannel.adapters.zookeeper.access import SECURE, client_arguments, open_to_all, tls_context
from statechannel.adapters.zookeeper.nodes import Nodes
from statechannel.adapters.zookeeper.probe import Server, Unreachable, ask_server
from statechannel.adapters.zookeeper.session import Denied, Session, check, put
from statechannel.audit import Finding, Severity
from statechannel.errors import CoordinationError, CoordinationUnavailable
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
    """A finding if any client may change nodes of this ACL: a broker with these settings refuses to start."""
    if open_to_all(acl) and not (expected.development or expected.insecure):
        found = "with these settings everybody may change what the brokers create"
        yield Finding("zookeeper: identity", ERROR, found, SECURE)


def judge_acls(acls: Mapping[str, Sequence[ACL]], expected: Expected) -> Finding:
    """Whether any client can change our nodes."""
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
    """Whether the wall clocks agree; they matter only for the ages of loads and for comparing logs."""
    if abs(apart_ms) <= CLOCKS_APART_MS:
        return Finding("zookeeper: clock", OK, "it agrees with this machine's")
    way = "ahead of" if apart_ms > 0 else "behind"
    found = f"the server's wall clock is {abs(apart_ms) / 1_000:.1f} s {way} this machine's"
    return Finding("zookeeper: clock", WARNING, found, "run chrony or ntpd on both machines")


SERVER_TIMEOUT_S = 4.0
WRITES = 20
ACLS_READ = 200
CONFIG = "/zookeeper/config"


async def audit_zookeeper(
    hosts: str,
    root: str,
    expected: Expected,
    client_settings: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = SERVER_TIMEOUT_S,
) -> AsyncIterator[Finding]:
    """All findings, within about four times `timeout_s`. Raises CoordinationError for impossible settings."""
    settings = dict(client_settings or {})
    arguments = client_arguments(settings)
    tls = tls_context(arguments)
    for finding in judge_settings(arguments["default_acl"], expected):
        yield finding
    addresses = [address.strip() for address in hosts.split(",")]
    answers = await asyncio.gather(
        *(ask_server(address, expected.session_timeout_s, tls, timeout_s) for address in addresses),
        return_exceptions=True,
    )
    servers = [answer for answer in answers if isinstance(answer, Server)]
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, Unreachable):
            raise answer
        for finding in judge_server(address, answer, any_other=bool(servers)):
            yield finding
    for finding in judge_sessions(servers, expected):
        yield finding
    if servers:
        session = _Connected(
            ",".join(server.address for server in servers), expected.session_timeout_s, timeout_s, settings
        )
        try:
            async for finding in _from_inside(await session.opened(), Nodes(root), expected, servers, len(addresses)):
                yield finding
        except (CoordinationError, KazooException) as error:
            yield Finding("zookeeper: access", Severity.ERROR, str(error) or repr(error), _advice_for(error))
        finally:
            await session.link.close()


class _Connected:
    """A session of the audit's own."""

    def __init__(self, hosts: str, session_timeout_s: float, timeout_s: float, settings: Mapping[str, Any]) -> None:
        self._changed = asyncio.Event()
        self._timeout_s = timeout_s
        self.link = Session(hosts, session_timeout_s, timeout_s, settings, lambda _link: self._changed.set())

    async def opened(self) -> Session:
        """Open the session and wait for it. Raises CoordinationUnavailable."""
        self.link.open()
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self.link.connected:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            trouble = self.link.trouble or "it did not answer"
            raise CoordinationUnavailable(f"no session with ZooKeeper at {self.link.address}: {trouble}") from None
        return self.link


def _advice_for(error: Exception) -> str:
    return (
        ""
        if isinstance(error, Denied)
        else "read the log of the server; the other checks of ZooKeeper were not possible"
    )


async def _from_inside(
    session: Session, nodes: Nodes, expected: Expected, servers: Sequence[Server], listed: int
) -> AsyncIterator[Finding]:
    yield judge_ensemble(await _voters(session, servers, listed), listed, expected)
    exists = await session.stat(nodes.root) is not None
    yield judge_root(nodes.root, await _identity(session, nodes) if exists else None, expected, exists=exists)
    if exists:
        yield judge_acls(await _acls(session, nodes), expected)
    times_ms, apart_ms = await _written(session, await _parent(session, nodes))
    yield judge_writes(times_ms, expected)
    yield judge_clock(apart_ms)


# --- what is there
async def _voters(session: Session, servers: Sequence[Server], listed: int) -> int:
    """How many servers vote, by the ensemble's own configuration; if it is hidden, as many as the settings list."""
    if any(server.mode == "standalone" for server in servers):
        return 1
    config = b""
    with suppress(KazooException, CoordinationUnavailable):
        config, _ = await session.read(CONFIG)
    lines = [line for line in config.decode(errors="replace").splitlines() if line.startswith("server.")]
    return len([line for line in lines if ":observer" not in line]) or listed


async def _identity(session: Session, nodes: Nodes) -> Identity | None:
    with suppress(NoNodeError, msgspec.DecodeError):
        data, _ = await session.read(nodes.identity)
        return msgspec.json.decode(data, type=Identity)
    return None


async def _acls(session: Session, nodes: Nodes) -> dict[str, list[ACL]]:
    """The ACLs of our nodes, by path; of the first ACLS_READ at most."""
    paths = [*nodes.directories(), nodes.identity, nodes.leader]
    for directory in (nodes.ids_dir, nodes.live_dir, nodes.leases_dir, nodes.terms_dir):
        with suppress(NoNodeError):
            paths += [f"{directory}/{name}" for name in sorted(await session.children(directory))]
    found: dict[str, list[ACL]] = {}
    for path in paths[:ACLS_READ]:
        with suppress(NoNodeError):
            found[path] = await session.acl(path)
    return found


async def _parent(session: Session, nodes: Nodes) -> str:
    """The root, or its nearest existing ancestor: where a broker would write first."""
    for path in (nodes.root, *reversed(nodes.ancestors())):
        if await session.stat(path) is not None:
            return path
    return ""


async def _written(session: Session, parent: str) -> tuple[list[float], float]:
    """How long each checked write took, in ms; and how far the server's clock is ahead of ours, in ms."""
    path = f"{parent}/check-{secrets.token_hex(8)}"
    times_ms: list[float] = []
    await session.create(path, b"", ephemeral=True)
    try:
        for version in range(WRITES):
            began_s = time.monotonic()
            await session.commit(check(path, version), put(path, b""))
            times_ms.append((time.monotonic() - began_s) * 1_000)
        asked_ms = time.time() * 1_000
        await session.commit(put(path, b""))
        answered_ms = time.time() * 1_000
        stat = await session.stat(path)
    finally:
        with suppress(KazooException, CoordinationUnavailable):
            await session.delete(path, -1)
    written_ms = stat.mtime if stat is not None else answered_ms
    return times_ms, written_ms - min(max(written_ms, asked_ms), answered_ms)
