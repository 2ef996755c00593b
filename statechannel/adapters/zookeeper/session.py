"""The link to ZooKeeper: one kazoo client, its requests as awaitables of the loop, its states as calls on the loop.

Knows nothing of brokers or epochs. While not connected, kazoo queues requests and may send them much later; here they
fail at once. kazoo replaces a lost session; we replace a client that gave up. The client's handler bounds its waits: no
single answer uses up a session, and a failed TLS handshake leaks no socket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from statechannel.adapters.zookeeper.access import client_arguments, tls_context
from statechannel.errors import CoordinationError, CoordinationUnavailable


class PromptHandler(SequentialThreadingHandler):
    """kazoo's threads, with a bound on waiting for one answer.

    kazoo waits a whole session time-out for a server to accept a connection and to answer the first message. A server
    that has just restarted may never answer, and the session would expire meanwhile.
    """

    def __init__(self, answer_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls
        self._answer_timeout_s = answer_timeout_s
        self.trouble = ""
        """Why the last attempt to connect failed, for messages."""

    def select(self, *arguments: Any, **named: Any) -> Any:
        """Bound waits for a single socket, which are for (the rest of) a message; the main loop waits for two."""
        if len(arguments) == 4 and len(arguments[0]) + len(arguments[1]) == 1 and arguments[3] is not None:
            arguments = (*arguments[:3], min(arguments[3], self._answer_timeout_s))
        return super().select(*arguments, **named)

    def create_connection(self, *arguments: Any, **named: Any) -> Any:
        """Connect, within the answer time-out."""
        named["timeout"] = min(named.get("timeout") or self._answer_timeout_s, self._answer_timeout_s)
        try:
            connection = self._secured(**named) if self._tls else super().create_connection(*arguments, **named)
        except Exception as error:
            self.trouble = (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)
            raise
        self.trouble = ""
        return connection

    def _secured(self, address: tuple[str, int], hostname: str, timeout: float, **_files: Any) -> socket.socket:
        """As kazoo, but closes the socket on failure, and uses the TLS files read at the start."""
        assert self._tls is not None
        plain = socket.create_connection(address, timeout=timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise


# pyright: reportUnknownLambdaType=false
# (kazoo declares no types for its asynchronous requests)


LOGGER = logging.getLogger("statechannel.zookeeper")

RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5}
CLOSE_TIMEOUT_S = 2.0
GONE = (
    ConnectionClosedError,
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    SessionExpiredError,
)
ACCESS = (InvalidACLError, NoAuthError)
FOR_ALL = (ACL(Permissions.READ | Permissions.CREATE, ANYONE_ID_UNSAFE),)
BYSTANDERS = (RolledBackError, RuntimeInconsistency)

Watch = Callable[[object], None]
"""Called once, on one of kazoo's threads, when the value read has changed or the link was lost."""
Operation = Callable[[TransactionRequest], None]
"""One step of a transaction; see `check`, `put`, `make` and `drop`."""


class Link(Enum):
    """A change of the link."""

    UP = "up"
    """It came up."""
    DOUBTFUL = "doubtful"
    """A request was not answered in time; watches are still there."""
    LOST = "lost"
    """It is gone, and every watch with it."""


class Denied(CoordinationUnavailable):
    """The server answers, but our credentials do not admit us to these nodes: an operator must act."""


class Refused(Exception):
    """A transaction changed nothing, because its step `index` failed with `cause`. Never leaves the adapter."""

    def __init__(self, index: int, cause: KazooException) -> None:
        super().__init__(f"step {index}: {cause!r}")
        self.index = index
        self.cause = cause


def check(path: str, version: int = -1) -> Operation:
    """Fail unless the node exists (and has this version)."""
    return lambda transaction: transaction.check(path, version)


def put(path: str, data: bytes, version: int = -1) -> Operation:
    """Write a node that exists (and has this version): its version rises by one."""
    return lambda transaction: transaction.set_data(path, data, version)


def make(path: str, data: bytes, *, ephemeral: bool) -> Operation:
    """Create a node that does not exist."""
    return lambda transaction: transaction.create(path, data, ephemeral=ephemeral)


def drop(path: str, version: int = -1) -> Operation:
    """Delete a node that exists (and has this version)."""
    return lambda transaction: transaction.delete(path, version)


class Precondition(NamedTuple):
    """The first step of every transaction, and what to raise if it fails."""

    step: Operation
    failed: Callable[[], Awaitable[CoordinationError]]


