"""Brokers embedded in a test: real ones, on a SQLite file, with a host that remembers what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from loadmanager import Broker, Bundle, BundleLoad, Destination, Key, Token
from loadmanager.settings import Settings

NAMESPACE = "shop/carts"
TOPIC = f"{NAMESPACE}/alice"
PATIENT: Mapping[str, Any] = {"proof_validity_s": 5.0, "session_timeout_s": 10.0}
"""Of brokers whose failures a test does not try: a machine that stalls for seconds fences none of them."""


class Host:
    """A BundleHost that holds what it is given. `broker` is set before it starts."""

    broker: Broker

    def __init__(self) -> None:
        self.held: dict[Bundle, Token] = {}
        self.handed: list[bytes | None] = []
        self.abandoned: list[Bundle] = []

    async def prepare(self, bundle: Bundle) -> None:
        """Nothing to warm up."""

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        self.handed.append(hand_off)
        self.held[bundle] = token

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
        await self.broker.quiesce(bundle)
        del self.held[bundle]
        return b"from " + self.broker.name.encode()

    async def abandon(self, bundle: Bundle) -> None:
        self.abandoned.append(bundle)
        self.held.pop(bundle, None)

    async def load(self) -> Mapping[Bundle, BundleLoad]:
        return {bundle: BundleLoad() for bundle in self.held}


def embedded(directory: Path, host: Host | None = None, **settings: Any) -> Broker:
    """A broker that has not started, without an admin interface unless `endpoint` says otherwise."""
    host = host or Host()
    chosen = {"log": f"sqlite:{directory}/cluster.db", "drain_timeout_s": 5.0, **settings}
    options = {name: chosen.pop(name) for name in ("urls", "endpoint", "bind") if name in chosen}
    options = {"urls": {"http": "http://127.0.0.1:1"}, "endpoint": False, **options}
    host.broker = Broker(host, Settings(**chosen), **options)
    return host.broker


@asynccontextmanager
async def cluster(directory: Path, *hosts: Host, bundles: int = 4, **settings: Any) -> AsyncGenerator[list[Broker]]:
    """Running brokers with one namespace, one for each host, the first of which owns all bundles."""
    brokers = [embedded(directory, host, **{**PATIENT, **settings}) for host in hosts]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_stop_all, brokers)
        for broker in brokers:
            await broker.start()
            if broker is brokers[0]:
                await broker.ensure_namespace(NAMESPACE, bundles)
                for bundle in bundles_of(broker):
                    await broker.transfer(bundle, broker.name)
        for broker in brokers:
            await until(lambda b=broker: all(entry.holder for entry in b.node.channel.table))
            await until(lambda b=broker: len(b.node.peers()) == len(brokers))
        yield brokers


async def _stop_all(brokers: list[Broker]) -> None:
    await asyncio.gather(*(broker.stop(0) for broker in brokers))


def bundles_of(broker: Broker) -> tuple[Bundle, ...]:
    known = broker.node.channel.table.namespace(NAMESPACE)
    assert known is not None
    return known.bundles


def bundle_of(broker: Broker, topic: str = TOPIC) -> Bundle:
    entry = broker.node.channel.table.locate(Key.parse(topic))
    assert entry is not None
    return entry.bundle


async def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for a condition of other threads."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)
