"""`/v1/watch`: the table, then its changes, resumable from any revision at any broker."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from typing import Any

import pytest

from loadmanager.channel import watch
from loadmanager.channel.replay_queue import TIMEOUT_S, ReplayQueue
from loadmanager.errors import LoadManagerError
from loadmanager_api.http import watch as relays
from tests.api.conftest import WAIT_S, Broker, Cluster, Refused
from tests.api.raw import connected, with_credentials
from tests.api.watching import Client, told

PATH = "/v1/watch"


class Writer:
    """Does to the cluster what administrators and clients do, at random, until it is told to stop."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._stop = False
        self.done = 0

    async def run(self) -> None:
        while not self._stop:
            try:
                await asyncio.wait_for(self._one(), WAIT_S)
                self.done += 1
            except LoadManagerError:
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._stop = True

    async def _one(self) -> None:
        node = self._random.choice(self._cluster.brokers).node
        operations = node.current.operations
        namespace = self._random.choice(("t/n", "u/n"))
        known = node.channel.table.namespace(namespace)
        if known is None or not known.exists:
            await operations.create_namespace(namespace, (0, 2**31, 2**32 - 1))
            return
        bundle = self._random.choice(known.bundles)
        to = self._random.choice(self._cluster.brokers).name
        match self._random.randrange(6):
            case 0:
                await operations.unload(bundle)
            case 1 if len(known.bundles) < 12:
                await operations.split(bundle)
            case 2 if len(known.bundles) > 3:
                first = self._random.randrange(len(known.bundles) - 1)
                await operations.merge(known.bundles[first : first + 2])
            case 3 if self._random.random() < 0.2:
                await operations.delete_namespace(namespace)
            case _:
                await operations.transfer(bundle, to)


def table_of(broker: Broker, namespace: str | None = None) -> dict[str, Any]:
    return told(broker.node.channel.table, namespace)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [watch.CHANGES_KEPT, 3])
@pytest.mark.parametrize("namespace", [None, "t/n"])
async def test_a_client_that_reconnects_at_random_folds_the_same_table(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kept: int, namespace: str | None
) -> None:
    """With 3 changes in memory nearly every return is served from the log, and many clients are too slow."""
    monkeypatch.setattr(watch, "CHANGES_KEPT", kept)
    monkeypatch.setattr(relays, "KEPT_BYTES", 1_000 * kept)
    monkeypatch.setattr(watch, "BUNDLES_A_PIECE", 2)
    await cluster.start(2)
    chance, writer = random.Random(kept), Writer(cluster, kept)
    writing = asyncio.create_task(writer.run())
    client, visits = Client(cluster.session, namespace), 0
    while writer.done < 40 or visits < 25:
        await client.follow(chance.choice(cluster.brokers).url, chance.randrange(1, 12), chance.random() < 0.5)
        visits += 1
        await asyncio.sleep(chance.choice((0, 0.02, 0.1)))
    writer.stop()
    await writing
    await cluster.until(lambda: table_of(cluster.brokers[0]) == table_of(cluster.brokers[1]))
    await client.until(cluster.brokers[1].url, table_of(cluster.brokers[0], namespace))
    assert len(client.seen) == len(set(client.seen)), "something was told twice"


async def test_a_watch_begins_with_all_bundles_and_goes_on_with_each_change(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 8)
    client = Client(cluster.session)
    await client.follow(cluster.brokers[0].url, 2)
    assert client.kinds == ["snapshot", "snapshot-end"]
    assert client.table == table_of(cluster.brokers[0])
    assert client.revision == client.last["revision"]
    await cluster.assign("t/n/a")
    await client.follow(cluster.brokers[0].url, 2)
    assert client.kinds[2:] == ["change", "change"]
    assert client.last["action"] == "return"
    assert client.table == table_of(cluster.brokers[0])


