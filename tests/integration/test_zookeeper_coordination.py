"""`ZooKeeperCoordination` against a real server that is cut off or killed. The rest is in `tests/contracts`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest
from kazoo.client import KazooClient

from stack.servers import ZooKeeperServer, free_port
from statechannel.adapters.zookeeper.coordination import ZooKeeperCoordination
from statechannel.errors import CoordinationError, CoordinationUnavailable, Fenced, InvalidName
from statechannel.law.record import BrokerId
from statechannel.ports import Connection
from tests.faults import Cut, TcpProxy, proxy_to
from tests.servers import coordination_root, shared_zookeeper

pytestmark = pytest.mark.zookeeper

WAIT_S = 60
SHORT_SESSION_S = 4.0
"""Of a session that shall end; nothing that shall go on may depend on it."""
LONG_SESSION_S = 40.0
"""Of a session that outlives a restart of its server: the longest that a server with ticks of 2 s allows."""
NAME = "broker-a:8080"

T = TypeVar("T")


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
    session_timeout_s: float = 10.0,
    request_timeout_s: float = 30.0,
) -> AsyncGenerator[ZooKeeperCoordination]:
    client = ZooKeeperCoordination(
        address, root=root, session_timeout_s=session_timeout_s, request_timeout_s=request_timeout_s
    )
    await client.start(timeout_s=WAIT_S)
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


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until it works: a link comes back after a moment, and a slow machine needs longer than a short time-out."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await ask()
            except CoordinationUnavailable:
                await asyncio.sleep(0.01)


async def registered(client: ZooKeeperCoordination, data: bytes = b"data") -> BrokerId:
    broker = await answered(lambda: client.start_incarnation(NAME, above=0))
    await answered(lambda: client.register(broker, data))
    return broker


async def proven(client: ZooKeeperCoordination, broker: BrokerId) -> None:
    await answered(lambda: client.prove(broker))


async def lose_session(proxy: TcpProxy, witness: ZooKeeperCoordination) -> None:
    """Cut silently until the others saw the node vanish; what was held back never arrives."""
    proxy.cut(Cut.BLACKHOLE)
    await until(witness, lambda: NAME not in witness.members)
    proxy.cut(Cut.RESET)


# --- cut off
async def test_broker_without_a_session_registers_by_a_proof_under_its_number(zookeeper_server, root):
    async with (
        proxy_to(zookeeper_server.address) as proxy,
        started(proxy.address, root, session_timeout_s=SHORT_SESSION_S) as client,
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


async def test_broker_fenced_while_cut_off_learns_it_from_its_next_proof(zookeeper_server, root):
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


async def test_silence_fails_a_request_in_time_and_suspends_the_link(zookeeper_server, root):
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
        await proven(client, broker)


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


async def test_watches_of_offices_work_again_after_a_reconnect(zookeeper_server, root):
    async with (
        proxy_to(zookeeper_server.address) as proxy,
        started(proxy.address, root, session_timeout_s=10) as client,
        started(zookeeper_server.address, root) as other,
    ):
        broker = await registered(other)
        for lease in ("stays", "goes", "moves"):
            assert await other.claim(lease, broker)
        await until(client, lambda: len(client.leases) == 3)
        proxy.cut(Cut.RESET)
        await until(client, lambda: client.connection is Connection.SUSPENDED)
        successor = await other.start_incarnation("broker-b:8080", above=0)
        await other.vacate("goes", broker)
        await other.vacate("moves", broker)
        assert await other.claim("moves", successor)
        assert len(client.leases) == 3  # as last seen
        proxy.heal()
        await until(client, lambda: client.connection is Connection.CONNECTED)
        assert client.leases == {"stays": broker, "moves": successor}
        await other.vacate("stays", broker)  # known since before the cut: is its watch there again?
        assert await other.claim("stays", successor)
        await until(client, lambda: client.leases == {"stays": successor, "moves": successor})


async def test_an_office_is_read_once_however_often_others_change(zookeeper_server, root):
    async with (
        started(zookeeper_server.address, root, session_timeout_s=10) as client,
        started(zookeeper_server.address, root, session_timeout_s=10) as other,
    ):
        broker = await registered(other)
        reads: list[str] = []
        read = client._session.read

        async def counted(path: str, watch=None):
            found = await read(path, watch)
            reads.append(path)
            return found

        client._session.read = counted  # type: ignore[method-assign]
        for number in range(5):
            assert await other.claim(f"office-{number}", broker)
            await until(client, lambda number=number: len(client.leases) == number + 1)
        await other.vacate("office-0", broker)
        await until(client, lambda: len(client.leases) == 4)
        assert sorted(path for path in reads if "/offices/" in path) == [
            f"{root}/offices/office-{number}" for number in range(5)
        ]


# --- an answer that was lost
async def test_leadership_with_a_lost_answer_is_retaken_under_a_higher_epoch(zookeeper_server, root):
    async with started(zookeeper_server.address, root) as client:
        broker = await registered(client)
        unheard = await client.campaign(broker)
        assert unheard is not None
        client._won = None  # as if the answer had never come
        heard = await client.campaign(broker)
        assert heard is not None
        assert heard.epoch > unheard.epoch
        assert await client.campaign(broker) is None


@pytest.fixture
def outlived(zookeeper_server) -> Iterator[KazooClient]:
    """A session that a broker has lost sight of and that has not ended yet."""
    session = KazooClient(zookeeper_server.address)
    session.start()
    yield session
    session.stop()
    session.close()


async def test_lease_of_our_earlier_session_is_taken_into_the_present_one(zookeeper_server, root, outlived):
    async with started(zookeeper_server.address, root) as client, started(zookeeper_server.address, root) as other:
        broker = await registered(client)
        outlived.create(f"{root}/offices/a-lease", str(broker).encode(), ephemeral=True)
        await until(other, lambda: other.leases == {"a-lease": broker})
        assert await client.claim("a-lease", broker)
        outlived.stop()
        later = await other.start_incarnation("broker-b:8080", above=0)
        assert not await other.claim("a-lease", later)
        await until(client, lambda: client.leases == {"a-lease": broker})


@pytest.mark.parametrize("act", ["claim", "vacate"])
async def test_an_office_that_changes_hands_while_we_look_is_left_to_who_got_it(
    zookeeper_server, root, outlived, act, monkeypatch
):
    async with started(zookeeper_server.address, root) as client, started(zookeeper_server.address, root) as other:
        broker, rival = await registered(client), await other.start_incarnation("broker-b:8080", above=0)
        assert await client.claim("a-lease", broker)  # so that its term is there
        await client.vacate("a-lease", broker)
        outlived.create(f"{root}/offices/a-lease", str(broker).encode(), ephemeral=True)
        read, raced = client._read_lease, []

        async def overtaken(node: str):
            found = await read(node)
            if not raced:
                raced.append(node)
                outlived.delete(node)
                assert await other.claim("a-lease", rival)
            return found

        monkeypatch.setattr(client, "_read_lease", overtaken)
        assert not await getattr(client, act)("a-lease", broker)
        assert raced
        await until(client, lambda: client.leases == {"a-lease": rival})


async def test_a_node_among_the_offices_that_is_not_ours_is_nobodys_office(zookeeper_server, root, outlived):
    async with started(zookeeper_server.address, root) as client:
        broker = await registered(client)
        outlived.create(f"{root}/offices/foreign", b"\xff what", ephemeral=True)
        assert await client.claim("a-lease", broker)
        await until(client, lambda: client.leases == {"a-lease": broker})
        assert not await client.claim("foreign", broker)
        outlived.set(f"{root}/offices/foreign", str(broker).encode())  # repaired by hand
        await until(client, lambda: client.leases == {"a-lease": broker, "foreign": broker})


async def test_a_root_of_a_release_without_offices_gets_what_is_missing(zookeeper_server, root, outlived):
    async with started(zookeeper_server.address, root) as client:
        broker = await registered(client)
    for directory in ("offices", "terms"):
        outlived.delete(f"{root}/{directory}", recursive=True)
    async with started(zookeeper_server.address, root) as client:
        assert await client.claim("a-lease", broker)
        await until(client, lambda: client.leases == {"a-lease": broker})


# --- killed
@pytest.mark.slow
async def test_killed_zookeeper_fails_requests_at_once_and_is_found_again(zookeeper_server, root):
    loop = asyncio.get_running_loop()
    settings = {"session_timeout_s": LONG_SESSION_S, "request_timeout_s": WAIT_S}
    async with started(zookeeper_server.address, root, **settings) as client:
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
            assert loop.time() - began < WAIT_S, "requests wait for a server that is known to be gone"
        finally:
            await asyncio.to_thread(zookeeper_server.start)
        await until(client, lambda: client.connection is Connection.CONNECTED)
        await proven(client, broker)
        await until(client, lambda: NAME in client.members and client.members[NAME].broker == broker)
        await until(client, lambda: client.leadership == leadership)


async def test_a_zookeeper_that_is_not_there_is_named(root):
    address = f"127.0.0.1:{free_port()}"
    client = ZooKeeperCoordination(address, root=root)
    with pytest.raises(CoordinationUnavailable, match=address):
        await client.start(timeout_s=0.5)


def session_of(client: ZooKeeperCoordination) -> object:
    """Its id and password."""
    connected = client._session._client
    assert connected is not None
    return connected.client_id


async def test_server_that_accepts_and_is_silent_is_left_before_session_end(zookeeper_server, root):
    async with (
        proxy_to(zookeeper_server.address) as proxy,
        started(proxy.address, root, session_timeout_s=10, request_timeout_s=0.5) as client,
    ):
        broker = await registered(client)
        session = session_of(client)
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
        await until(client, lambda: client.connection is Connection.CONNECTED)
        assert session_of(client) == session, "it waited for a whole session time-out"
        assert client.members[NAME].broker == broker
        mute.close()


# --- a client that gave up
async def test_client_that_ended_is_replaced_and_its_broker_proves_itself_again(zookeeper_server, root):
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
@pytest.mark.parametrize("lease", ["a/b", "", "..", "a b", "a" * 65])
async def test_a_name_that_is_no_lease_is_refused(zookeeper_server, root, lease):
    async with started(zookeeper_server.address, root) as client:
        broker = await registered(client)
        for attempt in (client.claim(lease, broker), client.vacate(lease, broker)):
            with pytest.raises(InvalidName, match="not a lease"):
                await attempt


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
