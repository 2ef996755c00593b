"""Accepts connections to a broker's endpoints, and keeps enough descriptors free for the log and coordination.

Up to the limit anybody gets in, beyond it only a few for health, readiness and metrics. When room is short, idle
connections are closed, the longest idle first. It checks all connections regularly, ends slow ones (`connection.py`),
and counts the descriptors that the process itself has open: these reduce the room for clients.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import cast

from uvicorn import Config
from uvicorn.server import ServerState

from loadmanager.client.cluster import header_of
from loadmanager.client.redirection import CLUSTER_HEADER
from loadmanager_api.access.tls import Tls
from loadmanager_api.connection import Bounds, Connection
from loadmanager_api.http_counts import HttpCounts
from statechannel.law.partition import ClusterIdentity

RESERVED_CONNECTIONS = 16
"""Connections beyond the limit, for paths that must stay reachable; the oldest of them makes room for the next."""

ACCEPTED_A_TURN = 64
LOOK_S = 1.0
"""At the latest after so long: clients see no older date."""

CROWDED = 7 / 8
"""Above this share of the limit, or when a client was rejected, a quarter of the connections is closed if idle."""

OWN_SHARE, OWN_AT_MOST = 1 / 8, 128
"""Descriptors of the process that no client gets: this share of `ulimit -n`, with an upper bound.

A quarter of them is for reserved connections, a quarter for what the process opens between two checks.
"""

AT_WORK_S = 1.0
NO_DESCRIPTOR_S = 0.1
SOON_S = 0.05

Headers = list[tuple[bytes, bytes]]
_CLUSTER = CLUSTER_HEADER.lower().encode()
Make = Callable[[Config, ServerState, Bounds, HttpCounts, bool, Callable[[Connection], None]], Connection]


class _State(ServerState):
    """Uvicorn's state, with the headers of every answer: the date, and the cluster as soon as it is known."""

    def __init__(self, cluster: Callable[[], ClusterIdentity | None]) -> None:
        self._cluster = cluster
        self._known: ClusterIdentity | None = None
        self._headers: Headers = []
        super().__init__()

    @property
    def default_headers(self) -> Headers:  # pyright: ignore[reportIncompatibleVariableOverride]
        cluster = self._cluster()
        if cluster is not self._known:
            self._known = cluster
            self._add(self._headers[:1])
        return self._headers

    @default_headers.setter
    def default_headers(self, headers: Headers) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._add(headers)

    def _add(self, headers: Headers) -> None:
        known = [] if self._known is None else [(_CLUSTER, header_of(self._known).encode())]
        self._headers = [*headers, *known]


