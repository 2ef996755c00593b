"""A cluster of real brokers on one SQLite file, each with its endpoints open, in this process and on this loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from ssl import SSLContext
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.node import Node
from loadmanager.broker.wiring import dependencies
from loadmanager.model.host import BundleLoad, Destination
from loadmanager.settings import Settings
from loadmanager_api.http.connections import Connection
from loadmanager_api.server import serve
from statechannel.law.bundle import Bundle, Key, even_boundaries
from statechannel.law.record import Token
from tests.api import declared
from tests.loadmanager.embedded import PATIENT

WAIT_S = 60.0


class Host:
    """A service that takes everything; while `gate` is closed, `prepare` and `acquire` hang."""

    def __init__(self) -> None:
        self.held: dict[Bundle, Token] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def prepare(self, bundle: Bundle) -> None:
        await self.gate.wait()

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        await self.gate.wait()
        self.held[bundle] = token

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
        self.held.pop(bundle, None)
        return None

    async def abandon(self, bundle: Bundle) -> None:
        self.held.pop(bundle, None)

    async def load(self) -> dict[Bundle, BundleLoad]:
        return {bundle: BundleLoad(keys=1, in_rate_msg_s=10) for bundle in self.held}


class Broker:
    """One node with its endpoints."""

    def __init__(self, node: Node, host: Host, url: str, running: asyncio.Task[None]) -> None:
        self.node = node
        self.host = host
        self.url = url
        self.running = running

    @property
    def name(self) -> str:
        return self.node.settings.advertised


class Cluster:
    """Brokers that know each other, and a client that asks them."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self.brokers: list[Broker] = []
        self.settings: dict[str, Any] = {}
        """Of all brokers that are started."""
        self.tls: SSLContext | None = None
        self.credentials: dict[str, str] = {}
        """Headers of requests that bring none of their own."""
        self._path = path
        self._stack = stack
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S))

    async def start(self, count: int = 1, **settings: Any) -> None:
        """Start so many more; returns when each knows all and somebody leads."""
        for _ in range(count):
            await self._start_one(settings)
        await self.until(self._all_known)

    async def _start_one(self, changed: dict[str, Any]) -> None:
        name = changed.get("advertised", f"127.0.0.1:{7001 + len(self.brokers)}")
        chosen: dict[str, Any] = {"load_window_s": 0.6, **PATIENT, **self.settings, **changed, "advertised": name}
        settings = Settings(log=f"sqlite:{self._path / 'lm.db'}", **chosen)
        host = Host()
        node = Node(settings, host, HostRunner(), dependencies(settings))
        node.registration = msgspec.structs.replace(
            node.registration, urls={"pulsar": f"pulsar://{name}", "http": f"http://{name}"}
        )
        url = await self._stack.enter_async_context(serve(node))
        broker = Broker(node, host, url, asyncio.create_task(node.run()))
        self.brokers.append(broker)
        await asyncio.wait_for(node.ready.wait(), WAIT_S)

    def _all_known(self) -> bool:
        names = {broker.name for broker in self.brokers}
        return all(
            set(b.node.membership.peers) == names
            and b.node.world.coordination.leadership is not None
            and all(b.node.channel.table.lead(p).epoch for p in range(b.node.channel.table.partitions))
            for b in self.brokers
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.005)

    async def create(self, namespace: str, bundles: int = 4) -> tuple[Bundle, ...]:
        """A namespace that every broker knows."""
        await self.brokers[0].node.current.operations.create_namespace(namespace, even_boundaries(bundles))
        await self.until(lambda: all(namespace in b.node.channel.table.namespaces() for b in self.brokers))
        known = self.brokers[0].node.channel.table.namespace(namespace)
        assert known is not None
        return known.bundles

    async def agree(self) -> None:
        """Return when every broker has read what the log holds now: one answers what another may not know yet."""
        for broker in self.brokers:
            await broker.node.channel.catch_up(WAIT_S)

    async def assign(self, topic: str) -> Bundle:
        """Have the topic's bundle owned by somebody, as every broker knows."""
        located = await self.brokers[0].node.current.lookup.locate(Key.parse(topic), WAIT_S)
        await self.until(lambda: all(self.owner(located.bundle, b) == located.owner.name for b in self.brokers))
        return located.bundle

    def owner(self, bundle: Bundle, seen_by: Broker | None = None) -> str | None:
        entry = (seen_by or self.brokers[0]).node.channel.table.get(bundle)
        return entry.holder.name if entry and entry.holder else None

    def other(self, name: str | None) -> Broker:
        return next(broker for broker in self.brokers if broker.name != name)

    def of(self, name: str | None) -> Broker:
        return next(broker for broker in self.brokers if broker.name == name)

    async def ask(self, method: str, path: str, *, at: int = 0, **options: Any) -> tuple[int, Any, Any]:
        """(status, body, headers); the body is parsed if it is JSON. Fails for an answer that no document declares."""
        options.setdefault("allow_redirects", False)
        options["headers"] = options.get("headers", self.credentials)
        if self.tls is not None:
            options.setdefault("ssl", self.tls)
        async with self.session.request(method, self.brokers[at].url + path, **options) as response:
            body = await response.read()
            kind = response.headers.get("Content-Type", "")
            declared.check(method, path, response.status, response.headers, body)
            return (
                response.status,
                msgspec.json.decode(body) if body and "json" in kind else body.decode(),
                response.headers,
            )

    def history(self) -> list[tuple[int, ...]]:
        """The revisions of all namespaces and bundles at the first broker: equal as long as nothing was changed.

        Not the offsets: proofs and elections write too.
        """
        table = self.brokers[0].node.channel.table
        known = [table.namespace(name) for name in table.namespaces()]
        bundles = [(entry.bundle.lo, entry.bundle.hi, entry.revision) for entry in sorted(table, key=str)]
        return [(n.revision, len(n.bundles)) for n in known if n is not None] + bundles

    async def close(self) -> None:
        await self.session.close()
        for broker in self.brokers:
            broker.host.gate.set()
            broker.node.stop(drain_timeout_s=0.01)
        running = [broker.running for broker in self.brokers]
        left = (await asyncio.wait(running, timeout=WAIT_S))[1] if running else set[asyncio.Task[None]]()
        for broker in self.brokers:
            if broker.running in left:
                for task in asyncio.all_tasks():
                    task.print_stack()
                pytest.fail(f"{broker.name} did not stop: {list(broker.node.notes)[-5:]}")
        await self._stack.aclose()


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """No broker yet: `await cluster.start(n)`."""
    cluster = Cluster(tmp_path, AsyncExitStack())
    try:
        yield cluster
    finally:
        await cluster.close()


Refused = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def refused(cluster: Cluster) -> Refused:
    """Asks for something impossible: the answer is a problem of the given status, and nothing has changed."""

    async def ask(status: int, method: str, path: str, **options: Any) -> dict[str, Any]:
        before = cluster.history()
        found, body, headers = await cluster.ask(method, path, **options)
        assert found == status, body
        assert headers["Content-Type"] == "application/problem+json"
        assert body["status"] == status
        assert body["title"]
        assert body["type"].startswith("urn:loadmanager:problem:")
        assert body["reason"] == body["detail"] != ""
        assert "Traceback" not in body["detail"]
        await cluster.brokers[0].node.channel.read_back(0, cluster.brokers[0].node.current.me)
        assert cluster.history() == before
        return body

    return ask


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Bytes that brokers have read, by the client's port."""
    found, read = Counter[int](), Connection.data_received

    def counted(connection: Connection, data: bytes) -> None:
        assert connection.client is not None
        found[connection.client[1]] += len(data)
        read(connection, data)

    monkeypatch.setattr(Connection, "data_received", counted)
    return found
