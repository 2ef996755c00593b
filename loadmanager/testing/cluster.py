"""A whole cluster in this process: real brokers on one SQLite file, with short times, that can be killed one by one.

Nothing is simulated: each broker has its control thread, its endpoints on a free port of the loopback and its own
replica. It differs from production in two ways: brokers share an interpreter, and the times in `QUICK`. A killed broker
calls none of its host's hooks any more, as if the process had ended.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import tempfile
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from loadmanager.broker.hooks import at_once
from loadmanager.broker.node import Node
from loadmanager.client.router import Router
from loadmanager.embedding.broker import Broker
from loadmanager.errors import Conflict, NotFound, Unavailable
from loadmanager.model.host import BundleHost
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle, Key
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State


class MortalHost:
    """Passes every hook on unchanged (coroutine function, plain function or `at_once`) while it lives."""

    def __init__(self, host: BundleHost) -> None:
        self._host = host
        self.killed = False

    @property
    def prepare(self) -> Callable[..., Any]:
        """As `BundleHost.prepare`."""
        return self._alive_or(_nothing, self._host.prepare)

    @property
    def acquire(self) -> Callable[..., Any]:
        """As `BundleHost.acquire`."""
        return self._alive_or(_nothing, self._host.acquire)

    @property
    def release(self) -> Callable[..., Any]:
        """As `BundleHost.release`."""
        return self._alive_or(_nothing, self._host.release)

    @property
    def abandon(self) -> Callable[..., Any]:
        """As `BundleHost.abandon`."""
        return self._alive_or(_nothing, self._host.abandon)

    @property
    def load(self) -> Callable[..., Any]:
        """As `BundleHost.load`."""
        return self._alive_or(_no_load, self._host.load)

    def __getattr__(self, name: str) -> Any:
        """Everything else that the host has."""
        return getattr(self._host, name)

    def _alive_or(self, dead: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        return dead if self.killed else hook


@at_once
def _nothing(*_: object) -> None:
    """The process is gone."""


@at_once
def _no_load() -> dict[Any, Any]:
    return {}


H = TypeVar("H")

NAMESPACE = "test/service"

QUICK: Mapping[str, Any] = {
    "partitions": 2,
    "proof_validity_s": 1.0,
    "session_timeout_s": 3.0,
    "monitor_interval_s": 0.5,
    "recovery_grace_s": 5.0,
    "in_flight_timeout_s": 15.0,
    "drain_timeout_s": 10.0,
    "load_window_s": 1.2,
    "balancing": False,
}
"""Settings with short times; `proof_validity_s` is most of what a failover takes. No bundle moves unless a test moves
it, or switches `balancing` on."""

SETTLE_TIMEOUT_S = 60.0
POLL_S = 0.01
NOTES_TOLD = 3

MakeHost = Callable[[], "H | Awaitable[H]"]
Urls = Callable[[Any], Mapping[str, str]]


@asynccontextmanager
async def embedded_cluster(
    make_host: MakeHost[H] | None = None,
    *,
    brokers: int = 3,
    namespace: str = NAMESPACE,
    bundles: int = 8,
    urls: Urls | Mapping[str, str] | None = None,
    directory: Path | None = None,
    **settings: Any,
) -> AsyncGenerator[EmbeddedCluster[H]]:
    """A running cluster whose bundles are spread evenly, for as long as the context is open.

    `make_host` is called for each broker, on this loop (it may be a coroutine function); a host with a method
    `attached` gets its `Broker` before the start. `urls` are the service's, or a function from a host to them. The
    files are in `directory`, by default a temporary one. Further settings replace those of `QUICK`. If a broker ended
    by itself, the cause is raised at the end.
    """
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadmanager-")))
        cluster: EmbeddedCluster[H] = EmbeddedCluster(make_host, directory, namespace, urls, settings)
        try:
            await cluster.add(brokers)
            if brokers:
                await cluster.create_namespace(namespace, bundles)
            yield cluster
        except BaseException:
            with suppress(Exception):  # the first error is what matters
                await cluster.close()
            raise
        await cluster.close()


class EmbeddedCluster(Generic[H]):
    """Brokers of this process and what a test does to them. Belongs to the loop that makes it.

    Name a bundle by itself, or by a topic or key in it (`"test/service/alice"`).
    """

    def __init__(
        self,
        make_host: MakeHost[H] | None,
        directory: Path,
        namespace: str,
        urls: Urls | Mapping[str, str] | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.namespace = namespace
        self.directory = directory
        self.brokers: list[Broker] = []
        """The live brokers, oldest first."""
        self._make_host = make_host
        self._urls = urls
        self._settings = {**QUICK, "log": f"sqlite:{directory / 'cluster.db'}", **settings}
        self._hosts: dict[Broker, H] = {}
        self._mortal: dict[Broker, MortalHost] = {}
        self._routers: list[Router] = []

    # --- brokers

    async def add(self, count: int = 1, **settings: Any) -> list[Broker]:
        """Start `count` more brokers; returns when all know each other. `advertised` names one, to start it again."""
        added = [await self._prepare(settings) for _ in range(count)]
        first = added[: 0 if self.brokers else 1]  # makes the files, and leads
        self.brokers += added
        for batch in (first, added[len(first) :]):
            await asyncio.gather(*(broker.start() for broker in batch))
        await self.until(self._all_known)
        return added

    async def _prepare(self, settings: Mapping[str, Any]) -> Broker:
        host: H | None = None
        if self._make_host is not None:
            made = self._make_host()
            host = cast("H", await made if inspect.isawaitable(made) else made)
        urls = self._urls(host) if callable(self._urls) else self._urls
        mortal = MortalHost(cast("BundleHost", host)) if host is not None else None
        chosen: dict[str, Any] = {**self._settings, **settings}
        broker = Broker(cast("BundleHost | None", mortal), Settings(**chosen), urls=urls)
        if host is not None and mortal is not None:
            self._hosts[broker], self._mortal[broker] = host, mortal
            attached = getattr(host, "attached", None)
            if attached is not None:
                attached(broker)
        return broker

    async def kill(self, broker: Broker) -> None:
        """End it as SIGKILL would: no hook of its host is called any more, nothing is drained or handed over.

        The others notice at once (a real crash takes half a second) and take over when its proofs have run out:
        `settled()` waits for that. The host object stays accessible; servers or tasks that it runs go on.
        """
        self.brokers.remove(broker)
        if broker in self._mortal:
            self._mortal[broker].killed = True

        async def die(node: Node) -> None:
            if node.incarnation is not None:
                node.current.fence()
            node.stop(0)

        with suppress(Unavailable):
            await broker.ask(die)
        await broker.stop(0)

    async def stop(self, broker: Broker) -> None:
        """End it as a roll-out would: its bundles are moved away first."""
        await broker.stop()
        self.brokers.remove(broker)

    async def restart(self, broker: Broker) -> Broker:
        """Start a broker of the same name again, with a new host, after it was stopped or killed."""
        if broker in self.brokers:
            await self.stop(broker)
        [again] = await self.add(advertised=broker.name)
        return again

    def host(self, broker: Broker) -> H:
        """The host that `make_host` made for it, also after its end."""
        return self._hosts[broker]

    # --- bundles

    async def create_namespace(self, namespace: str, bundles: int = 8) -> tuple[Bundle, ...]:
        """Create it, and spread its bundles evenly over the brokers; returns them when they are served."""
        await self._any.ensure_namespace(namespace, bundles)
        await self.until(lambda: all(_table(broker).namespace(namespace) is not None for broker in self.brokers))
        await self.settled(namespace)
        return self.bundles(namespace)

    def bundles(self, namespace: str | None = None) -> tuple[Bundle, ...]:
        """The bundles of a namespace, lowest first. Raises NotFound."""
        known = _table(self._any).namespace(namespace or self.namespace)
        if known is None:
            raise NotFound(f"there is no namespace {namespace or self.namespace}")
        return known.bundles

    def bundle(self, of: Bundle | str) -> Bundle:
        """The bundle of a topic or key. Raises NotFound, InvalidName."""
        if isinstance(of, Bundle):
            return of
        entry = _table(self._any).locate(Key.parse(of))
        if entry is None:
            raise NotFound(f"there is no namespace for {of}: this cluster made {self.namespace}")
        return entry.bundle

    def owner(self, of: Bundle | str) -> Broker | None:
        """The broker that serves it at this moment."""
        bundle = self.bundle(of)
        return next((broker for broker in self.brokers if broker.serving(bundle)), None)

    async def settled(self, *namespaces: str, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Return when each bundle (of these namespaces, by default of all) is served, and every broker knows its owner.

        Raises TimeoutError with the bundles that are not, and the last notes of each broker.
        """
        wanted: Sequence[str] = namespaces
        try:
            async with asyncio.timeout(timeout_s):
                wanted = wanted or await self._any.ask(_namespaces)
                while unsettled := self._unsettled(wanted):
                    orphans = [b for b in unsettled if _state(self._any, b) is State.UNASSIGNED]
                    await asyncio.gather(*map(self._assign, orphans))
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            left = [f"{b} is {_told(self._any, b)}" for b in self._unsettled(wanted)]
            notes = await asyncio.gather(*(broker.ask(_last_notes) for broker in self.brokers))
            told = "".join(f"\n  {broker.name}: {'; '.join(n)}" for broker, n in zip(self.brokers, notes, strict=True))
            raise TimeoutError(f"not settled within {timeout_s:g} s: {'; '.join(left) or 'it is now'}{told}") from None

    async def transfer(self, of: Bundle | str, to: Broker | str) -> Bundle:
        """Move it there, as an administrator would; returns when it is served there. Raises as `Broker.transfer`."""
        bundle, name = self.bundle(of), to if isinstance(to, str) else to.name
        await self._any.transfer(bundle, name)
        await self.settled(bundle.namespace)
        return bundle

    async def unload(self, of: Bundle | str) -> Bundle:
        """Take it from its owner; `settled()` or a request has it assigned again."""
        bundle = self.bundle(of)
        await self._any.ask(lambda node: node.current.operations.unload(bundle))
        return bundle

    async def split(
        self, of: Bundle | str, parts: int | None = None, *, positions: Sequence[int] | None = None
    ) -> tuple[Bundle, ...]:
        """Cut it into `parts` (default 2), or at positions of the ring; returns the children when they are served."""
        bundle = self.bundle(of)
        children = await self._any.ask(
            lambda node: node.current.operations.split(bundle, parts=parts, positions=positions)
        )
        await self.settled(bundle.namespace)
        return children

    # --- clients

    @property
    def admin_urls(self) -> list[str]:
        """Admin URLs of the live brokers: for a `Router`, an `HttpRouter`, or the command line."""
        return [f"http://{broker.name}" for broker in self.brokers]

    def router(self) -> Router:
        """A client's router, closed with the cluster."""
        router = Router(self.admin_urls)
        self._routers.append(router)
        return router

    async def until(self, holds: Callable[[], bool], timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Wait for a condition, asked again and again. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not holds():  # noqa: ASYNC110 - the world rings no bell
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """End all brokers, without moving bundles away. Raises what ended a broker before."""
        for router in self._routers:
            await router.close()
        left, self.brokers = self.brokers, []
        await asyncio.gather(*(broker.stop(0) for broker in left))
        for broker in left:
            await broker.ended()

    # --- inside

    @property
    def _any(self) -> Broker:
        if not self.brokers:
            raise Unavailable("no broker of this cluster is alive: add one")
        return self.brokers[0]

    async def _assign(self, bundle: Bundle) -> None:
        """Assign bundles to brokers in turn, by place in the namespace: repeating it gives the same owner."""
        with suppress(Conflict, NotFound, Unavailable):  # another caller did, or it is gone: the caller looks again
            place = bisect_left(self.bundles(bundle.namespace), bundle)
            to = self.brokers[place % len(self.brokers)]
            await to.transfer(bundle, to.name)

    def _all_known(self) -> bool:
        names = {broker.name for broker in self.brokers}
        return all(
            names <= set(broker.node.peers()) and broker.node.world.coordination.leadership is not None
            for broker in self.brokers
        )

    def _unsettled(self, namespaces: Sequence[str]) -> list[Bundle]:
        return [bundle for name in namespaces for bundle in self.bundles(name) if not self._is_settled(bundle)]

    def _is_settled(self, bundle: Bundle) -> bool:
        owner = self.owner(bundle)
        if owner is None:
            return False
        seen = [_table(broker).get(bundle) for broker in self.brokers]
        return all(
            entry is not None
            and entry.state is State.ASSIGNED
            and entry.holder is not None
            and entry.holder.name == owner.name
            for entry in seen
        )


def _table(broker: Broker) -> OwnershipTable:
    return broker.node.channel.table


async def _last_notes(node: Node) -> list[str]:
    return [note.text for note in itertools.islice(reversed(node.notes), NOTES_TOLD)]


async def _namespaces(node: Node) -> list[str]:
    return list(node.channel.table.namespaces())


def _state(broker: Broker, bundle: Bundle) -> State | None:
    entry = _table(broker).get(bundle)
    return entry.state if entry is not None else None


def _told(broker: Broker, bundle: Bundle) -> str:
    entry = _table(broker).get(bundle)
    return f"{entry.state} at {entry.holder}" if entry is not None else "gone"
