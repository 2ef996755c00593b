"""What ended the process once: a server that is not the coordinator, a client freed on its own thread, an exit.

Each is tried in a process of its own. `kafka_rounds.py` does all of it at once, at random.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from stack.servers import KafkaServer, free_port
from statechannel.adapters.kafka.group_commits import GroupCommits
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.errors import LogError
from statechannel.ports import TopicSpec
from tests.faults import TcpProxy
from tests.statechannel.kafka_rounds import watched_rounds

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

WAIT_S = 60.0
ROUNDS = 20
GROUP, TOPIC = "shop/orders/billing", "orders"
PROXIED = "PROXIED"
OFFSET_FETCH, NOT_COORDINATOR = 9, 16


@pytest.fixture(scope="module")
def proxy_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, proxy_port: int) -> Generator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("kafka"), proxied_at={PROXIED: proxy_port})
    server.start()
    try:
        asyncio.run(prepared(server.address))
        yield server
    finally:
        server.kill()


async def prepared(address: str) -> None:
    log = KafkaLog(address, topic_prefix="", development=True, request_timeout_s=WAIT_S)
    await log.start(WAIT_S)
    try:
        await log.open_topic(TopicSpec(TOPIC, compacted=False, partitions=2))
        await GroupCommits(address, request_timeout_s=WAIT_S).commit(GROUP, {(TOPIC, 0): 7}, {})
    finally:
        await log.close()


def child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process that runs this; its exit code says what ended it."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


class Elsewhere(TcpProxy):
    """A server that answers requests for a group's offsets with: I am not the coordinator."""

    answered = 0

    def _pumps(self, near: socket.socket, far: socket.socket) -> tuple[Coroutine[Any, Any, None], ...]:
        asked: dict[bytes, int] = {}
        return self._requests(near, far, asked), self._answers(far, near, asked)

    async def _requests(self, source: socket.socket, sink: socket.socket, asked: dict[bytes, int]) -> None:
        async for frame in _frames(source):
            asked[bytes(frame[8:12])] = int.from_bytes(frame[4:6])
            await asyncio.get_running_loop().sock_sendall(sink, frame)

    async def _answers(self, source: socket.socket, sink: socket.socket, asked: dict[bytes, int]) -> None:
        async for frame in _frames(source):
            if asked.pop(bytes(frame[4:8])) == OFFSET_FETCH:
                frame[-4:-2] = NOT_COORDINATOR.to_bytes(2)  # before the tags of the group and of the answer
                self.answered += 1
            await asyncio.get_running_loop().sock_sendall(sink, frame)


async def _frames(source: socket.socket) -> AsyncGenerator[bytearray]:
    """Requests or answers, each with its length before it."""
    waiting = bytearray()
    while data := await asyncio.get_running_loop().sock_recv(source, 1 << 16):
        waiting += data
        while len(waiting) >= 4 and len(waiting) >= (end := 4 + int.from_bytes(waiting[:4])):
            yield waiting[:end]
            del waiting[:end]


ASK_FOR_OFFSETS = """
import asyncio, sys
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.errors import LogUnavailable
async def main():
    try:
        await KafkaGroups(sys.argv[1], request_timeout_s=8.0).committed(sys.argv[2])
    except LogUnavailable as error:
        print(error)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_server_that_is_not_the_coordinator_is_an_error(server: KafkaServer, proxy_port: int) -> None:
    proxy = Elsewhere(f"127.0.0.1:{server.listener_port(PROXIED)}", proxy_port)
    await proxy.start()
    try:
        run = await asyncio.to_thread(child, ASK_FOR_OFFSETS, proxy.address, GROUP)
    finally:
        await proxy.aclose()
    assert run.returncode == 0, run.stderr
    assert "Not coordinator" in run.stdout
    assert proxy.answered > 1, "it was asked again"


FREE_ON_ITS_OWN_THREAD = """
import gc, threading
from statechannel.adapters.kafka.admin import Admin
from statechannel.adapters.kafka.clients import admin_settings, connection_settings
gc.disable()
collected = threading.Event()
def answered(_):
    print(gc.collect())  # as any allocation may
    collected.set()
def ask(address):
    admin = Admin(admin_settings(connection_settings(address, {}, 5.0)), address, 5.0)
    with admin.lent() as client:
        client.describe_cluster(request_timeout=1.0).add_done_callback(answered)
    cycle = [admin]
    cycle.append(cycle)
ask("127.0.0.1:1")  # a port where nothing listens
assert collected.wait(30.0)
"""


def test_client_that_is_garbage_is_not_freed_on_its_own_thread() -> None:
    run = child(FREE_ON_ITS_OWN_THREAD)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 0


EXIT_WITH_REQUESTS = """
import asyncio, ctypes, os, signal, sys, threading
from statechannel.adapters.kafka.admin import Admin
from statechannel.adapters.kafka.clients import admin_settings, connection_settings, consumer_settings
from statechannel.adapters.kafka.reader import Tail
libc = ctypes.CDLL(None)  # a process takes its time to end after its interpreter
libc.__cxa_atexit(ctypes.cast(libc.usleep, ctypes.c_void_p), ctypes.c_void_p(3_000_000), None)
async def main(address, kafka):
    connection = connection_settings(address, {}, 5.0)
    admin = Admin(admin_settings(connection), address, 5.0)
    await admin.connect(30.0)
    tail = Tail(consumer_settings(connection), "orders", {0: 0})
    threading.Thread(target=lambda held: threading.Event().wait(), args=([admin, tail],), daemon=True).start()
    os.kill(kafka, signal.SIGSTOP)
    with admin.lent() as client:
        client.describe_cluster(request_timeout=1.0)
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_interpreter_that_ends_with_requests_on_their_way_is_not_called(server: KafkaServer) -> None:
    identity = server.identity
    assert identity is not None
    try:
        run = child(EXIT_WITH_REQUESTS, server.address, str(identity.pid))
    finally:
        server.resume()
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
async def test_offsets_are_committed_and_read_of_more_groups_than_stay_open(server: KafkaServer) -> None:
    groups = KafkaGroups(server.address, request_timeout_s=WAIT_S)
    commits = GroupCommits(server.address, request_timeout_s=WAIT_S)
    for offset in (1, 2):
        wanted = {f"{GROUP}-{number}": {(TOPIC, 1): offset + number} for number in range(20)}
        await asyncio.gather(*(commits.commit(group, offsets, {}) for group, offsets in wanted.items()))
        expected = [({TOPIC: {1: offset + number}}, {}) for number in range(20)]
        # Kafka answers the commit of a transaction before the offsets in it can be read.
        async with asyncio.timeout(WAIT_S):
            while await asyncio.gather(*(groups.committed(group) for group in wanted)) != expected:
                await asyncio.sleep(0.05)
    with pytest.raises(LogError, match="Unknown topic"):
        await commits.commit(GROUP, {("nothing", 0): 1}, {})


@pytest.mark.slow
def test_no_order_of_opening_and_closing_ends_the_process(tmp_path: Path) -> None:
    own = KafkaServer(tmp_path)
    own.start()
    try:
        outcome = watched_rounds(own, ROUNDS, seed=1)
    finally:
        own.kill()
    assert outcome.crashes == []
    assert (outcome.rounds, outcome.processes) == (ROUNDS, 2)
    assert outcome.answers > 0
