"""Embeds a broker in a service: `Broker` for asyncio, `SyncBroker` for threads. Ten lines make a service sharded.

    class Shop:                                    # a BundleHost, see loadmanager.model.host
        async def acquire(self, bundle, token, hand_off): ...
        async def release(self, bundle, to):
            await broker.quiesce(bundle)           # requests in progress end first: none fails
        ...

    async with Broker(Shop(), log="sqlite:cluster.db", urls={"http": my_url}) as broker:
        async with broker.admit("shop/carts/alice") as claim:
            ...                                    # serve; give claim.token to the storage

The control plane runs on a thread of its own (`control.py`), the host's coroutine hooks on the loop that entered the
`Broker`, its plain hooks on worker threads. `gate.py` admits requests, the node does the rest. `live` runs a broker in
a process of its own: the first SIGTERM or SIGINT lets it leave gracefully, the second one ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from loadmanager.broker.drain import DrainProgress
from loadmanager.broker.lookup import Located
from loadmanager.broker.node import Node
from loadmanager.broker.serving import Claim
from loadmanager.client.redirection import Moved, NotServing
from loadmanager.embedding.control import Control, StatelessHost
from loadmanager.embedding.endpoints import Endpoint, closed_endpoint, installed_endpoint
from loadmanager.embedding.gate import Admission, Gate
from loadmanager.errors import Conflict, MissingExtra
from loadmanager.model.boundaries import DEFAULT_BUNDLES
from loadmanager.model.host import BundleHost
from loadmanager.settings import Settings
from loadmanager.settings.by_name import Given, settings_of
from statechannel.law.bundle import Bundle, even_boundaries, parse_key

ADMIT_TIMEOUT_S = 5.0
"""How long a request waits for a bundle on its way here; a failover at default settings takes less."""

_log = logging.getLogger("loadmanager")

T = TypeVar("T")


class Embedded:
    """What both brokers in a service have: their control thread, and all that any thread may ask without waiting."""

    def __init__(
        self,
        host: BundleHost | None = None,
        settings: Settings | None = None,
        *,
        urls: Mapping[str, str] | None = None,
        endpoint: Endpoint | bool | None = None,
        bind: str | None = None,
        **more: Unpack[Given],
    ) -> None:
        """Start nothing yet. Raises TypeError, Invalid."""
        if settings is None:
            settings = settings_of(more)
        elif more:
            raise TypeError(f"give settings, or {', '.join(more)} by name, not both")
        stateless = StatelessHost()
        self._control = Control(
            host or stateless, settings, urls or {}, _endpoint(endpoint), bind or settings.advertised
        )
        stateless.control = self._control

    def serving(self, bundle: Bundle) -> bool:
        """Whether this broker may serve the bundle at this moment. Any thread; no lock, no waiting."""
        serving = self._control.serving
        return serving is not None and serving.serving(bundle)

    def claim(self, topic: str) -> Claim | None:
        """The bundle and token under which this broker may serve the key at this moment, None if it may not."""
        serving = self._control.serving
        return None if serving is None else serving.claim_topic(parse_key(topic))

    def admit(self, topic: str, timeout_s: float = ADMIT_TIMEOUT_S, *, cluster: str | None = None) -> Admission:
        """`[async] with broker.admit(topic) as claim:` around a request: we serve it, and count it until it ends.

        A request waits for at most `timeout_s` while its bundle is on its way here. Raises Moved (ask there),
        NotServing (try later), NotFound (no such namespace), InvalidName.
        `cluster` is the request's header `Loadmanager-Cluster`: a request for another cluster raises AnotherCluster, a
        NotServing.
        """
        return Admission(self.gate, topic, timeout_s, cluster)

    @property
    def name(self) -> str:
        """The advertised `host:port`, with the actual port if it was given as 0."""
        return self._control.settings.advertised

    @property
    def node(self) -> Node:
        """The node behind it; belongs to the control loop (`ask`), except `serving` and reading the table."""
        return self._control.node

    @property
    def gate(self) -> Gate:
        """The gate behind `admit` and `quiesce`."""
        return self._control.gate

    def _locating(self, topic: str, timeout_s: float | None) -> Callable[[Node], Coroutine[Any, Any, Located]]:
        parsed = parse_key(topic)
        return lambda node: node.current.lookup.locate(
            parsed, node.settings.lookup_timeout_s if timeout_s is None else timeout_s
        )

    def _draining(self, timeout_s: float | None) -> Callable[[Node], Coroutine[Any, Any, DrainProgress]]:
        return lambda node: node.drain(node.settings.drain_timeout_s if timeout_s is None else timeout_s)

    def _ensuring(self, namespace: str, bundles: int | None) -> Callable[[Node], Coroutine[Any, Any, None]]:
        async def ensure(node: Node) -> None:
            known = node.channel.table.namespace(namespace)
            if known is not None and known.exists:
                return
            try:
                count = DEFAULT_BUNDLES if bundles is None else bundles
                await node.current.operations.create_namespace(namespace, even_boundaries(count))
            except Conflict:
                return  # another process created it at the same moment

        return ensure


def _endpoint(endpoint: Endpoint | bool | None) -> Endpoint:
    if endpoint is None:
        try:
            return installed_endpoint()
        except MissingExtra as missing:
            _log.warning("%s; give endpoint=False to run without it", missing)
            return closed_endpoint
    return installed_endpoint() if endpoint is True else closed_endpoint if endpoint is False else endpoint


class Broker(Embedded):
    """A broker inside an asyncio service. `async with`, or `await start()` and `await stop()`, on the service's loop.

    `host` gets the hooks when bundles come and go; a service without state needs none. Give `settings`, or settings by
    name (`log="sqlite:cluster.db"`, `advertised="10.0.0.7:8080"`, …); the others come from the environment. `urls` are
    the service's own, by protocol: clients and other brokers get them. `advertised` is this broker's name and the
    address of its admin endpoint; port 0 takes a free one. `bind` is the address to listen on, if it differs.
    `endpoint=None` opens the admin interface if it is installed, else only an empty port, as `endpoint=False` does;
    `endpoint=True` requires it.
    """

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Return when this broker is registered and takes bundles. Raises errors of `statechannel.errors`, OSError."""
        self._control.start(asyncio.get_running_loop())
        try:
            await asyncio.wrap_future(self._control.started)
        except asyncio.CancelledError:
            await self.stop(0)
            raise

    async def stop(self, drain_timeout_s: float | None = None) -> None:
        """Move all bundles away (for at most `drain_timeout_s`, default: the setting), then leave. Idempotent.

        Returns at the latest some seconds after the drain's time-out, even if the control thread hangs; `ended()` then
        raises. Keep the service's port open a little longer, to redirect clients that do not know yet.
        """
        limit_s = self._control.stop(drain_timeout_s)
        ended = asyncio.wrap_future(self._control.ended)
        done, _ = await asyncio.wait((ended,), timeout=limit_s)
        if not done:
            self._control.give_up()
            await asyncio.wait((ended,))
        ended.exception()  # marks it as retrieved; `ended()` raises it

    async def ended(self) -> None:
        """Return when this broker has left. Raises its error if it failed."""
        await asyncio.shield(asyncio.wrap_future(self._control.ended))

    async def run_until_signal(self, ready: Callable[[], object] | None = None) -> None:
        """Serve until SIGTERM or SIGINT, then leave as `stop` does; a second signal ends the process at once.

        `ready` is called once signals are handled: the moment to report that the service runs. Returns when this broker
        has left; raises its error if it failed. Call it on the main thread, after `start`.
        """
        loop, leaving = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        with leaving_on_signal(lambda: leaving.add(loop.create_task(self.stop())), loop):
            if ready is not None:
                ready()
            await self.ended()

    # --- requests in progress

    async def left(self, claim: Claim) -> Moved | NotServing:
        """For long connections: wait until the bundle of an admitted claim leaves; returns where the client should go.

        A `release` that waits in `quiesce` continues once the connection has ended. A split ends the claim, too.
        """
        return await self.gate.left(claim)

    async def quiesce(self, bundle: Bundle, timeout_s: float | None = None) -> bool:
        """For `release`: wait until no admitted request of the bundle is in progress. Returns True if none is.

        Gives up after `timeout_s`, by default a little before the time-out of `release`.
        """
        if timeout_s is None:
            timeout_s = self._control.quiesce_timeout_s
        return await self.gate.quiesce(bundle, timeout_s)

    # --- the cluster

    async def locate(self, topic: str, timeout_s: float | None = None) -> Located:
        """Where the key is served; assigns its bundle if it has no owner. Raises NotFound, Unavailable, InvalidName."""
        return await self.ask(self._locating(topic, timeout_s))

    async def drain(self, timeout_s: float | None = None) -> DrainProgress:
        """Take no more bundles and move all away; returns the progress when done, or after `timeout_s`."""
        return await self.ask(self._draining(timeout_s))

    async def ensure_namespace(self, namespace: str, bundles: int | None = None) -> None:
        """Create the namespace with evenly cut bundles, unless it exists. Raises Invalid, Unavailable, InvalidName."""
        await self.ask(self._ensuring(namespace, bundles))

    async def transfer(self, bundle: Bundle, destination: str) -> None:
        """Move the bundle to the broker of that name. Raises as `Operations.transfer`."""
        await self.ask(lambda node: node.current.operations.transfer(bundle, destination))

    async def ask(self, work: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Run `work(node)` on the control loop; returns its result. For all that this facade does not offer."""
        return await asyncio.wrap_future(self._control.ask(work))


HEEDED_WITHIN_S = 0.25


class SyncBroker(Embedded):
    """A broker inside a service of threads: as `Broker`, with plain functions. All hooks of the host must be plain."""

    def __init__(
        self,
        host: BundleHost | None = None,
        settings: Settings | None = None,
        *,
        urls: Mapping[str, str] | None = None,
        endpoint: Endpoint | bool | None = None,
        bind: str | None = None,
        **more: Unpack[Given],
    ) -> None:
        for name in (
            ("prepare", "acquire", "release", "abandon", "load", "positions", "rates") if host is not None else ()
        ):
            hook = getattr(host, name, None)
            if iscoroutinefunction(hook):
                raise TypeError(f"{hook.__qualname__} is a coroutine function: use Broker, or make it a plain one")
        super().__init__(host, settings, urls=urls, endpoint=endpoint, bind=bind, **more)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Return when this broker is registered and takes bundles. Raises errors of `statechannel.errors`, OSError."""
        self._control.start(None)
        self._control.started.result()

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """Move all bundles away (for at most `drain_timeout_s`, default: the setting), then leave; as `Broker.stop`."""
        limit_s = self._control.stop(drain_timeout_s)
        try:
            self._control.ended.exception(limit_s)
        except TimeoutError:
            self._control.give_up()

    def run_until_signal(self, ready: Callable[[], object] | None = None) -> None:
        """Block until SIGTERM or SIGINT, then leave as `stop` does; a second signal ends the process at once.

        `ready` is called once signals are handled: the moment to report that the service runs. Returns when this broker
        has left; raises its error if it failed. Call it on the main thread, after `start`.
        """
        with leaving_on_signal(threading.Thread(target=self.stop, name="loadmanager-leaving").start):
            if ready is not None:
                ready()
            # Python handles a signal between two of its instructions: one endless wait could delay it forever.
            while not wait((self._control.ended,), HEEDED_WITHIN_S).done:
                pass
            self._control.ended.result()

    def left(self, claim: Claim, timeout_s: float | None = None) -> Moved | NotServing | None:
        """For long connections: block until the bundle of an admitted claim leaves; returns where the client should go.

        None if it has not left within `timeout_s`. See `Broker.left`.
        """
        return self.gate.left_blocking(claim, timeout_s)

    def quiesce(self, bundle: Bundle, timeout_s: float | None = None) -> bool:
        """For `release`: block until no admitted request of the bundle is in progress. Returns True if none is.

        Gives up after `timeout_s`, by default a little before the time-out of `release`.
        """
        if timeout_s is None:
            timeout_s = self._control.quiesce_timeout_s
        return self.gate.quiesce_blocking(bundle, timeout_s)

    def locate(self, topic: str, timeout_s: float | None = None) -> Located:
        """Where the key is served; assigns its bundle if it has no owner. Raises NotFound, Unavailable, InvalidName."""
        return self.ask(self._locating(topic, timeout_s))

    def drain(self, timeout_s: float | None = None) -> DrainProgress:
        """Take no more bundles and move all away; returns the progress when done, or after `timeout_s`."""
        return self.ask(self._draining(timeout_s))

    def ensure_namespace(self, namespace: str, bundles: int | None = None) -> None:
        """Create the namespace with evenly cut bundles, unless it exists. Raises Invalid, Unavailable, InvalidName."""
        self.ask(self._ensuring(namespace, bundles))

    def transfer(self, bundle: Bundle, destination: str) -> None:
        """Move the bundle to the broker of that name. Raises as `Operations.transfer`."""
        self.ask(lambda node: node.current.operations.transfer(bundle, destination))

    def ask(self, work: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Run `work(node)` on the control loop; returns its result. For all that this facade does not offer."""
        return self._control.ask(work).result()


SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def leaving_on_signal(leave: Callable[[], object], loop: asyncio.AbstractEventLoop | None = None) -> Generator[None]:
    """Call `leave` at the first signal, on the loop if given. For the main thread; restores the handlers at the end."""
    told = False

    def handle(number: int, _frame: object = None) -> None:
        nonlocal told
        if told:
            os._exit(128 + number)
        told = True
        leave()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        if loop is not None:
            loop.add_signal_handler(number, handle, number)
        else:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            if loop is not None:
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def live(broker: Broker, leave: asyncio.Event, ready: Callable[[], object]) -> None:
    """Start the broker, call `ready`, and let it leave in order once `leave` is set. Raises its error if it fails."""
    await _first(broker.start(), leave.wait())
    if not leave.is_set():
        ready()
        await _first(broker.ended(), leave.wait())
    await broker.stop()
    await broker.ended()


async def _first(*works: Awaitable[object]) -> None:
    """Wait until one is done, and cancel the others. Raises the error of the first one."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
