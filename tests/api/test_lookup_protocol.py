"""What is answered without ASGI is the same, comes in order, and only where it is safe to."""

from __future__ import annotations

import asyncio

import pytest
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from loadmanager_api.http.lookups import LookupPath
from tests.api.access.conftest import attacked as cluster
from tests.api.access.conftest import without_access
from tests.api.conftest import WAIT_S, Cluster
from tests.api.raw import Raw, connected, with_credentials

__all__ = ["cluster"]

PATH = "/lookup/v2/topic/persistent/t/n/"


class Connection:
    """A raw connection to the first broker."""

    def __init__(self, cluster: Cluster, raw: Raw) -> None:
        self.reader = raw.reader
        self.writer = raw.writer
        self._cluster = cluster

    def send(self, request: str) -> None:
        self.writer.write(self.wire(request))

    def wire(self, request: str) -> bytes:
        return with_credentials(self._cluster, request.replace("\n", "\r\n").encode())

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(status.split()[1]), headers, body


async def connect(cluster: Cluster) -> Connection:
    return Connection(cluster, await connected(cluster))


def get(name: str, more: str = "", version: str = "1.1") -> str:
    return f"GET {PATH}{name} HTTP/{version}\nHost: localhost\n{more}\n"


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths that took the ASGI way."""
    seen: list[str] = []
    call = LookupPath.__call__

    async def note(self: LookupPath, scope: dict[str, str], receive: object, send: object) -> None:
        if scope["type"] == "http":
            seen.append(scope["path"].rpartition("/")[2])
        await call(self, scope, receive, send)

    monkeypatch.setattr(LookupPath, "__call__", note)
    return seen


async def test_a_plain_lookup_of_an_owned_bundle_needs_no_asgi(cluster: Cluster, passed_on: list[str]) -> None:
    await cluster.start()
    await cluster.create("t/n", 1)
    connection = await connect(cluster)
    connection.send(get("a"))
    first = await connection.answer()
    assert passed_on == ["a"], "nobody owned it: that had to wait"
    connection.send(get("a"))
    second = await connection.answer()
    connection.send(get("a?authoritative=true"))
    third = await connection.answer()
    assert passed_on == ["a"]
    assert {str({**headers, "date": ""}) for _, headers, _ in (first, second, third)} == {str({**first[1], "date": ""})}
    assert first[0] == second[0] == third[0] == 200
    assert first[2] == second[2] == third[2]
    connection.writer.close()


NOT_PLAIN: list[str] = [
    get("a", version="1.0"),
    get("a", "Connection: close\n"),
    get("a", "Content-Length: 2\n") + "{}",
    get("a", "Transfer-Encoding: chunked\n") + "2\n{}\n0\n\n",
    get("a", "Connection: upgrade\nUpgrade: websocket\n"),
    get("a#fragment"),
]


async def test_whatever_is_not_plain_is_left_to_uvicorn(
    cluster: Cluster, passed_on: list[str], subtests: pytest.Subtests
) -> None:
    await cluster.start()
    await cluster.create("t/n", 1)
    await cluster.assign("t/n/a")
    for request_text in NOT_PLAIN:
        with subtests.test(request_text=request_text):
            passed_on.clear()
            connection = await connect(cluster)
            connection.send(request_text)
            assert (await connection.answer())[0] == 200
            assert passed_on == ["a"]
            connection.writer.close()


async def test_pipelined_requests_are_answered_in_their_order(cluster: Cluster, passed_on: list[str]) -> None:
    await cluster.start()
    await cluster.create("t/n", 64)
    bundles = [str(await cluster.assign(f"t/n/topic-{i}")) for i in range(20)]
    connection = await connect(cluster)
    version = "GET /admin/v2/brokers/version HTTP/1.1\nHost: localhost\n\n"
    connection.send("".join(get(f"topic-{i}") + (version if i % 5 == 0 else "") for i in range(20)))
    for i, bundle in enumerate(bundles):
        assert (await connection.answer())[1]["x-bundle"] == bundle
        if i % 5 == 0:
            assert (await connection.answer())[2].count(b".") == 2
    assert "version" in passed_on
    connection.writer.close()


@without_access
async def test_a_lookup_behind_one_that_waits_does_not_overtake_it(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 1)
    await cluster.create("t/m", 1)
    bundle = await cluster.assign("t/m/a")
    cluster.brokers[0].host.gate.clear()
    connection = await connect(cluster)
    connection.send(get("waits") + get("a").replace("t/n", "t/m"))
    counts = cluster.brokers[0].node.current.lookup.counts
    await cluster.until(lambda: counts.waiting == 1)
    cluster.brokers[0].host.gate.set()
    assert (await connection.answer())[1]["x-bundle"].startswith("t/n/")
    assert (await connection.answer())[1]["x-bundle"] == str(bundle)
    connection.writer.close()


@without_access
async def test_an_answer_that_had_to_wait_is_written_in_one_piece(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = RequestResponseCycle.send

    async def note(self: RequestResponseCycle, message: ASGISendEvent) -> None:
        sent.append(message["type"])
        await send(self, message)

    await cluster.start()
    await cluster.create("t/n", 64)
    monkeypatch.setattr(RequestResponseCycle, "send", note)
    connection = await connect(cluster)
    for round_trip in range(3):
        connection.send(get(f"topic-{round_trip}"))
        assert (await connection.answer())[0] == 200
    assert sent == []
    connection.send(get("topic-9", "Connection: close\n"))
    assert (await connection.answer())[1]["connection"] == "close"
    assert sent == ["http.response.start", "http.response.body"]
    assert await asyncio.wait_for(connection.reader.read(), WAIT_S) == b""
    connection.writer.close()


async def test_a_request_that_comes_in_pieces_is_one_request(cluster: Cluster, passed_on: list[str]) -> None:
    await cluster.start()
    await cluster.create("t/n", 1)
    await cluster.assign("t/n/a")
    await cluster.ask("GET", PATH + "a")
    passed_on.clear()  # the token is known now
    connection = await connect(cluster)
    for byte in connection.wire(get("a")):
        connection.writer.write(bytes((byte,)))
        await connection.writer.drain()
        await asyncio.sleep(0)
    assert (await connection.answer())[0] == 200
    assert passed_on == []
    connection.writer.close()


@pytest.mark.slow
async def test_a_client_that_reads_nothing_does_not_fill_the_memory(cluster: Cluster, passed_on: list[str]) -> None:
    """Once the write buffer is full its requests wait in line, and then are not even read."""
    await cluster.start()
    await cluster.create("t/n", 1)
    await cluster.assign("t/n/a")
    connection = await connect(cluster)
    batch = get("a") * 1_000
    sent = 0
    while not passed_on and sent < 1_000:
        connection.send(batch)
        sent += 1
        await asyncio.sleep(0.001)
    assert passed_on, "the short cut stopped"
    status, piece, answered = b"HTTP/1.1 200 ", b"", 0
    while answered < sent * 1_000:  # many thousands: they are counted, not parsed
        more = await asyncio.wait_for(connection.reader.read(1 << 20), WAIT_S)
        assert more, "the connection ended"
        piece = piece[-len(status) + 1 :] + more
        answered += piece.count(status)
    assert answered == sent * 1_000
    connection.writer.close()
