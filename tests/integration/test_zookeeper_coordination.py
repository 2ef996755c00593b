"""`ZooKeeperCoordination` against a real server that is cut off or killed. The rest is in `tests/contracts`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from stack.servers import ZooKeeperServer, free_port
from statechannel.adapters.zookeeper import ZooKeeperCoordination
from statechannel.errors import CoordinationError, CoordinationUnavailable, Fenced, InvalidName
from statechannel.ports import Connection
from statechannel.record import Broker
from tests.faults import Cut, TcpProxy, proxy_to
from tests.servers import SHORTEST_SESSION_S, coordination_root, shared_zookeeper

pytestmark = pytest.mark.zookeeper

WAIT_S = 20
NAME = "broker-a:8080"


@pytest.fixture
def zookeeper_server(pytestconfig: pytest.Config) -> ZooKeeperServer:
    return shared_zookeeper(pytestconfig)


@pytest.fixture
def root() -> str:
    return coordination_root("integration")


@asynccontextmanager
async def started(
    address: str,
    root: str,
    *,
    session_timeout_s: float = SHORTEST_SESSION_S,
    request_timeout_s: float = 2.0,
) -> AsyncGenerator[ZooKeeperCoordination]:
    client = ZooKeeperCoordination(
        address, root=root, session_timeout_s=session_timeout_s, request_timeout_s=request_timeout_s
    )
    await client.start(timeout_s=10)
    try:
        yield client
    finally:
        await client.close()


async def until(client: ZooKeeperCoordination, holds: Callable[[], bool]) -> None:
    changed = asyncio.Event()
    client.on_change(changed.set)
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await changed.wait()
            changed.clear()


async def registered(client: ZooKeeperCoordination, data: bytes = b"data") -> Broker:
    broker = await client.start_incarnation(NAME, above=0)
    await client.register(broker, data)
    return broker


async def proven(client: ZooKeeperCoordination, broker: Broker) -> None:
    """Try to prove until it works."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await client.prove(broker)
            except CoordinationUnavailable:
                await asyncio.sleep(0.01)


async def lose_session(proxy: TcpProxy, witness: ZooKeeperCoordination) -> None:
    """Cut silently until the others saw the node vanish; what was held back never arrives."""
    proxy.cut(Cut.BLACKHOLE)
    await until(witness, lambda: NAME not in witness.members)
    proxy.cut(Cut.RESET)


# --- cut off
async def test_a_broker_that_lost_its_session_registers_again_by_a_proof_and_keeps_its_number(zookeeper_server, root):
    async with (
        proxy_to(zookeeper_server.address) as proxy,
        started(proxy.address, root) as client,
        started(zookeeper_server.address, root) as witness,
    ):
        broker = await registered(client, b"its data")
        await until(witness, lambda: NAME in witness.members)
        await lose_session(proxy, witness)
        proxy.heal()
        await proven(client, broker)
        await until(witness, lambda: NAME in witness.members)
        assert witness.members[NAME].broker == broker
        assert witness.members[NAME].data == b"its data"


async def test_a_broker_that_was_fenced_while_cut_off_learns_it_from_its_next_proof(zookeeper_server, root):
    async with (
        proxy_to(zookeeper_server.address) as proxy,
        started(proxy.address, root) as client,
        started(zookeeper_server.address, root) as successor,
    ):
        broker = await registered(client)
        proxy.cut(Cut.BLACKHOLE)
        second = await registered(successor)
        proxy.heal()
        with pytest.raises(Fenced):
            await proven(client, broker)
        await successor.prove(second)
        assert second.incarnation > broker.incarnation


async def test_silence_fails_a_request_after_its_time_out_and_the_link_counts_as_suspended(zookeeper_server, root):
    async with (
        proxy_to(zookeeper_server.address) as proxy,
        started(proxy.address, root, session_timeout_s=10, request_timeout_s=0.3) as client,
    ):
        broker = await registered(client)
        proxy.cut(Cut.BLACKHOLE)
        with pytest.raises(CoordinationUnavailable, match=r"within 0\.3 s"):
            await client.prove(broker)
        assert client.connection is Connection.SUSPENDED
        proxy.heal()
        await until(client, lambda: client.connection is Connection.CONNECTED)
        await client.prove(broker)


async def test_watches_work_again_after_a_reconnect(zookeeper_server, root):
    async with (
        proxy_to(zookeeper_server.address) as proxy,
        started(proxy.address, root, session_timeout_s=10) as client,
        started(zookeeper_server.address, root) as other,
    ):
        proxy.cut(Cut.RESET)
        await until(client, lambda: client.connection is Connection.SUSPENDED)
        broker = await registered(other)
        leadership = await other.campaign(broker)
        assert NAME not in client.members
        proxy.heal()
        await until(client, lambda: client.connection is Connection.CONNECTED)
        assert client.members[NAME].broker == broker
        assert client.leadership == leadership
        await other.register(broker, b"changed")
        await until(client, lambda: client.members[NAME].data == b"changed")