class Listener:
    """Serves one listening socket from `start` to `close`."""

    def __init__(
        self,
        listening: socket.socket,
        config: Config,
        bounds: Bounds,
        connections: int,
        counts: HttpCounts,
        make: Make = Connection,
        tls: Tls | None = None,
        cluster: Callable[[], ClusterIdentity | None] = lambda: None,
    ) -> None:
        if not config.loaded:
            config.load()
        self._state = _State(cluster)
        self._connections = cast("set[Connection]", self._state.connections)
        self._listening = listening
        self._config = config
        self._bounds = bounds
        self._limit = connections
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._joining: set[asyncio.Task[None]] = set()
        self._counts = counts
        self._ordinary = 0
        self._room = connections
        """The limit, or less if the process itself has many descriptors open."""
        self._reserved: dict[Connection, None] = {}
        self._full = False
        self._emptied = asyncio.Event()

    def start(self) -> None:
        """Begin to accept."""
        self._listening.setblocking(False)
        self._look()
        self._loop.add_reader(self._listening, self._accept)

    async def close(self, timeout_s: float) -> None:
        """Stop accepting; answers on their way have `timeout_s`."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for connection in tuple(self._connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._connections or self._joining:
                    self._emptied.clear()
                    await self._emptied.wait()
        for connection in tuple(self._connections):
            connection.hang_up()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=SOON_S)
        for task in (*self._state.tasks, *self._joining):
            task.cancel()
        self._looking.cancel()

    def unsent_bytes(self) -> int:
        """Bytes of answers that clients have not taken."""
        return sum(connection.unsent_bytes() for connection in self._connections)

    # --- letting in

    def _accept(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                client, _ = self._listening.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError:  # the process has no descriptor left
                self._loop.remove_reader(self._listening)
                self._loop.call_later(NO_DESCRIPTOR_S, self._accept_again)
                return
            if not self._let_in(client):
                return  # whoever made room for it goes in the next turn

    def _accept_again(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _let_in(self, client: socket.socket) -> bool:
        """As one of many, as one of the few beyond, or not at all; whether nobody had to go for it."""
        own = own_descriptors()
        reserved = self._ordinary >= self._room or not leaves(own, client.fileno())
        if reserved and not self._full:
            self._full = True
            self._loop.call_later(SOON_S, self._make_room)
        if reserved and not leaves(own // 2, client.fileno()):
            self._counts.not_let_in += 1
            client.close()
            return False
        client.setblocking(False)
        self._counts.connections += 1
        connection = self._make(self._config, self._state, self._bounds, self._counts, reserved, self._lost)
        task = self._loop.create_task(self._join(client, connection))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)
        if not reserved:
            self._ordinary += 1
            return True
        self._counts.beyond += 1
        self._reserved[connection] = None
        return self._few(min(RESERVED_CONNECTIONS, own // 4))

    def _few(self, most: int) -> bool:
        """Whether at most so many are beyond the limit; else the oldest without an answer under way is closed."""
        if len(self._reserved) <= most:
            return True
        oldest = next((each for each in self._reserved if not each.answering), next(iter(self._reserved)))
        del self._reserved[oldest]
        oldest.hang_up()
        return False

    async def _join(self, client: socket.socket, connection: Connection) -> None:
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: connection, client)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: connection,
                    client,
                    ssl=self._tls.context,
                    ssl_handshake_timeout=self._bounds.head_timeout_s,
                    ssl_shutdown_timeout=SOON_S,
                )
        except OSError:  # it was gone already, or its handshake failed
            client.close()
            self._lost(connection)

    def _lost(self, connection: Connection) -> None:
        self._counts.connections -= 1
        if not connection.reserved:
            self._ordinary -= 1
        self._reserved.pop(connection, None)
        self._emptied.set()

    # --- looking

    def _look(self) -> None:
        self._looking = self._loop.call_later(min(LOOK_S, self._bounds.shortest_s / 4), self._look)
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
        if self._tls is not None:
            self._tls.look()
            self._counts.certificate_until_s = self._tls.until_s
        now_s = self._loop.time()
        for connection in tuple(self._connections):
            connection.look(now_s)
        self._keep_off()
        if self._ordinary > CROWDED * self._limit:
            self._make_room()

    def _keep_off(self) -> None:
        """See what the process itself has open, and end the connections for which that leaves no room any more: those
        that nobody works at first, the longest first."""
        own, most = own_descriptors(), _descriptors()
        self._room = self._limit
        if most == sys.maxsize or not any(map(_is_open, range(most - own, most))):
            return  # so many are free, at least
        not_clients = _open_descriptors(most) - self._counts.connections
        self._room = min(self._limit, max(RESERVED_CONNECTIONS, most - own - not_clients))
        too_many = self._ordinary - self._room
        if too_many > 0:
            ordinary = [each for each in self._connections if not each.reserved]
            for connection in sorted(ordinary, key=lambda each: each.at_work_s)[:too_many]:
                connection.hang_up()

    def _make_room(self) -> None:
        """Close the connections that have been idle longest; one that was active a moment ago stays."""
        self._full = False
        before_s = self._loop.time() - AT_WORK_S
        idle = [(since_s, each) for each in self._connections if (since_s := each.idle_since_s) is not None]
        waited = sorted((found for found in idle if found[0] < before_s), key=lambda found: found[0])
        for _, connection in waited[: len(self._connections) // 4 + 1]:
            connection.transport.close()


def own_descriptors() -> int:
    """How many of this process's descriptors no client gets."""
    return min(int(_descriptors() * OWN_SHARE), OWN_AT_MOST)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _open_descriptors(most: int) -> int:
    try:
        return len(os.listdir("/dev/fd")) - 1  # itself
    except OSError:  # not one is left to look with
        return most


def leaves(own: int, number: int) -> bool:
    """Whether so many descriptors are free beside this connection's: a new one gets the lowest free number."""
    return number < _descriptors() - own


def _descriptors() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
