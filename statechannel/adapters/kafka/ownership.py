"""Who ends a client of Kafka, and when: its owner, after the last call, and before the interpreter ends.

librdkafka ends the whole process (SIGSEGV, SIGABRT) in three cases: a client is ended during a call, the garbage
collector frees an admin client on that client's own thread, or a client calls an interpreter that has ended. So no
client here is freed by the garbage collector. Each has an `Owned`, which lends it for calls.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from statechannel.errors import LogUnavailable

EXIT_S = 5.0
"""How long the end of the interpreter waits for calls in clients that are still open."""

C = TypeVar("C")


class ClientClosed(LogUnavailable):
    """The client was closed, or is being closed."""


class Owned(Generic[C]):
    """One client, which any thread borrows. The last borrower of a client that is being closed ends it."""

    def __init__(self, client: C, end: Callable[[C], object]) -> None:
        self._client: C | None = client
        self._end = end
        self._borrowers: list[int] = []
        """The threads in it, each as often as it borrows."""
        self._closing = False
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._finalizer: weakref.finalize[..., object] | None = None
        if _exiting.is_set():
            self._free()
            raise ClientClosed("the interpreter is ending")
        _open.add(self)

    @property
    def closing(self) -> bool:
        """Whether nothing borrows it any more: calls that repeat until answered give up."""
        return self._closing

    @contextmanager
    def lent(self) -> Generator[C]:
        """The client, for calls within the block. Raises ClientClosed."""
        me = threading.get_ident()
        with self._turn:
            client = self._client
            if self._closing or client is None:
                raise ClientClosed("the client of Kafka is closed")
            self._borrowers.append(me)
        try:
            yield client
        finally:
            del client
            with self._turn:
                self._borrowers.remove(me)
                last = self._closing and not self._borrowers
            if last:
                self._free()

    def close(self, timeout_s: float | None = None) -> None:
        """End it after the calls in it; blocks, without `timeout_s` until it has ended. Idempotent.

        From within a call, as callbacks are, it returns at once, and the client ends after that call.
        """
        with self._turn:
            free = not self._closing and not self._borrowers
            self._closing = True
            within = threading.get_ident() in self._borrowers
        if free:
            self._free()
        elif not within:
            self._ended.wait(timeout_s)

    def close_soon(self) -> None:
        """As `close`, on a thread of its own. Never waits, so finalizers may call it on any thread."""
        _left.put(self)
        _closer.start()

    def close_with(self, owner: object) -> None:
        """Close it soon after `owner` is freed, which may be on any thread, a client's own ones too."""
        _closer.start()  # a finalizer must not: it may run within the code that starts threads
        self._finalizer = weakref.finalize(owner, _left.put, self)
        self._finalizer.atexit = False

    def _free(self) -> None:
        client, self._client = self._client, None
        if self._finalizer is not None:
            self._finalizer.detach()
        try:
            if client is not None:
                self._end(client)
        finally:
            del client
            _open.discard(self)
            self._ended.set()


def own_admin(settings: Mapping[str, Any]) -> Owned[AdminClient]:
    """A new admin client. Requests that are unanswered when it ends are never answered."""
    return Owned(AdminClient(dict(settings)), _end_admin)


def own_consumer(settings: Mapping[str, Any], **options: Any) -> Owned[Consumer]:
    """A new consumer."""
    return Owned(Consumer(dict(settings), **options), Consumer.close)


def own_producer(settings: Mapping[str, Any], **options: Any) -> Owned[Producer]:
    """A new producer. What it has not sent when it ends is lost."""
    return Owned(Producer(dict(settings), **options), _end_producer)


def _end_admin(client: AdminClient) -> None:
    client.__exit__(None, None, None)  # it has no `close`


def _end_producer(_: Producer) -> None:
    """Does nothing: it ends with the last reference. `Producer.close` would wait for all deliveries without a limit."""


class _Closer:
    """The thread that closes the clients handed to it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._running = False

    def start(self) -> None:
        """Idempotent."""
        with self._turn:
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="kafka-closing", daemon=True).start()

    def _run(self) -> None:
        while True:
            with suppress(Exception):  # what a callback of the client's user raises
                _left.get().close()


_open: set[Owned[Any]] = set()
"""All clients that have not ended: references that keep the garbage collector away."""
_left: SimpleQueue[Owned[Any]] = SimpleQueue()
_closer = _Closer()
_exiting = threading.Event()
_process = os.getpid()


@atexit.register
def _close_all() -> None:
    """Before the interpreter ends: its threads are stopped wherever they are then, within clients too."""
    if os.getpid() != _process:  # a fork has no thread of any client, and waits for them forever
        return
    _exiting.set()
    deadline_s = time.monotonic() + EXIT_S
    for owned in list(_open):
        with suppress(Exception):
            owned.close(max(0.0, deadline_s - time.monotonic()))