# --- an answer that was lost
async def test_a_leadership_whose_answer_was_lost_is_taken_over_under_a_greater_epoch(zookeeper_server, root):
    async with started(zookeeper_server.address, root) as client:
        broker = await registered(client)
        unheard = await client.campaign(broker)
        assert unheard is not None
        client._won = None  # as if the answer had never come
        heard = await client.campaign(broker)
        assert heard is not None
        assert heard.epoch > unheard.epoch
        assert await client.campaign(broker) is None


# --- killed
async def test_a_zookeeper_that_is_killed_fails_requests_at_once_and_is_found_again_when_it_returns(
    zookeeper_server, root
):
    loop = asyncio.get_running_loop()
    async with started(zookeeper_server.address, root, session_timeout_s=10) as client:
        broker = await registered(client)
        leadership = await client.campaign(broker)
        await until(client, lambda: client.leadership == leadership and NAME in client.members)
        zookeeper_server.kill()
        try:
            await until(client, lambda: client.connection is Connection.SUSPENDED)
            began = loop.time()
            for _ in range(100):
                with pytest.raises(CoordinationUnavailable, match=zookeeper_server.address):
                    await client.prove(broker)
            assert loop.time() - began < 1.0, "requests wait for a server that is known to be gone"
        finally:
            await asyncio.to_thread(zookeeper_server.start)
        await until(client, lambda: client.connection is Connection.CONNECTED)
        await client.prove(broker)
        assert client.members[NAME].broker == broker
        assert client.leadership == leadership


async def test_a_zookeeper_that_is_not_there_is_named(root):
    address = f"127.0.0.1:{free_port()}"
    client = ZooKeeperCoordination(address, root=root)
    with pytest.raises(CoordinationUnavailable, match=address):
        await client.start(timeout_s=0.5)


async def test_a_server_that_accepts_and_says_nothing_is_left_before_the_session_ends(zookeeper_server, root):
    loop = asyncio.get_running_loop()
    async with (
        proxy_to(zookeeper_server.address) as proxy,
        started(proxy.address, root, session_timeout_s=10, request_timeout_s=0.5) as client,
    ):
        broker = await registered(client)
        asked = asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            with suppress(OSError):
                while await reader.read(1024):
                    pass
            writer.close()

        mute = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        proxy.target = f"127.0.0.1:{mute.sockets[0].getsockname()[1]}"
        proxy.cut(Cut.RESET)
        proxy.heal()
        async with asyncio.timeout(WAIT_S):
            await asked.wait()
        proxy.target = zookeeper_server.address
        began = loop.time()
        await until(client, lambda: client.connection is Connection.CONNECTED)
        assert loop.time() - began < 5, "it waited for a whole session time-out"
        assert client.members[NAME].broker == broker
        mute.close()


# --- a client that gave up
async def test_a_client_that_ended_by_itself_is_replaced_and_its_broker_proves_itself_again(zookeeper_server, root):
    async with started(zookeeper_server.address, root) as client:
        broker = await registered(client)
        first = client._session._client
        assert first is not None
        await asyncio.to_thread(first.stop)  # as after an answer that kazoo could not read
        await until(client, lambda: client.connection is Connection.SUSPENDED)
        await until(client, lambda: client.connection is Connection.CONNECTED)
        assert client._session._client is not first
        await client.prove(broker)
        await until(client, lambda: NAME in client.members)


# --- what it refuses
@pytest.mark.parametrize("name", ["a/b", "", "..", "a\x00b"])
async def test_a_name_that_is_no_node_name_is_refused(zookeeper_server, root, name):
    async with started(zookeeper_server.address, root) as client:
        with pytest.raises(InvalidName, match="host:port"):
            await client.start_incarnation(name, above=0)


async def test_too_much_registered_data_is_refused_before_it_breaks_the_connection(zookeeper_server, root):
    async with started(zookeeper_server.address, root) as client:
        broker = await registered(client)
        with pytest.raises(CoordinationError, match="shorten"):
            await client.register(broker, b"x" * 2_000_000)
        await client.prove(broker)


@pytest.mark.parametrize("setting", ["read_only", "timeout", "client_id", "connection_retry"])
def test_client_settings_the_protocol_rests_on_are_refused_by_name(setting):
    with pytest.raises(CoordinationError, match=setting):
        ZooKeeperCoordination("127.0.0.1:1", client_settings={setting: True})
