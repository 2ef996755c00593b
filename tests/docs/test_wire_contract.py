"""docs/wire-contract.md: every request of the page is sent to real brokers, and answered as the page says.

The page has its own addresses; `Cluster.real` puts those of the brokers of this test in their place, so that an answer
which names the wrong broker is seen. What differs from run to run (tokens, revisions, times) counts as one value each.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from aiohttp import web

from examples.embed_asyncio import NAMESPACE, Greetings
from loadmanager import Broker, Bundle, Key
from statechannel.law.transitions import State
from tests.loadmanager.embedded import until
from tests.pages import Block, blocks

PAGE = "docs/wire-contract.md"
KEY = f"{NAMESPACE}/ada"
PATIENCE_S = 60.0
VARYING = {"incarnation", "partition", "revision", "offset", "epoch", "at_ms", "record_id", "token", "cause", "resume"}


class Cluster:
    """Two brokers with the service of the page; the first one owns the key."""

    def __init__(self, brokers: list[Broker], ports: list[int]) -> None:
        self.owner, self.other = brokers
        self._addresses: dict[str, str] = {}
        for number, (broker, port) in enumerate(zip(brokers, ports, strict=True), 1):
            self._addresses[f"10.0.0.{number}:8080"] = broker.name
            self._addresses[f"10.0.0.{number}:9000"] = f"127.0.0.1:{port}"

    def real(self, text: str) -> str:
        """The text with the addresses of this cluster."""
        return re.sub(r"10\.0\.0\.\d:\d+", lambda found: self._addresses[found[0]], text)

    async def move(self) -> None:
        """The key's bundle to the other broker."""
        await self.owner.transfer(bundle_of(self.owner), self.other.name)

    async def answer(self, request: str) -> tuple[str, dict[str, str], str]:
        """Status line, headers by their lower names, and body, of a request as the page has it."""
        reader, writer = await self.begin(request)
        async with asyncio.timeout(PATIENCE_S):
            received = (await reader.read()).decode()
        writer.close()
        return parts(received.replace("\r\n", "\n"))

    async def begin(self, request: str, connection: str = "close") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        first, headers, body = parts(self.real(request))
        headers |= {"connection": connection, **({"content-length": str(len(body.encode()))} if body else {})}
        host, port = headers["host"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = "\r\n".join([first, *(f"{name}: {value}" for name, value in headers.items())])
        writer.write(f"{head}\r\n\r\n{body}".encode())
        return reader, writer


def parts(text: str) -> tuple[str, dict[str, str], str]:
    head, _, body = text.strip().partition("\n\n")
    first, *lines = head.splitlines()
    return first, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}, body


