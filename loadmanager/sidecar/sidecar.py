"""Runs a broker for as long as a service is attached: one session, one broker, one incarnation after the other.

| the session | begins when | ends when |
|---|---|---|
| joining | a service attaches, and no other session is there | the broker is a member: joined |
| joined | | the service is gone, ends the session, or the sidecar is told to stop: leaving |
| leaving | | the broker has moved its bundles away |

A service is gone if it has not polled for `session_timeout_s`, if it does not poll and its port refuses, or if it
attaches again at the same port. It then gets no more leases and no more hooks, and its bundles move once the leases it
has are over. A service that returns gets a new session, and so a new incarnation and new tokens: the store refuses
what its former process still writes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp

from loadmanager.client.cluster import header_of
from loadmanager.client.redirection import NotServing
from loadmanager.cluster.clocks import boot_clock_s
from loadmanager.embedding.broker import Broker, live
from loadmanager.embedding.endpoints import Endpoint
from loadmanager.errors import Conflict, Gone
from loadmanager.settings import Settings
from loadmanager.sidecar.remote_host import HOOKS_AT_ONCE, RemoteHost
from loadmanager.sidecar.wire import Attached, Attachment, Claimed, Lease, Order, Secret, State

WATCH_S = 0.25
"""Time between two looks at a session; and how long a poll may be late before the service's port is tried."""

NOTHING_VALID_S = 0.05
"""A service that may serve nothing asks again after this time: a proof may have come."""

CONNECT_S = 1.0
"""A port that does not answer within this time is not one that refuses."""

_log = logging.getLogger("loadmanager")


class Sessions(Protocol):
    """What the endpoints of a sidecar ask. The conformance tests have a scripted one."""

    def attach(self, attachment: Attachment) -> Attached:
        """Begin a session. Raises Conflict while another one lasts."""
        ...

    async def lease(self, session: str, wait_s: float) -> Lease:
        """Wait a little, then grant. Raises Gone if the session has ended."""
        ...

    async def detach(self, session: str) -> None:
        """End the session in order: return when all bundles have moved away. Raises Gone."""
        ...

    async def find(self, key: str, timeout_s: float, cluster: str | None = None) -> Claimed:
        """The key's bundle once it is served here. Raises Moved, NotServing, NotFound, InvalidName.

        `cluster` is what the client's request says in `Loadmanager-Cluster`. Raises AnotherCluster.
        """
        ...


