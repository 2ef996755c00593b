"""The gate for requests: admits a request while its bundle is served here, and counts it until it ends.

A request is counted *before* the gate asks whether we serve the bundle, and serving ends before `release` begins. So
once `quiesce` has seen no request in progress, none can start. The gate also decides about a request for
another broker: it waits while its bundle is on its way here, or gets `Moved` to the present or next owner.

A `Bell` wakes the waiters for a bundle, across threads and loops and without polling. A woken waiter looks again by
itself. A waiter first starts to listen, then looks, then waits; so it misses nothing that happens in between.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TypeVar

from loadmanager.broker.node import Node
from loadmanager.broker.serving import Claim
from loadmanager.client.cluster import check_request, header_of
from loadmanager.client.redirection import Moved, NotServing
from loadmanager.errors import NotFound
from statechannel.law.bundle import Bundle, Key, parse_key
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership

Wake = Callable[[], None]


class Bell:
    """One thread rings, any thread may wait. Each waiter is woken once and forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Bundle, set[Wake]] = {}

    def ring(self, bundle: Bundle) -> None:
        """Wake all waiters of this bundle."""
        if bundle in self._waiting:
            with self._lock:
                waiting = self._waiting.pop(bundle, ())
            for wake in waiting:
                wake()

    def ring_all(self) -> None:
        """Wake all waiters."""
        for bundle in list(self._waiting):
            self.ring(bundle)

    def future(self, bundle: Bundle) -> asyncio.Future[None]:
        """A future of the running loop, done at the next ring. Cancel it when you no longer need it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed, and no caller waits any more
                loop.call_soon_threadsafe(_finish, future)

        self._hear(bundle, wake)
        future.add_done_callback(lambda _: self._forget(bundle, wake))
        return future

    @contextmanager
    def event(self, bundle: Bundle) -> Generator[threading.Event]:
        """An event for a thread to wait for, set at the next ring."""
        rung = threading.Event()
        self._hear(bundle, rung.set)
        try:
            yield rung
        finally:
            self._forget(bundle, rung.set)

    def _hear(self, bundle: Bundle, wake: Wake) -> None:
        with self._lock:
            self._waiting.setdefault(bundle, set()).add(wake)

    def _forget(self, bundle: Bundle, wake: Wake) -> None:
        with self._lock:
            waiting = self._waiting.get(bundle)
            if waiting is not None:
                waiting.discard(wake)
                if not waiting:
                    del self._waiting[bundle]


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


T = TypeVar("T", Moved, NotServing)

RECHECK_S = 0.25
"""A waiting request looks again after this time: a peer may die, or a proof become fresh, without a record."""


class Gate:
    """One broker's gate, for any thread. `assign` asks the control loop to find an owner for a key's bundle."""

    def __init__(self, node: Node, assign: Callable[[Key], None]) -> None:
        assert node.serving is not None, "a gate opens when its node is ready"
        self._node = node
        self._serving = node.serving
        self._table = node.channel.table
        self._assign = assign
        self._lock = threading.Lock()
        self._in_progress: dict[Bundle, int] = {}
        self._admitted: dict[Bundle, int] = {}
        self._arrivals = Bell()
        self._idle = Bell()
        self._departures = Bell()
        self._closed = False
        node.channel.listen(self._changed)
        node.channel.replica.on_reload(lambda _partition: self._arrivals.ring_all())
        node.serving.listen(self._served)

    def close(self) -> None:
        """This broker has left: wake all waiting requests."""
        self._closed = True
        self._arrivals.ring_all()
        self._departures.ring_all()

    def _changed(self, change: Change) -> None:
        if change.whole is not None:
            self._arrivals.ring_all()  # rare, and a woken request looks again
            return
        for transition in change.transitions:
            self._arrivals.ring(transition.bundle)

    def _served(self, bundle: Bundle, claim: Claim | None) -> None:
        if claim is not None:
            self._arrivals.ring(bundle)
        else:
            self._admitted.pop(bundle, None)
            self._departures.ring(bundle)

    # --- counting

    def enter(self, topic: Key) -> Claim | None:
        """Admit and count a request if we serve its bundle; every returned claim needs a `leave` of its bundle."""
        bundle = self._bundle(topic)
        with self._lock:
            self._in_progress[bundle] = self._in_progress.get(bundle, 0) + 1
        claim = self._serving.claim(bundle)
        if claim is None:
            self.leave(bundle)
        else:
            self._admitted[bundle] = self._admitted.get(bundle, 0) + 1  # a count lost to another thread does no harm
        return claim

    def leave(self, bundle: Bundle) -> None:
        """An admitted request has ended."""
        with self._lock:
            left = self._in_progress[bundle] - 1
            if left:
                self._in_progress[bundle] = left
            else:
                del self._in_progress[bundle]
        if not left:
            self._idle.ring(bundle)

    def in_progress(self, bundle: Bundle) -> int:
        """The number of admitted requests of this bundle that have not ended."""
        return self._in_progress.get(bundle, 0)

    def admitted(self) -> dict[Bundle, int]:
        """The number of requests admitted for each bundle since it began to be served here."""
        return self._admitted.copy()

    async def quiesce(self, bundle: Bundle, timeout_s: float) -> bool:
        """Wait until no request of the bundle is in progress. Returns True if that was in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            idle = self._idle.future(bundle)
            left_s = deadline_s - time.monotonic()
            if not self.in_progress(bundle) or left_s <= 0:
                idle.cancel()
                return not self.in_progress(bundle)
            await asyncio.wait((idle,), timeout=left_s)
            idle.cancel()

    def quiesce_blocking(self, bundle: Bundle, timeout_s: float) -> bool:
        """As `quiesce`, for a thread."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._idle.event(bundle) as idle:
                left_s = deadline_s - time.monotonic()
                if not self.in_progress(bundle) or left_s <= 0:
                    return not self.in_progress(bundle)
                idle.wait(left_s)

    # --- its cluster

    def check_cluster(self, text: str | None) -> None:
        """Check the header `Loadmanager-Cluster` of a request. Raises AnotherCluster."""
        check_request(self._table.cluster_identity, text)

    def _said(self, error: T) -> T:
        if self._table.cluster_identity is not None:
            error.cluster = header_of(self._table.cluster_identity)
        return error

    # --- leaving

    async def left(self, claim: Claim) -> Moved | NotServing:
        """Wait until the claim has ended; returns where to go then."""
        departure = self._departures.future(claim.bundle)
        try:
            if self._stands(claim):
                await departure
        finally:
            departure.cancel()
        return self._place(claim.bundle)

    def left_blocking(self, claim: Claim, timeout_s: float | None) -> Moved | NotServing | None:
        """As `left`, for a thread; None if it has not ended within `timeout_s`."""
        with self._departures.event(claim.bundle) as departure:
            if self._stands(claim) and not departure.wait(timeout_s):
                return None
        return self._place(claim.bundle)

    def _stands(self, claim: Claim) -> bool:
        return self._serving.stands(claim) and not self._closed

    def _place(self, bundle: Bundle) -> Moved | NotServing:
        entry = self._table.get(bundle)
        if entry is None:
            return self._said(NotServing(f"{bundle} was split, merged or deleted: look the key up again", 0.0))
        return self._moved(entry) or self._said(NotServing(_status_of(entry)))

    # --- admitting, or waiting until the bundle is here

    async def admit(self, topic: Key, timeout_s: float) -> Claim:
        """A counted claim. Raises Moved, NotServing (not in time), NotFound (no such namespace)."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            arrival = self._arrivals.future(self._bundle(topic))
            try:
                claim = self.enter(topic)
                if claim is not None:
                    return claim
                await asyncio.wait((arrival,), timeout=self._patience_s(topic, deadline_s, timeout_s))
            finally:
                arrival.cancel()

    def admit_blocking(self, topic: Key, timeout_s: float) -> Claim:
        """As `admit`, for a thread."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._arrivals.event(self._bundle(topic)) as arrival:
                claim = self.enter(topic)
                if claim is not None:
                    return claim
                arrival.wait(self._patience_s(topic, deadline_s, timeout_s))

    def _patience_s(self, topic: Key, deadline_s: float, timeout_s: float) -> float:
        """How long to wait before looking again. Raises Moved, NotServing, NotFound if waiting is useless."""
        entry = self._table.locate(topic)
        if entry is None:
            raise NotFound(f"there is no namespace {topic.namespace}; create it first")
        moved = self._moved(entry)
        if moved is not None:
            raise moved
        left_s = deadline_s - time.monotonic()
        if self._closed or left_s <= 0:
            why = "this broker has left" if self._closed else f"it did not come here within {timeout_s:g} s"
            raise self._said(NotServing(f"{_status_of(entry)}, and {why}"))
        if entry.state is State.UNASSIGNED:
            self._assign(topic)
        return min(left_s, RECHECK_S)

    def _moved(self, entry: Ownership) -> Moved | None:
        there = self._elsewhere(entry)
        if there is None:
            return None
        peer = self._node.membership.peer(there)
        return self._said(Moved(there.name, peer.registration.urls if peer else {}, entry.bundle))

    def _elsewhere(self, entry: Ownership) -> BrokerId | None:
        """The other broker that serves the bundle, or soon will and holds requests until then; None: wait here."""
        match entry.state:
            case State.ASSIGNING | State.ASSIGNED | State.TRANSFERRING | State.SPLITTING:
                there = entry.holder
            case State.RELEASING:
                there = entry.target
            case State.UNASSIGNED | State.REVOKING:
                there = None
        if there is None or there.name == self._node.settings.advertised:
            return None
        return there if self._node.membership.is_live(there, self._node.world.clock_s()) else None

    def _bundle(self, topic: Key) -> Bundle:
        namespace = self._table.namespace(topic.namespace)
        if namespace is None or not namespace.exists:
            raise NotFound(f"there is no namespace {topic.namespace}; create it first")
        return namespace.bundle_at(topic.position)


def _status_of(entry: Ownership) -> str:
    holder = f", held by {entry.holder.name}" if entry.holder else ""
    return f"{entry.bundle} is {entry.state}{holder}"


class Admission:
    """Admission of one request: `async with` on a loop, `with` on a thread. Gives a Claim; raises as `Gate.admit`."""

    __slots__ = ("_bundle", "_cluster", "_gate", "_timeout_s", "_topic")

    def __init__(self, gate: Gate, topic: str, timeout_s: float, cluster: str | None = None) -> None:
        self._gate = gate
        self._cluster = cluster
        self._topic = parse_key(topic)
        self._timeout_s = timeout_s
        self._bundle: Bundle | None = None

    async def __aenter__(self) -> Claim:
        self._gate.check_cluster(self._cluster)
        claim = self._gate.enter(self._topic) or await self._gate.admit(self._topic, self._timeout_s)
        self._bundle = claim.bundle
        return claim

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def __enter__(self) -> Claim:
        self._gate.check_cluster(self._cluster)
        claim = self._gate.enter(self._topic) or self._gate.admit_blocking(self._topic, self._timeout_s)
        self._bundle = claim.bundle
        return claim

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._bundle is not None:
            self._gate.leave(self._bundle)
            self._bundle = None
