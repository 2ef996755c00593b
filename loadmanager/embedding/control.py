"""The control plane of an embedded broker: a `Node` on a thread and event loop of its own, its endpoint on another one.

This thread writes the proofs. It runs no code of the service and reads nothing from clients. So proofs do not expire
because a service blocks its loop or computes for seconds, or because of a client of the endpoint. All methods may be
called from any other thread. A service without state is given a `StatelessHost`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec
from structlog.contextvars import bind_contextvars

from loadmanager.broker.control_loop import Watchdog
from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.node import Node
from loadmanager.broker.serving import Serving
from loadmanager.broker.trace_export import traced
from loadmanager.broker.wiring import dependencies
from loadmanager.client.redirection import NotServing
from loadmanager.embedding.endpoints import Endpoint, listen, loop_factory, opened
from loadmanager.embedding.gate import Gate
from loadmanager.errors import Unavailable, first_cause
from loadmanager.model.host import AnsweredAtEndpoint, BundleHost, BundleLoad, Destination
from loadmanager.settings import Settings
from statechannel.errors import StateChannelError
from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import Token

_log = logging.getLogger(__name__)

T = TypeVar("T")

QUIESCE_SHARE = 0.8
"""The part of `host_release_timeout_s` for which a `release` may wait for requests in progress: if they do not end, it
still returns before its time-out."""

SWITCH_INTERVAL_S = 0.0005
"""How long a computing service may keep the interpreter from this thread and those of the adapters. With Python's
default of 5 ms a service that computes without pause starves them until a healthy broker fences itself."""

STOP_GRACE_S = 5.0
"""How long leaving may take after the drain before it is cancelled; and as long again before callers stop waiting."""


class Control:
    """One broker's control thread. `start`, wait for `started`, then ask; `stop`, wait for `ended`."""

    def __init__(
        self, host: BundleHost, settings: Settings, urls: Mapping[str, str], endpoint: Endpoint, bind: str
    ) -> None:
        self.settings = settings
        self.started: Future[None] = Future()
        """Done when this broker is registered and acts; with the error if it could not start."""
        self.ended: Future[None] = Future()
        """Done when this broker has left; with the error if it broke down."""
        self._host = host
        self._urls = dict(urls)
        self._endpoint = endpoint
        self._bind = bind
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: Node | None = None
        self._gate: Gate | None = None
        self._running = threading.Event()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="loadmanager-control", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start the thread and bind the admin port; the host's coroutine hooks run on `loop`.

        Shortens the interpreter's switch interval to `SWITCH_INTERVAL_S`, for the whole process. Raises OSError,
        ValueError, and Unavailable if it was stopped before.
        """
        if self.ended.done():
            raise Unavailable("this broker was stopped; make another one")
        listening = listen(self._bind)
        name, _, port = self.settings.advertised.rpartition(":")
        if port == "0":
            actual = f"{name}:{listening.getsockname()[1]}"
            self.settings = self.settings.model_copy(update={"advertised": actual})
            _log.warning(
                "this broker is %s only until it ends, and has another name after a restart: "
                "give `advertised` a port, so that policies, history and its restart know it",
                actual,
            )
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._runner = HostRunner(loop)
        self._listening = listening
        self._thread.start()
        self._running.wait()

    @property
    def node(self) -> Node:
        """The node; asked for after `started`."""
        assert self._node is not None, "start the broker first"
        return self._node

    @property
    def serving(self) -> Serving | None:
        """What this broker may serve; None before it has started."""
        return None if self._node is None else self._node.serving

    @property
    def gate(self) -> Gate:
        """The data path's gate. Raises NotServing before the broker has started: a service may listen earlier."""
        if self._gate is None:
            raise NotServing("this broker has not started")
        return self._gate

    @property
    def quiesce_timeout_s(self) -> float:
        """The default time to wait for requests in progress."""
        return QUIESCE_SHARE * self._settings_now.host_release_timeout_s

    @property
    def _settings_now(self) -> Settings:
        """The settings, with those of the cluster once the node has read them; frozen, so any thread may read them."""
        return self.settings if self._node is None else self._node.settings

    def ask(self, work: Callable[[Node], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run `work(node)` on the control loop; the future has its result or error, Unavailable if we have left."""
        if self._loop is None or self.ended.done():
            failed: Future[T] = Future()
            failed.set_exception(Unavailable("this broker is not running"))
            return failed
        return asyncio.run_coroutine_threadsafe(work(self.node), self._loop)

    def stop(self, drain_timeout_s: float | None) -> float:
        """Leave gracefully; `STOP_GRACE_S` after the drain's time-out cancel what has not ended. Idempotent.

        Returns the seconds after which a caller that waits for `ended` should call `give_up()`.
        """
        limit_s = self._settings_now.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        if self._thread.ident is None:
            self._end(None)
        elif self._running.wait(STOP_GRACE_S) and self._loop is not None and not self.ended.done():
            with suppress(RuntimeError):  # the loop ended between the question and the call
                self._loop.call_soon_threadsafe(self._stop, limit_s)
        return limit_s + 2 * STOP_GRACE_S

    def give_up(self) -> None:
        """Stop waiting for a control thread that hangs: it ends with the process, and its proofs run out."""
        self._end(Unavailable("this broker did not leave in time: something blocks its control thread"))

    def _end(self, error: BaseException | None) -> None:
        with self._ending:
            if self.ended.done():
                return
            if error is None or isinstance(error, asyncio.CancelledError):
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)

    # --- on the control loop

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._main())
        except BaseException as failure:  # noqa: BLE001 - the caller that waits for the end gets it
            error = first_cause(failure)
        if self._gate is not None:
            self._gate.close()
        self._running.set()
        if not self.started.done():
            self.started.set_exception(error or Unavailable("stopped before it had started"))
        self._end(error)

    async def _main(self) -> None:
        bind_contextvars(broker=self.settings.advertised)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        node = self._node = Node(self.settings, self._host, self._runner, dependencies(self.settings))
        admin_url = f"{self.settings.admin_scheme}://{self.settings.advertised}"
        own = self._host.admin_protocols if isinstance(self._host, AnsweredAtEndpoint) else ()
        node.registration = msgspec.structs.replace(
            node.registration, admin_url=admin_url, urls={**dict.fromkeys(own, admin_url), **self._urls}
        )
        self._running.set()
        async with (
            watched(node),
            traced(node),
            opened(self._endpoint, node, self._listening, self._bind),
            asyncio.TaskGroup() as tasks,
        ):
            opening = tasks.create_task(self._open_gate(node))
            await node.run()
            opening.cancel()

    async def _open_gate(self, node: Node) -> None:
        await node.ready.wait()
        self._gate = Gate(node, self._assign_soon)
        self.started.set_result(None)

    def _assign_soon(self, topic: Key) -> None:
        """Have an unowned bundle assigned for a waiting request, as a lookup would."""

        async def assign(node: Node) -> None:
            with suppress(StateChannelError, Unavailable):
                await node.current.lookup.locate(topic, node.settings.lookup_timeout_s)

        self.ask(assign)

    def _stop(self, drain_timeout_s: float) -> None:
        assert self._loop is not None
        assert self._task is not None
        assert self._node is not None
        if self.started.done():
            self._node.stop(drain_timeout_s)
            self._loop.call_later(drain_timeout_s + STOP_GRACE_S, self._task.cancel)
        else:
            self._task.cancel()


@asynccontextmanager
async def watched(node: Node) -> AsyncGenerator[None]:
    """Watch the loop of a real process that runs this node, with the session's time-out, and measure its turns."""
    world = node.world
    watchdog = Watchdog(node.settings.session_timeout_s, world.clock_s, world.coordination.abandon, node.abandoned)
    watchdog.start()
    try:
        async with node.seen.turns.measured():
            yield
    finally:
        watchdog.stop()


class StatelessHost:
    """The default host of a `Broker`. Its hooks are plain functions, which run on worker threads."""

    control: Control
    """Set before the broker starts."""

    def __init__(self) -> None:
        self._held: set[Bundle] = set()
        self._sampled: tuple[float, Mapping[Bundle, int]] = (time.monotonic(), {})

    def prepare(self, bundle: Bundle) -> None:
        """Nothing to warm up."""

    def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:  # noqa: ARG002 - the protocol's
        """Nothing to load."""
        self._held.add(bundle)

    def release(self, bundle: Bundle, to: Destination | None) -> None:  # noqa: ARG002
        """Wait for requests in progress."""
        self._held.discard(bundle)
        self.control.gate.quiesce_blocking(bundle, self.control.quiesce_timeout_s)

    def abandon(self, bundle: Bundle) -> None:
        """Nothing to drop."""
        self._held.discard(bundle)

    def load(self) -> Mapping[Bundle, BundleLoad]:
        """The rate of admitted requests since the last call."""
        before_s, before = self._sampled
        now_s, now = self._sampled = time.monotonic(), self.control.gate.admitted()
        window_s = max(now_s - before_s, 1e-3)
        rates = {bundle: max(0, now.get(bundle, 0) - before.get(bundle, 0)) / window_s for bundle in list(self._held)}
        return {bundle: BundleLoad(in_rate_msg_s=rate, out_rate_msg_s=rate) for bundle, rate in rates.items()}