class _Session:
    """One service's time at this sidecar."""

    def __init__(self, attachment: Attachment, broker: Broker, host: RemoteHost, name: str) -> None:
        self.name = name
        self.attachment = attachment
        self.broker = broker
        self.host = host
        self.state = State.JOINING
        self.asked_s = boot_clock_s()
        """When the last poll arrived."""
        self.leave = asyncio.Event()
        self.over = asyncio.Event()
        self.gone = False
        """True if the service counts as gone. It is then told only that the session is over."""
        self._changed = asyncio.Event()

    def enter(self, state: State) -> None:
        """Change the state, and answer polls that wait."""
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    def lose(self, why: str) -> None:
        """The service is gone. Idempotent."""
        if self.gone:
            return
        _log.warning("the service at %s %s: its bundles move to other brokers", self.attachment.hooks, why)
        self.gone = True
        self.host.end()
        self.leave.set()
        self.enter(State.LEAVING)

    async def pause(self, seconds: float) -> None:
        """Wait for this time, or until the state changes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, self.patience_s)):
                await self._changed.wait()

    @property
    def patience_s(self) -> float:
        """The longest time for which a poll waits."""
        if self.state is State.JOINING:
            return NOTHING_VALID_S
        node = self.broker.node
        valid = any(until > node.proof_clock.now_s() for until in self._until_s())
        return node.settings.proof_validity_s / 4 if valid else NOTHING_VALID_S

    def grant(self, asked_s: float) -> Lease:
        """The answer to a poll that arrived at `asked_s`, on the boot clock."""
        if self.state is State.JOINING:
            return Lease(state=self.state, valid_ms={}, abandon=[], shared=[])
        node = self.broker.node
        missed_s = node.proof_clock.missed_s
        granted = self.host.leases.grant([until - missed_s for until in self._until_s()], asked_s)
        return Lease(
            state=self.state,
            valid_ms=dict(granted.valid_ms),
            abandon=[Order(bundle=str(bundle), sequence=sequence) for bundle, sequence in granted.abandon.items()],
            shared=[] if node.serving is None else sorted(node.serving.shared),
            cluster="" if (cluster := node.channel.table.cluster_identity) is None else header_of(cluster),
        )

    def _until_s(self) -> list[float]:
        serving = self.broker.node.serving
        return [] if serving is None else serving.until_s()


class Sidecar:
    """Call everything on one loop, and keep `run()` running; `stop()` ends it."""

    def __init__(
        self,
        settings: Settings,
        secret: Secret,
        *,
        session_timeout_s: float,
        urls: Mapping[str, str],
        bind: str | None,
        endpoint: Endpoint,
        absent: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        """`absent` answers at the broker's address while there is no session."""
        self._settings = settings
        self._secret = secret
        self._timeout_s = session_timeout_s
        self._urls = urls
        self._bind = bind
        self._endpoint = endpoint
        self._absent = absent
        self._stopping = asyncio.Event()
        self._attached = asyncio.Event()
        self._session: _Session | None = None
        self._http: aiohttp.ClientSession | None = None

    def stop(self) -> None:
        """Let the session end in order, and `run` return."""
        self._stopping.set()
        self._attached.set()
        if self._session is not None:
            self._session.leave.set()

    async def run(self) -> None:
        """Have one session after the other. Raises the error of a broker that does not start, or fails."""
        connector = aiohttp.TCPConnector(limit=HOOKS_AT_ONCE)
        async with aiohttp.ClientSession(connector=connector) as self._http:
            while True:
                async with self._absent():
                    await self._attached.wait()
                if self._stopping.is_set():
                    return
                session = self._session
                assert session is not None
                try:
                    await self._live(session)
                finally:
                    session.gone = True
                    session.host.end()
                    session.over.set()
                    session.enter(State.LEAVING)
                    self._session = None
                    if not self._stopping.is_set():
                        self._attached.clear()

    async def _live(self, session: _Session) -> None:
        watching = asyncio.create_task(self._watch(session))
        try:
            await live(session.broker, session.leave, lambda: self._joined(session))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def _joined(self, session: _Session) -> None:
        _log.info("broker %s serves for the service at %s", session.broker.name, session.attachment.hooks)
        session.enter(State.JOINED)

    async def _watch(self, session: _Session) -> None:
        """Notice when the service is gone, and when the session is to be left."""
        late_s = self._settings.proof_validity_s / 4 + WATCH_S
        while not session.leave.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await session.leave.wait()
            silent_s = boot_clock_s() - session.asked_s
            if silent_s > self._timeout_s:
                session.lose(f"has not polled for {silent_s:.1f} s")
            elif silent_s > late_s and await _refuses(session.attachment.hooks):
                session.lose("has gone: it does not poll, and its port refuses")
        if not session.gone:
            session.enter(State.LEAVING)

    # --- for the endpoints

    def attach(self, attachment: Attachment) -> Attached:
        """As `Sessions.attach`. The broker starts behind it."""
        if self._session is not None and self._session.attachment.hooks == attachment.hooks:
            self._session.lose("was started again, or did not get the answer that it is attached")
        if self._session is not None or self._stopping.is_set():
            raise Conflict("another session is attached, or leaves: try again, or stop the other service")
        assert self._http is not None, "run() first"
        name = secrets.token_hex(8)
        hooks, offers = attachment.hooks, attachment.offers
        host = RemoteHost(name, hooks, offers, self._secret, self._http, boot_clock_s)
        urls = {**self._urls, **attachment.urls}
        broker = Broker(host, self._settings, urls=urls, endpoint=self._endpoint, bind=self._bind)
        self._session = _Session(attachment, broker, host, name)
        self._attached.set()
        return Attached(session=name, broker=broker.name)

    async def lease(self, session: str, wait_s: float) -> Lease:
        """As `Sessions.lease`."""
        asked_s = boot_clock_s()
        found = self._of(session)
        found.asked_s = asked_s
        await found.pause(wait_s)
        return self._of(session).grant(asked_s)

    async def detach(self, session: str) -> None:
        """As `Sessions.detach`."""
        found = self._of(session)
        found.leave.set()
        await found.over.wait()

    async def find(self, key: str, timeout_s: float, cluster: str | None = None) -> Claimed:
        """As `Sessions.find`."""
        session = self._session
        if session is None or session.state is State.JOINING:
            raise NotServing("no service is attached to this sidecar, or its broker is joining the cluster")
        async with session.broker.admit(key, timeout_s, cluster=cluster) as claim:
            return Claimed(bundle=str(claim.bundle), token=str(claim.token), partition=claim.token.partition)

    def _of(self, name: str) -> _Session:
        session = self._session
        if session is None or session.name != name or session.gone:
            raise Gone("this session has ended: forget all bundles, and attach again")
        return session


async def _refuses(url: str) -> bool:
    """Returns True if nothing listens there, False also if that is not known within `CONNECT_S`."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except ConnectionRefusedError:
        return True
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    return False