async def test_revisions_from_which_nobody_can_go_on_are_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    for text in ("x", "1", "0:", "0:1.2.3.", "0:-1.0.0.0", "0:1.2.3.4x", "0:" + "9" * 30):
        body = await refused(400, "GET", PATH, params={"since": text})
        assert "start without `since`" in body["detail"]
    assert "4 partitions" in (await refused(400, "GET", PATH, params={"since": "0:1.2"}))["detail"]
    assert "generation 7" in (await refused(409, "GET", PATH, params={"since": "7:0.0.0.0"}))["detail"]
    assert "ends at" in (await refused(409, "GET", PATH, params={"since": "0:0.0.99999.0"}))["detail"]
    await refused(400, "GET", PATH, headers={"Last-Event-ID": "never"})
    await refused(412, "GET", PATH, params={"namespace": "none"})
    await refused(405, "POST", PATH)


async def test_a_revision_that_was_trimmed_is_gone(
    cluster: Cluster, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "CHANGES_KEPT", 1)
    await cluster.start(snapshot_records=1, log_retention_s=0.0)
    node = cluster.brokers[0].node
    await cluster.create("t/n")
    await cluster.assign("t/n/a")
    home = node.channel.table.partition_of("t/n")
    keepers = node.current.channel_owner.keepers
    await cluster.until(lambda: home in keepers and keepers[home].begin > 0)
    body = await refused(410, "GET", PATH, params={"since": "0:0.0.0.0"})
    assert "trimmed" in body["detail"]
    assert "start without `since`" in body["detail"]


async def test_a_reader_that_is_too_slow_is_told_where_to_go_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "CHANGES_KEPT", 5)
    await cluster.start()
    await cluster.create("t/n", 16)
    pieces = (await _watching(cluster).begin(None, None)).pieces()
    kinds = [(await anext(pieces)).kind for _ in range(2)]
    assert kinds == ["snapshot", "snapshot-end"]
    for topic in range(40):
        await cluster.assign(f"t/n/{topic}")
    *_, last = [piece async for piece in pieces]
    assert last.kind == "end"
    assert "too slow" in last.why
    client = Client(cluster.session)
    await client.follow(cluster.brokers[0].url, 2)
    client.revision = str(last.resume)
    client.table = {}
    again = await _watching(cluster).begin(None, str(last.resume))
    assert (await anext(again.pieces())).kind == "change"


def _watching(cluster: Cluster) -> watch.Watching:
    """A second one of the first broker's."""
    node = cluster.brokers[0].node
    return watch.Watching(node.channel.replica, ReplayQueue(node.world.log, node.channel.topic, TIMEOUT_S))


