"""Where clients of the ZooKeeper adapter meet: the test run's server, below a root of their own, each by a proxy."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

from statechannel.adapters.zookeeper.coordination import ZooKeeperCoordination
from statechannel.ports import Coordination
from tests.contracts.hanging import abandon_from_a_thread

if TYPE_CHECKING:
    from tests.faults import TcpProxy


class ZooKeeperBackend:
    session_timeout_s = 4.0

    def __init__(self, address: str, root: str) -> None:
        self._address = address
        self._root = root
        self._clients: dict[ZooKeeperCoordination, TcpProxy] = {}

    async def open(self) -> ZooKeeperCoordination:
        from tests.faults import TcpProxy

        proxy = TcpProxy(self._address)
        await proxy.start()
        client = ZooKeeperCoordination(
            proxy.address, root=self._root, session_timeout_s=self.session_timeout_s, request_timeout_s=30.0
        )
        self._clients[client] = proxy
        await client.start(timeout_s=60)
        return client

    def abandon(self, client: Coordination) -> None:
        abandon_from_a_thread(client)

    async def expire(self, client: Coordination) -> None:
        """Cut it off and end its session behind its back, until another client has seen a liveness node vanish."""
        from tests.faults import Cut

        assert isinstance(client, ZooKeeperCoordination)
        witness = await self.open()
        name = f"witness-of-expiry-{uuid.uuid4().hex}"
        await client.register(await client.start_incarnation(name, above=0), b"")
        seen = asyncio.Event()
        witness.on_change(seen.set)
        async with asyncio.timeout(60):
            while name not in witness.members:
                await seen.wait()
                seen.clear()
            self._clients[client].cut(Cut.BLACKHOLE)
            await asyncio.to_thread(self._end_session, client)
            while name in witness.members:
                await seen.wait()
                seen.clear()
        self._clients[client].cut(Cut.RESET)  # a healed connection would still carry what was written before
        self._clients[client].heal()

    async def wipe(self) -> None:
        await asyncio.to_thread(self._delete_root)

    def _delete_root(self) -> None:
        client = KazooClient(self._address)
        client.start(60)
        client.delete(self._root, recursive=True)
        client.stop()
        client.close()

    def _end_session(self, client: ZooKeeperCoordination) -> None:
        """As the server does after the session time-out, without having to wait for it."""
        connected = client._session._client
        assert connected is not None
        twin = KazooClient(self._address, client_id=connected.client_id)
        twin.start(60)
        twin.stop()
        twin.close()

    async def aclose(self) -> None:
        for client, proxy in self._clients.items():
            await client.close()
            await proxy.aclose()


@asynccontextmanager
async def coordination_backend(request: pytest.FixtureRequest) -> AsyncGenerator[ZooKeeperBackend]:
    from tests.servers import coordination_root, shared_zookeeper

    backend = ZooKeeperBackend(shared_zookeeper(request.config).address, coordination_root("contract"))
    try:
        yield backend
    finally:
        await backend.aclose()


COORDINATIONS = {"zookeeper": coordination_backend}
