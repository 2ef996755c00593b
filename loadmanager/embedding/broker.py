"""Embeds a broker in an asyncio service (`sync_broker.py`: in a service of threads). Ten lines make a service sharded.

    class Shop:                                    # a BundleHost, see loadmanager.model.host
        async def acquire(self, bundle, token, hand_off): ...
        async def release(self, bundle, to):
            await broker.quiesce(bundle)           # requests in progress end first: none fails
        ...

    async with Broker(Shop(), log="sqlite:cluster.db", urls={"http": my_url}) as broker:
        async with broker.admit("shop/carts/alice") as claim:
            ...                                    # serve; give claim.token to the storage

The control plane runs on a thread of its own (`control.py`), the host's coroutine hooks on the loop that entered the
`Broker`, its plain hooks on worker threads. `gate.py` admits requests, the node does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from loadmanager.broker.drain import DrainProgress
from loadmanager.broker.lookup import Located
from loadmanager.broker.node import Node
from loadmanager.broker.serving import Claim
from loadmanager.client.redirection import Moved, NotServing
from loadmanager.embedding.endpoints import Endpoint
from loadmanager.embedding.facade import ADMIT_TIMEOUT_S, draining, embed, ensuring, locating
from loadmanager.embedding.gate import Admission, Gate
from loadmanager.embedding.signals import leaving_on_signal
from loadmanager.model.host import BundleHost
from loadmanager.settings import Settings
from loadmanager.settings.given import Given
from statechannel.law.bundle import Bundle, parse_key

T = TypeVar("T")


class Broker:
    """A broker inside an asyncio service. `async with`, or `await start()` and `await stop()`, on the service's loop.

    `host` gets the hooks when bundles come and go; a service without state needs none. Give `settings`, or settings by
    name (`log="sqlite:cluster.db"`, `advertised="10.0.0.7:8080"`, …); the others come from the environment. `urls` are
    the service's own, by protocol: clients and other brokers get them. `advertised` is this broker's name and the
    address of its admin endpoint; port 0 takes a free one. `bind` is the address to listen on, if it differs.
    `endpoint=None` opens the admin interface if it is installed, else only an empty port, as `endpoint=False` does;
    `endpoint=True` requires it.
    """

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
        self._control = embed(host, settings, urls, endpoint, bind, more)

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

    # --- the data path

    def serving(self, bundle: Bundle) -> bool:
        """Whether this broker may serve the bundle at this moment. Any thread; no lock, no waiting."""
        serving = self._control.serving
        return serving is not None and serving.serving(bundle)

    def claim(self, topic: str) -> Claim | None:
        """The bundle and token under which this broker may serve the key at this moment, None if it may not."""
        serving = self._control.serving
        return None if serving is None else serving.claim_topic(parse_key(topic))

    def admit(self, topic: str, timeout_s: float = ADMIT_TIMEOUT_S, *, cluster: str | None = None) -> Admission:
        """`async with broker.admit(topic) as claim:` around a request: we serve it, and count it until it ends.

        A request waits for at most `timeout_s` while its bundle is on its way here. Raises Moved (ask there),
        NotServing (try later), NotFound (no such namespace), InvalidName.
        `cluster` is the request's header `Loadmanager-Cluster`: a request for another cluster raises AnotherCluster, a
        NotServing.
        """
        return Admission(self.gate, topic, timeout_s, cluster)

    async def left(self, claim: Claim) -> Moved | NotServing:
        """For long connections: wait until the bundle of an admitted claim leaves; returns where the client should go.

        A `release` that waits in `quiesce` goes on once the connection has ended. A split ends the claim, too.
        """
        return await self.gate.left(claim)

    async def quiesce(self, bundle: Bundle, timeout_s: float | None = None) -> bool:
        """For `release`: wait until no admitted request of the bundle is in progress; whether none is.

        Gives up after `timeout_s`, by default a little before `host_release_timeout_s`.
        """
        if timeout_s is None:
            timeout_s = self._control.quiesce_timeout_s
        return await self.gate.quiesce(bundle, timeout_s)

    # --- the cluster

    async def locate(self, topic: str, timeout_s: float | None = None) -> Located:
        """Where the key is served; assigns its bundle if nobody owns it. Raises NotFound, Unavailable, InvalidName."""
        return await self.ask(locating(topic, timeout_s))

    async def drain(self, timeout_s: float | None = None) -> DrainProgress:
        """Take no more bundles and move all away; returns the progress when done, or after `timeout_s`."""
        return await self.ask(draining(timeout_s))

    async def ensure_namespace(self, namespace: str, bundles: int | None = None) -> None:
        """Create the namespace with evenly cut bundles, unless it exists. Raises Invalid, Unavailable, InvalidName."""
        await self.ask(ensuring(namespace, bundles))

    async def transfer(self, bundle: Bundle, destination: str) -> None:
        """Move the bundle to the broker of that name. Raises as `Operations.transfer`."""
        await self.ask(lambda node: node.current.operations.transfer(bundle, destination))

    async def ask(self, work: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Run `work(node)` on the control loop; returns its result. For all that this facade does not offer."""
        return await asyncio.wrap_future(self._control.ask(work))

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