async def test_a_quiet_watch_says_that_it_lives_and_how_far_it_has_come(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "KEEP_ALIVE_S", 0.02)
    await cluster.start()
    node = cluster.brokers[0].node
    client = Client(cluster.session, "t/n")
    await client.follow(cluster.brokers[0].url, 1)
    begun = client.revision
    await node.channel.read_back(0, node.current.me)
    reading = asyncio.create_task(client.follow(cluster.brokers[0].url))
    await cluster.until(lambda: client.revision != begun)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_all_who_watch_the_same_share_what_is_made_once(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    clients = [Client(cluster.session) for _ in range(20)]
    reading = [asyncio.create_task(client.follow(cluster.brokers[0].url)) for client in clients]
    await cluster.until(lambda: all("snapshot-end" in client.kinds for client in clients))
    await cluster.assign("t/n/a")
    await cluster.until(lambda: all(client.table == table_of(cluster.brokers[0]) for client in clients))
    (shared,) = (each for each in gc.get_objects() if isinstance(each, relays.Relay) and each.clients)
    assert shared.clients == 20
    assert sum(b"event: change" in event.data for event in shared._events) == 2
    for each in reading:
        each.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


def shared_by(cluster: Cluster) -> relays.Relays:
    """The relays of its only broker."""
    table, everywhere = cluster.brokers[0].node.channel.table, gc.get_objects()
    (found,) = (each for each in everywhere if isinstance(each, relays.Relays) and each._watching.table is table)
    return found


@pytest.mark.parametrize("room_bytes", [relays.SHARED_BYTES, 0])
async def test_clients_that_begin_together_share_the_snapshot_if_there_is_room(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    monkeypatch.setattr(relays, "SHARED_BYTES", room_bytes)
    monkeypatch.setattr(relays, "SHARED_S", 0.01)
    monkeypatch.setattr(watch, "BUNDLES_A_PIECE", 8)
    encoded: Counter[str | None] = Counter()
    encode = relays.encode

    def counted(piece: watch.Piece, generation: int) -> bytes:
        encoded[piece.kind] += 1
        return encode(piece, generation)

    monkeypatch.setattr(relays, "encode", counted)
    await cluster.start()
    await cluster.create("t/n", 64)
    clients = [Client(cluster.session) for _ in range(20)]
    reading = [asyncio.create_task(client.follow(cluster.brokers[0].url)) for client in clients]
    await cluster.until(lambda: all(client.table == table_of(cluster.brokers[0]) for client in clients))
    assert encoded["snapshot"] == (8 if room_bytes else 20 * 8)
    await cluster.assign("t/n/a")
    late = Client(cluster.session)
    await late.follow(cluster.brokers[0].url, 9)
    assert late.table == table_of(cluster.brokers[0]), "it has what happened before it came"
    await cluster.until(lambda: all(client.table == table_of(cluster.brokers[0]) for client in clients))
    for each in reading:
        each.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await cluster.until(lambda: not shared_by(cluster)._shared_bytes)
    assert not shared_by(cluster)._relays


async def test_only_so_many_watch_one_broker(cluster: Cluster) -> None:
    await cluster.start(http_requests=8)
    clients = [Client(cluster.session) for _ in range(4)]
    reading = [asyncio.create_task(client.follow(cluster.brokers[0].url)) for client in clients]
    await cluster.until(lambda: all("snapshot-end" in client.kinds for client in clients))
    status, problem, _ = await cluster.ask("GET", PATH)
    assert (status, problem["detail"]) == (503, "4 watches run here already; watch another broker")
    reading.pop().cancel()
    async with asyncio.timeout(WAIT_S):
        while (await cluster.ask("GET", PATH, params={"since": "x"}))[0] != 400:
            await asyncio.sleep(0.01)
    for each in reading:
        each.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


async def test_watches_that_begin_together_are_no_more_and_leave_the_rest_to_others(cluster: Cluster) -> None:
    await cluster.start(http_requests=8)
    clients = [await connected(cluster) for _ in range(16)]
    request = with_credentials(cluster, f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    for client in clients:
        client.writer.write(request)
    heads = [await client.head() for client in clients]
    assert Counter(head.split()[1] for head in heads) == {b"200": 4, b"503": 12}
    assert (await cluster.ask("GET", "/v1/brokers"))[0] == 200
    for client in clients:
        client.close()


async def test_the_endpoints_close_at_once_whoever_watches(cluster: Cluster) -> None:
    await cluster.start()
    client = Client(cluster.session)
    reading = asyncio.create_task(client.follow(cluster.brokers[0].url))
    await cluster.until(lambda: "snapshot-end" in client.kinds)
    begun = asyncio.get_running_loop().time()
    await cluster._stack.aclose()
    await reading
    assert asyncio.get_running_loop().time() - begun < 2.0
    assert client.kinds[-1] == "end"
    assert client.last["resume"] is not None


@pytest.mark.slow
async def test_a_client_that_takes_nothing_is_given_up(cluster: Cluster) -> None:
    await cluster.start(http_send_timeout_s=0.05)
    await cluster.create("t/n", 65_536)
    host, port = cluster.brokers[0].url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1_024)
    writer.write(b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await writer.drain()
    async with asyncio.timeout(WAIT_S):
        while len(await reader.read(65_536)) > 0:  # until the broker hangs up
            await asyncio.sleep(0.1)
    writer.close()