@asynccontextmanager
async def cluster(directory: Path) -> AsyncGenerator[Cluster]:
    async with AsyncExitStack() as stack:
        brokers, ports = [], list[int]()
        for _ in range(2):
            greetings, app = Greetings(), web.Application()
            app.router.add_get("/greetings/{name}", greetings.get)
            runner = web.AppRunner(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            ports.append(runner.addresses[0][1])
            urls, log = {"http": f"http://127.0.0.1:{ports[-1]}"}, f"sqlite:{directory}/cluster.db"
            greetings.broker = Broker(log=log, urls=urls, lookup_timeout_s=2.0, drain_timeout_s=1.0)  # type: ignore[attr-defined]
            brokers.append(await stack.enter_async_context(greetings.broker))  # type: ignore[attr-defined]
        await brokers[0].ensure_namespace(NAMESPACE, bundles=2)
        for broker in brokers:
            await until(lambda b=broker: len(b.node.peers()) == 2 and len(b.node.channel.table) > 0)
        await brokers[0].transfer(bundle_of(brokers[0]), brokers[0].name)
        await until(lambda: holder(brokers[1]) == brokers[0].name)
        yield Cluster(brokers, ports)


def bundle_of(broker: Broker) -> Bundle:
    entry = broker.node.channel.table.locate(Key.parse(KEY))
    assert entry is not None
    return entry.bundle


def holder(broker: Broker) -> str:
    """Who serves the key, as this broker knows; "" while nobody does."""
    entry = broker.node.channel.table.get(bundle_of(broker))
    return entry.holder.name if entry and entry.holder and entry.state is State.ASSIGNED else ""


def all_drain(seen_by: Broker) -> bool:
    return all(peer.registration.draining for peer in seen_by.node.peers().values())


def exchanges() -> list[tuple[Block, Block]]:
    """Requests with their answers; the one of the watch has events instead."""
    found = [block for block in blocks(PAGE) if block.title]
    return [(one, two) for one, two in pairwise(found) if one.title.startswith("request") and two.title == "answer"]


def same(expected: Any, found: Any) -> None:
    """Compare two JSON values; what varies must be there, and be of the same kind."""
    if isinstance(expected, dict) and isinstance(found, dict):
        assert expected.keys() == found.keys()
        for name in expected:
            if name in VARYING:
                assert type(expected[name]) is type(found[name]), name
            else:
                same(expected[name], found[name])
    elif isinstance(expected, list):
        assert len(expected) == len(found)
        for one, two in zip(expected, found, strict=True):
            same(one, two)
    else:
        assert expected == found


def varies(text: str) -> str:
    return re.sub(r"\d{4}-\d{5}-\d{15}", "TOKEN", text)


async def compare(running: Cluster, request: str, answer: str) -> None:
    """Send the request, and find in what comes back all that the page has: status, headers, body."""
    status, headers, body = await running.answer(request)
    wanted_status, wanted_headers, wanted_body = parts(running.real(answer))
    assert status == wanted_status, body
    for name, value in wanted_headers.items():
        assert varies(headers[name]) == varies(value), name
    if "json" in wanted_headers["content-type"]:
        same(json.loads(wanted_body), json.loads(body))
    else:
        assert body == wanted_body


async def test_every_request_is_answered_as_the_page_says(tmp_path: Path):
    async with cluster(tmp_path) as running:
        for request, answer in exchanges():
            if "no broker takes" in request.title:
                for broker in (running.other, running.owner):
                    await broker.drain(0)
                await until(lambda: all_drain(running.owner))  # else it assigns to a broker that it takes for willing
            elif "left" in request.title:
                for broker in (running.other, running.owner):
                    await broker.stop(0)
            await compare(running, request.text, answer.text)
    assert len(exchanges()) == 6


async def test_a_watch_tells_the_table_and_each_change_as_the_page_says(tmp_path: Path):
    request = next(block.text for block in blocks(PAGE) if "/v1/watch" in block.text and block.language == "http")
    wanted = [block.text for block in blocks(PAGE) if block.title == "event"]
    async with cluster(tmp_path) as running:
        reader, writer = await running.begin(request, "keep-alive")
        async with asyncio.timeout(PATIENCE_S):
            told = b""
            while told.count(b"snapshot-end") < 1:
                told += await reader.read(65536)
            await running.move()
            while b'"action":"return"' not in told:
                told += await reader.read(65536)
        writer.close()
        events = [event_of(text) for text in chunks_of(told) if "event:" in text]
        for text in wanted:
            kind, number, data = event_of(running.real(text))
            assert any(
                kind == event and (number is None) == (other is None) and is_same(data, found)
                for event, other, found in events
            ), f"{text}\n{events}"


def chunks_of(told: bytes) -> list[str]:
    """The events, without the sizes of chunked encoding between them."""
    text = told.decode().partition("\r\n\r\n")[2]
    return re.sub(r"\r\n[0-9a-f]+\r\n|^[0-9a-f]+\r\n", "", text).replace("\r\n", "\n").split("\n\n")


def event_of(text: str) -> tuple[str, str | None, Any]:
    """Its kind, its id if it has one, and its data."""
    lines = (line.partition(": ") for line in text.strip().splitlines())
    fields = {name: value for name, _, value in lines}
    return fields["event"], fields.get("id"), json.loads(fields["data"])


def is_same(expected: Any, found: Any) -> bool:
    try:
        same(expected, found)
    except AssertionError:
        return False
    return True
