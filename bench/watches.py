"""What following 1,000 brokers costs one of them on ZooKeeper: requests for each change, counted where they are sent.

One client registers all the brokers, another follows. Their number of requests does not depend on the machine. Last,
what the server keeps in memory for the watches of many followers. `kind` does not matter: SQLite needs no watches.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from bench.figures import emit
from stack.servers import ZooKeeperServer
from statechannel.adapters.zookeeper.coordination import ZooKeeperCoordination
from statechannel.errors import CoordinationUnavailable
from statechannel.law.record import BrokerId
from statechannel.ports import Connection

BROKERS = 1_000
CHANGES, CHANGES_S = 200, 10.0
FOLLOWERS = 50
QUIET_S = 2.0


def run(kind: str) -> None:
    """All figures of this bench."""
    with tempfile.TemporaryDirectory() as directory:
        server = ZooKeeperServer(Path(directory))
        server.start()
        try:
            asyncio.run(_follow(server))
        finally:
            server.kill()


class _Follower:
    """A client whose requests are counted."""

    def __init__(self, client: ZooKeeperCoordination) -> None:
        self.client = client
        self.sent = 0
        session: Any = client._session  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it sends everything
        ask = session._ask  # noqa: SLF001

        async def counted(issue: Callable[[Any], Any]) -> Any:
            self.sent += 1
            return await ask(issue)

        session._ask = counted  # noqa: SLF001

    async def cost(self, change: Callable[[], Awaitable[object]]) -> int:
        """What is sent from the beginning of a change until nothing more is."""
        before = self.sent
        await change()
        seen = -1
        while seen != self.sent:
            seen = self.sent
            await asyncio.sleep(QUIET_S)
        return self.sent - before


async def _follow(server: ZooKeeperServer) -> None:
    async with _client(server) as member, AsyncExitStack() as others:
        brokers = [await member.start_incarnation(f"broker-{n:04}.bench:6650", above=0) for n in range(BROKERS)]
        await asyncio.gather(*(member.register(broker, b"x" * 300) for broker in brokers))
        client = await others.enter_async_context(_client(server, request_timeout_s=1.0))
        follower = _Follower(client)
        _show("one registers again", await follower.cost(lambda: member.register(brokers[0], b"y" * 300)))
        _show("one leaves", await follower.cost(lambda: member.unregister(brokers[0])))
        _show("one arrives", await follower.cost(lambda: member.register(brokers[0], b"x" * 300)))
        changes = await follower.cost(lambda: _roll(member, brokers))
        _show(f"{CHANGES} register again within {CHANGES_S:g} s", changes, CHANGES)
        _show("one request is not answered in time", await follower.cost(lambda: _time_out(server, client)))
        await _weigh(server, others)


def _show(what: str, sent: int, changes: int = 1) -> None:
    figure = f"{what}: requests of each of {BROKERS:,} brokers, zookeeper"
    each = round(sent / changes, 2)
    emit("watches", figure, sent, "requests", in_the_ensemble=sent * BROKERS, a_change=each)


async def _roll(member: ZooKeeperCoordination, brokers: list[BrokerId]) -> None:
    for broker in brokers[:CHANGES]:
        await member.register(broker, b"z" * 300)
        await asyncio.sleep(CHANGES_S / CHANGES)


async def _time_out(server: ZooKeeperServer, client: ZooKeeperCoordination) -> None:
    server.suspend()
    try:
        with suppress(CoordinationUnavailable):
            await client.identity()
    finally:
        server.resume()
    changed = asyncio.Event()
    client.on_change(changed.set)
    while client.connection is not Connection.CONNECTED:
        await changed.wait()
        changed.clear()


async def _weigh(server: ZooKeeperServer, others: AsyncExitStack) -> None:
    before = await asyncio.to_thread(_heap_bytes, server)
    for _ in range(FOLLOWERS):
        await others.enter_async_context(_client(server))
    grown = await asyncio.to_thread(_heap_bytes, server) - before
    figure = f"server memory for a broker that another follows, {FOLLOWERS} followers of {BROKERS:,}"
    emit("watches", figure, grown / (FOLLOWERS * BROKERS), "bytes", mib_in_all=round(grown / 2**20, 1))


def _heap_bytes(server: ZooKeeperServer) -> int:
    """What lives on the server's heap after a full collection."""
    assert server.identity is not None
    ask = ["jcmd", str(server.identity.pid), "GC.class_histogram"]
    shown = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60).stdout
    return int(shown.splitlines()[-1].split()[2])


@asynccontextmanager
async def _client(server: ZooKeeperServer, request_timeout_s: float = 60.0) -> AsyncGenerator[ZooKeeperCoordination]:
    client = ZooKeeperCoordination(
        server.address, root="/bench", session_timeout_s=30.0, request_timeout_s=request_timeout_s
    )
    await client.start(60.0)
    try:
        yield client
    finally:
        await client.close()
