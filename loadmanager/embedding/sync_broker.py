"""Embeds a broker in a service of threads, with plain functions (`broker.py`: in an asyncio service)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import wait
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from loadmanager.broker.drain import DrainProgress
from loadmanager.broker.lookup import Located
from loadmanager.broker.node import Node
from loadmanager.broker.serving import Claim
from loadmanager.client.redirection import Moved, NotServing
from loadmanager.embedding.endpoints import Endpoint
from loadmanager.embedding.facade import ADMIT_TIMEOUT_S, draining, embed, ensuring, locating
from loadmanager.embedding.gate import Admission
from loadmanager.embedding.signals import leaving_on_signal
from loadmanager.model.host import BundleHost
from loadmanager.settings import Settings
from loadmanager.settings.given import Given
from statechannel.law.bundle import Bundle, parse_key

T = TypeVar("T")

HEEDED_WITHIN_S = 0.25


class SyncBroker:
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
        self._control = embed(host, settings, urls, endpoint, bind, more)

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
            # Python handles a signal between two of its instructions: an endless wait could delay it for ever.
            while not wait((self._control.ended,), HEEDED_WITHIN_S).done:
                pass
            self._control.ended.result()

    def serving(self, bundle: Bundle) -> bool:
        """Whether this broker may serve the bundle at this moment. Any thread; no lock, no waiting."""
        serving = self._control.serving
        return serving is not None and serving.serving(bundle)

    def claim(self, topic: str) -> Claim | None:
        """The bundle and token under which this broker may serve the key at this moment, None if it may not."""
        serving = self._control.serving
        return None if serving is None else serving.claim_topic(parse_key(topic))

    def admit(self, topic: str, timeout_s: float = ADMIT_TIMEOUT_S, *, cluster: str | None = None) -> Admission:
        """`with broker.admit(topic) as claim:` around a request; see `Broker.admit`."""
        return Admission(self._control.gate, topic, timeout_s, cluster)

    def left(self, claim: Claim, timeout_s: float | None = None) -> Moved | NotServing | None:
        """For long connections: block until the bundle of an admitted claim leaves; returns where the client should go.

        None if it has not left within `timeout_s`. See `Broker.left`.
        """
        return self._control.gate.left_blocking(claim, timeout_s)

    def quiesce(self, bundle: Bundle, timeout_s: float | None = None) -> bool:
        """For `release`: block until no admitted request of the bundle is in progress; whether none is.

        Gives up after `timeout_s`, by default a little before `host_release_timeout_s`.
        """
        if timeout_s is None:
            timeout_s = self._control.quiesce_timeout_s
        return self._control.gate.quiesce_blocking(bundle, timeout_s)

    def locate(self, topic: str, timeout_s: float | None = None) -> Located:
        """Where the key is served; assigns its bundle if nobody owns it. Raises NotFound, Unavailable, InvalidName."""
        return self.ask(locating(topic, timeout_s))

    def drain(self, timeout_s: float | None = None) -> DrainProgress:
        """Take no more bundles and move all away; returns the progress when done, or after `timeout_s`."""
        return self.ask(draining(timeout_s))

    def ensure_namespace(self, namespace: str, bundles: int | None = None) -> None:
        """Create the namespace with evenly cut bundles, unless it exists. Raises Invalid, Unavailable, InvalidName."""
        self.ask(ensuring(namespace, bundles))

    def transfer(self, bundle: Bundle, destination: str) -> None:
        """Move the bundle to the broker of that name. Raises as `Operations.transfer`."""
        self.ask(lambda node: node.current.operations.transfer(bundle, destination))

    def ask(self, work: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Run `work(node)` on the control loop; returns its result. For all that this facade does not offer."""
        return self._control.ask(work).result()

    @property
    def name(self) -> str:
        """The advertised `host:port`, with the actual port if it was given as 0."""
        return self._control.settings.advertised

    @property
    def node(self) -> Node:
        """The node behind it; belongs to the control loop (`ask`), except `serving` and reading the table."""
        return self._control.node
