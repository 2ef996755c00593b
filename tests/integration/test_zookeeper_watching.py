"""What it costs to follow many brokers on a real ZooKeeper: requests for each change, counted where they are sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from stack.servers import ZooKeeperServer
from statechannel.adapters.zookeeper.coordination import ZooKeeperCoordination
from statechannel.adapters.zookeeper.watches import LISTED_NAMES_PER_S
from statechannel.errors import CoordinationUnavailable
from statechannel.law.record import BrokerId
from statechannel.ports import Connection
from tests.faults import Cut, TcpProxy, proxy_to
from tests.servers import coordination_root, shared_zookeeper

pytestmark = pytest.mark.zookeeper

WAIT_S = 60
BROKERS = 200


class Cluster:
    """A client that keeps many brokers registered, and one that only follows, through a proxy."""

    def __init__(self, member: ZooKeeperCoordination, follower: ZooKeeperCoordination, proxy: TcpProxy) -> None:
        self.member = member
        self.follower = follower
        self.proxy = proxy
        self.brokers: list[BrokerId] = []
        self.sent = 0
        ask = follower._session._ask

        async def counted(issue):
            self.sent += 1
            return await ask(issue)

        follower._session._ask = counted  # type: ignore[method-assign]

    async def join(self, name: str) -> BrokerId:
        broker = await self.member.start_incarnation(name, above=0)
        await self.member.register(broker, b"first")
        return broker

    async def costs(self, change: Callable[[], Awaitable[object]], seen: Callable[[], bool]) -> int:
        """How many requests the follower sends for a change, until all is quiet again."""
        sent, counted = self.sent, self.follower.counts.reads
        await change()
        await until(self.follower, seen)
        await self.quiet()
        assert self.follower.counts.reads - counted == self.sent - sent, "the counter tells something else"
        return self.sent - sent - LEADER_CAME_AND_WENT

    async def quiet(self) -> None:
        """Until nothing is left to be read: who leads changes after everything else, and is seen to."""
        leadership = await self.member.campaign(self.brokers[0])
        assert leadership is not None
        await until(self.follower, lambda: self.follower.leadership == leadership)
        await self.member.resign(leadership)
        await until(self.follower, lambda: self.follower.leadership is None)
        live, loop = self.follower._watches._live, asyncio.get_running_loop()
        async with asyncio.timeout(WAIT_S):
            while live.stale or loop.time() <= live._list_again_s:  # a list may be put off until then
                await asyncio.sleep(0.01)

    def data(self, broker: BrokerId) -> bytes:
        return self.follower.members[broker.name].data


LEADER_CAME_AND_WENT = 3
"""Requests: read the one that came, find it gone, and await the next."""


async def until(client: ZooKeeperCoordination, holds: Callable[[], bool]) -> None:
    changed = asyncio.Event()
    client.on_change(changed.set)
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await changed.wait()
            changed.clear()


@pytest.fixture
def zookeeper_server(pytestconfig: pytest.Config) -> ZooKeeperServer:
    return shared_zookeeper(pytestconfig)


@asynccontextmanager
async def started(address: str, root: str, request_timeout_s: float = 30.0) -> AsyncGenerator[ZooKeeperCoordination]:
    client = ZooKeeperCoordination(address, root=root, session_timeout_s=10, request_timeout_s=request_timeout_s)
    await client.start(timeout_s=WAIT_S)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def cluster_on(server: ZooKeeperServer) -> AsyncGenerator[Cluster]:
    root = coordination_root("watching")
    async with (
        proxy_to(server.address) as proxy,
        started(server.address, root) as member,
        started(proxy.address, root, request_timeout_s=1.0) as follower,
    ):
        cluster = Cluster(member, follower, proxy)
        cluster.brokers = await asyncio.gather(*(cluster.join(f"broker-{number}:1") for number in range(BROKERS)))
        await until(follower, lambda: len(follower.members) == BROKERS)
        await cluster.quiet()
        yield cluster


@pytest.mark.slow
async def test_a_change_costs_a_few_reads_however_many_brokers_there_are(zookeeper_server):
    async with cluster_on(zookeeper_server) as cluster:
        member, follower, (first, second, *_) = cluster.member, cluster.follower, cluster.brokers

        # the list of names, the state of the node, its data
        assert await cluster.costs(lambda: member.register(first, b"new"), lambda: cluster.data(first) == b"new") <= 3
        # perhaps the state of a node that is gone, the list of names
        assert await cluster.costs(lambda: member.unregister(second), lambda: second.name not in follower.members) <= 2
        assert await cluster.costs(lambda: cluster.join(second.name), lambda: second.name in follower.members) <= 3
        assert len(follower.members) == BROKERS


@pytest.mark.slow
async def test_proofs_cost_those_who_follow_nothing(zookeeper_server):
    async with cluster_on(zookeeper_server) as cluster:

        async def all_prove() -> None:
            await asyncio.gather(*(cluster.member.prove(broker) for broker in cluster.brokers))

        assert await cluster.costs(all_prove, lambda: True) == 0


@pytest.mark.slow
async def test_many_that_register_again_at_once_share_the_lists_of_names(zookeeper_server):
    async with cluster_on(zookeeper_server) as cluster:
        again = cluster.brokers[:100]

        async def register() -> None:
            await asyncio.gather(*(cluster.member.register(broker, b"new") for broker in again))

        began_s = time.monotonic()
        cost = await cluster.costs(register, lambda: all(cluster.data(broker) == b"new" for broker in again))
        lists = cost - 2 * len(again)  # for the state of each node, and its data
        assert 1 <= lists <= 2 + (time.monotonic() - began_s) * LISTED_NAMES_PER_S / BROKERS


@pytest.mark.slow
async def test_timed_out_request_reads_nothing_anew_and_keeps_the_watches(zookeeper_server):
    async with cluster_on(zookeeper_server) as cluster:
        follower, (first, *_) = cluster.follower, cluster.brokers

        async def time_out() -> None:
            cluster.proxy.cut(Cut.BLACKHOLE)
            with pytest.raises(CoordinationUnavailable):
                await follower.identity()
            assert follower.connection is Connection.SUSPENDED
            cluster.proxy.heal()

        before = cluster.sent
        await time_out()
        await until(follower, lambda: follower.connection is Connection.CONNECTED)
        assert cluster.sent - before < 10, "one that fails, and a look at the leader until that answers"
        await cluster.member.register(first, b"afterwards")
        await until(follower, lambda: cluster.data(first) == b"afterwards")


@pytest.mark.slow
async def test_after_a_lost_link_nodes_are_checked_and_only_changes_are_read(zookeeper_server):
    async with cluster_on(zookeeper_server) as cluster:
        member, follower, (first, second, third, *_) = cluster.member, cluster.follower, cluster.brokers
        before = cluster.sent
        cluster.proxy.cut(Cut.RESET)
        await until(follower, lambda: follower.connection is Connection.SUSPENDED)
        await member.register(first, b"unseen")
        await member.unregister(second)
        await cluster.join("another:1")
        cluster.proxy.heal()
        await until(follower, lambda: follower.connection is Connection.CONNECTED)
        assert cluster.data(first) == b"unseen"
        assert second.name not in follower.members
        assert "another:1" in follower.members
        assert cluster.sent - before < BROKERS + 20
        await member.register(third, b"watched again")
        await until(follower, lambda: cluster.data(third) == b"watched again")


async def test_registration_without_an_answer_is_shown_after_the_next_proof(zookeeper_server):
    """The data of a node that others have read never changes: they would not read it again."""
    root = coordination_root("watching")
    async with (
        proxy_to(zookeeper_server.address) as proxy,
        started(proxy.address, root) as member,
        started(zookeeper_server.address, root) as follower,
    ):
        broker = await member.start_incarnation("broker:1", above=0)
        await member.register(broker, b"behind")
        await until(follower, lambda: "broker:1" in follower.members)
        proxy.cut(Cut.BLACKHOLE)
        registering = asyncio.create_task(member.register(broker, b"well"))
        await asyncio.sleep(0)  # it is sent, into the void
        proxy.cut(Cut.RESET)
        proxy.heal()
        with pytest.raises(CoordinationUnavailable):
            await registering
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await member.prove(broker)
                    break
                except CoordinationUnavailable:
                    await asyncio.sleep(0.02)
        await until(follower, lambda: follower.members["broker:1"].data == b"well")
