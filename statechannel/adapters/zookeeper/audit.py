"""Looks at an existing ZooKeeper as a broker with these settings would find it, and says what to change.

Leaves nothing behind: it ends its sessions, and deletes the one ephemeral node that it writes to measure write times.
`probe.py` asks single servers; `judgement.py` makes the findings.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.security import ACL

from statechannel.adapters.zookeeper.access import client_arguments, tls_context
from statechannel.adapters.zookeeper.judgement import (
    Expected,
    judge_acls,
    judge_clock,
    judge_ensemble,
    judge_root,
    judge_server,
    judge_sessions,
    judge_settings,
    judge_writes,
)
from statechannel.adapters.zookeeper.nodes import Nodes
from statechannel.adapters.zookeeper.probe import Server, Unreachable, ask_server
from statechannel.adapters.zookeeper.session import Denied, Session, check, put
from statechannel.audit import Finding, Severity
from statechannel.errors import CoordinationError, CoordinationUnavailable
from statechannel.ports import Identity

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