class Session:
    """One kazoo client; calls `link_changed` on the loop when the link came up, was lost or is in doubt."""

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        request_timeout_s: float,
        client_settings: Mapping[str, Any],
        link_changed: Callable[[Link], None],
    ) -> None:
        arguments = client_arguments(client_settings)
        self._tls = tls_context(arguments)
        self.default_acl: list[ACL] = arguments["default_acl"]
        self._settings: dict[str, Any] = {
            "randomize_hosts": True,
            **arguments,
            "hosts": hosts,
            "timeout": session_timeout_s,
            "connection_retry": RECONNECT,
        }
        self.address = hosts
        self._timeout_s = request_timeout_s
        self._link_changed = link_changed
        self._client: KazooClient | None = None
        self._handler: PromptHandler | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.precondition: Precondition | None = None
        """The first step of every transaction, once the root is identified."""

    @property
    def connected(self) -> bool:
        """Whether kazoo believes at this moment that it is connected."""
        return self._client is not None and self._client.connected

    @property
    def trouble(self) -> str:
        """Why the last attempt to connect failed, empty if it did not; for messages."""
        return self._handler.trouble if self._handler is not None else ""

    @property
    def session_id(self) -> int | None:
        """The id of the present session, as `ephemeralOwner` shows it; None while not connected."""
        identity = self._client.client_id if self._client is not None else None
        return None if identity is None else identity[0]

    def open(self) -> None:
        """Begin to connect; `link_changed` reports success."""
        self._loop = asyncio.get_running_loop()
        self._handler = PromptHandler(self._timeout_s, self._tls)
        self._client = client = KazooClient(handler=self._handler, **self._settings)
        client.add_listener(partial(self._tell, client))
        client.start_async()

    def revive(self) -> None:
        """Replace a client that ended: refused authentication, an unreadable answer, or `abandon`.

        Call it when the link has been down for a while, since a client that has just started looks the same. A client
        that has not given up forgets how far it has read, since a server with older or deleted data refuses a client
        that has read further. This is safe: reads may lag anyway, and writes are checked.
        """
        client = self._client
        if client is None:
            return
        if client.client_state not in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
            client.last_zxid = 0
            return
        LOGGER.warning("ZooKeeper client of %s gave up (%s); starting another", self.address, client.client_state)
        _in_background(_finish, client)
        self.open()

    async def read(self, path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeStat]:
        """A node's data and state. Raises NoNodeError."""
        return await self._ask(lambda client: client.get_async(path, watch=watch))

    async def stat(self, path: str, watch: Watch | None = None) -> ZnodeStat | None:
        """A node's state, or None if it does not exist."""
        return await self._ask(lambda client: client.exists_async(path, watch=watch))

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names below a node. Raises NoNodeError."""
        return await self._ask(lambda client: client.get_children_async(path, watch=watch))

    async def await_deletion(self, path: str, watch: Watch) -> ZnodeStat:
        """The state of a node without children; `watch` tells when it is deleted, not when it is written.

        Raises NoNodeError.
        """
        _, state = await self._ask(lambda client: client.get_children_async(path, watch=watch, include_data=True))
        return state

    async def acl(self, path: str) -> list[ACL]:
        """Who may do what with a node. Raises NoNodeError."""
        acl, _ = await self._ask(lambda client: client.get_acls_async(path))
        return acl

    async def create(self, path: str, data: bytes, *, for_all: bool = False, ephemeral: bool = False) -> None:
        """Create a node, under the ACL of the settings. Raises NodeExistsError, NoNodeError (no parent).

        `for_all`: others, such as brokers of other clusters, may read it and create nodes in it.
        """
        acl = [*self.default_acl, *FOR_ALL] if for_all else None
        await self._ask(lambda client: client.create_async(path, data, acl=acl, ephemeral=ephemeral))

    async def delete(self, path: str, version: int) -> None:
        """Delete a node of this version. Raises BadVersionError, NoNodeError."""
        await self._ask(lambda client: client.delete_async(path, version=version))

    async def _ask(self, issue: Callable[[KazooClient], Any]) -> Any:
        """Send one request. Raises CoordinationUnavailable, or kazoo's own error if the server refused it."""
        client, loop = self._client, asyncio.get_running_loop()
        if client is None or self._closed or not client.connected:
            raise CoordinationUnavailable(f"not connected to ZooKeeper at {self.address}")
        answer: asyncio.Future[Any] = loop.create_future()

        def answered(result: IAsyncResult) -> None:
            post(loop, _settle, answer, result)

        issue(client).rawlink(answered)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError:
            self._link_changed(Link.DOUBTFUL)
            raise CoordinationUnavailable(
                f"ZooKeeper at {self.address} did not answer within {self._timeout_s:g} s"
            ) from None
        except AuthFailedError as error:
            raise Denied(
                f"ZooKeeper at {self.address} rejected our credentials: correct `auth_data` or `sasl_options` in the "
                "zookeeper settings, or have the server's authentication corrected"
            ) from error
        except GONE as error:
            raise CoordinationUnavailable(f"lost the connection to ZooKeeper at {self.address}: {error!r}") from error
        except ACCESS as error:
            raise self._denied(error) from error

    async def commit(self, *operations: Operation) -> Sequence[Any]:
        """All steps in one transaction, or none. Raises Refused, CoordinationUnavailable, or `precondition`'s error."""

        precondition = self.precondition
        before = () if precondition is None else (precondition.step,)

        def issue(client: KazooClient) -> Any:
            transaction = client.transaction()
            for operation in (*before, *operations):
                operation(transaction)
            return transaction.commit_async()

        results: Sequence[Any] = await self._ask(issue)
        # kazoo returns errors as results; steps other than the failed one get one of BYSTANDERS
        culprits = [
            (index - len(before), result)
            for index, result in enumerate(results)
            if isinstance(result, KazooException) and not isinstance(result, BYSTANDERS)
        ]
        if culprits:
            index, cause = culprits[0]
            if isinstance(cause, ACCESS):
                raise self._denied(cause)
            if precondition is not None and index < 0:
                raise await precondition.failed()
            raise Refused(index, cause)
        if any(isinstance(result, Exception) for result in results) or len(results) != len(before) + len(operations):
            raise CoordinationUnavailable(f"ZooKeeper at {self.address} gave an unclear answer: {results!r}")
        return results[len(before) :]

    def _denied(self, error: KazooException) -> Denied:
        if isinstance(error, InvalidACLError):
            return Denied(
                f"ZooKeeper at {self.address} does not know this broker's identity, so its nodes cannot belong to it: "
                "give credentials that it accepts (`auth_data`, `sasl_options` or a TLS certificate), or correct "
                "`acl`, in the zookeeper settings"
            )
        return Denied(
            f"ZooKeeper at {self.address} does not let us use the nodes of this cluster: in the zookeeper settings, "
            "give the credentials that the other brokers have (`auth_data`, `sasl_options` or a TLS certificate), or "
            "have their ACLs corrected by an administrator (`setAcl -R` in zkCli.sh)"
        )

    def abandon(self) -> bool:
        """End the session, from any thread, without waiting. Returns True if there was one. `revive` opens another."""
        client = self._client
        if client is None:
            return False
        _in_background(_finish, client)
        return True

    async def close(self) -> None:
        """End the session, at once if the server can be reached. Idempotent."""
        client, self._client, self._closed = self._client, None, True
        if client is None:
            return
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def finish() -> None:
            _finish(client)
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        _in_background(finish)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await done.wait()

    def _tell(self, client: KazooClient, state: str) -> None:
        """Called on kazoo's thread; ignores clients that were replaced."""
        if client is self._client or self._client is None:
            post(self._loop, self._link_changed, Link.UP if state == KazooState.CONNECTED else Link.LOST)


def post(loop: asyncio.AbstractEventLoop | None, call: Callable[..., object], *arguments: object) -> None:
    """Call it on the loop, from another thread; does nothing if the loop is closed."""
    if loop is not None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call, *arguments)


def _settle(answer: asyncio.Future[Any], result: IAsyncResult) -> None:
    if answer.done():
        return
    try:
        answer.set_result(result.get_nowait())
    except Exception as error:  # noqa: BLE001 (handed on to the caller)
        answer.set_exception(error)


def _in_background(work: Callable[..., None], *arguments: object) -> None:
    """Run on a daemon thread, since kazoo may block for a whole session time-out."""
    threading.Thread(target=work, args=arguments, name="zookeeper-close", daemon=True).start()


def _finish(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:  # noqa: BLE001 (we are done with it either way)
        LOGGER.debug("closing a ZooKeeper client: %r", error)
