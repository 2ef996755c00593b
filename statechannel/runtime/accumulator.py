"""Threads and asyncio around `batching.py`: many callers hand in one record each and get its result.

The caller whose record fills a batch sends it. One timer, with a period of half the delay, sends those that got old; it
sleeps while no batch is open. Settling a batch gives its bytes back first, then tells the callers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from statechannel.errors import InvariantError, LogUnavailable
from statechannel.runtime.batching import Batch, BatchCore, BatchSettings, Item, K, T, closed_error

R = TypeVar("R")

_log = logging.getLogger(__name__)

Outcome = Sequence[R] | Exception
"""The outcome of a batch: one result for each of its records, in their order, or why it failed."""
Send = Callable[[K, Sequence[T], Callable[[Outcome[R]], None]], None]
"""Begins to send the records of a key, and must not wait. Its third argument must be called once with the outcome, on
any thread. An exception that it raises is the outcome. It is called for one batch at a time, in each key's order."""
Done = Callable[[Any, Exception | None], None]
"""Gets the result of a record, or its error."""


class _Waiter(msgspec.Struct, frozen=True):
    """Where to report the outcome; on any thread if `loop` is None."""

    done: Done
    loop: asyncio.AbstractEventLoop | None = None


class BatchAccumulator(Generic[K, T, R]):
    """Callable from any thread and from any loop. `close` it, or `stop` and `abandon` it."""

    def __init__(
        self, send: Send[K, T, R], size_bytes: Callable[[T], int], settings: BatchSettings | None = None,
    ) -> None:  # fmt: skip
        self._send, self._size_bytes = send, size_bytes
        self._core: BatchCore[K, T] = BatchCore(settings or BatchSettings())
        self._outgoing: deque[Batch[K, T]] = deque()
        self._sending = False
        self._lock = threading.Lock()
        self._opened, self._settled = threading.Condition(self._lock), threading.Condition(self._lock)
        self._stopped = threading.Event()
        self._timer: threading.Thread | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of the budget that are taken at present."""
        return self._core.held_bytes

    # --- callers
    async def append(self, key: K, record: T) -> R:
        """Hand in a record and return its result; waits while there is no room. Raises what the batch failed with.

        Raises RecordTooLarge or LogUnavailable (closed): nothing was written. Cancelled while it waits for room, the
        record is not written; later it is.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        item = self._add(key, record, _Waiter(partial(_resolve, future), loop))
        try:
            return await future
        except asyncio.CancelledError:
            self._withdraw(item)
            raise

    def append_blocking(self, key: K, record: T, timeout_s: float) -> R:
        """As `append`, for threads without a loop. Raises LogUnavailable after `timeout_s` too."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InvariantError("append_blocking would stop the loop of this thread: use append")
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        item = self._add(key, record, _Waiter(partial(_resolve, future)))
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise  # the outcome of the batch is a TimeoutError itself
            unwritten = self._withdraw(item)
            what = "there was no room, and nothing was written" if unwritten else "no answer; it may be written yet"
            raise LogUnavailable(f"a record waited for {timeout_s:g} s: {what}; try again later") from None
        except BaseException:
            self._withdraw(item)
            raise

    def try_append(self, key: K, record: T, done: Callable[[R | None, Exception | None], None]) -> bool:
        """Hand in a record and return at once; False if there is no room at present.

        `done` is called once, on some thread. Raises RecordTooLarge or LogUnavailable (closed).
        """
        size_bytes = self._size_bytes(record)
        with self._lock:
            self._core.check(size_bytes)
            if self._core.must_wait(size_bytes):
                return False
            filled = self._put(Item(key, record, size_bytes, _Waiter(done)))
        if filled:
            self._dispatch()
        return True

    def _add(self, key: K, record: T, waiter: _Waiter) -> Item[K, T]:
        item = Item(key, record, self._size_bytes(record), waiter)
        with self._lock:
            filled = self._put(item)
        if filled:  # else another's batch would be sent by this caller
            self._dispatch()
        return item

    def _put(self, item: Item[K, T]) -> bool:
        """Returns True if this makes a batch ready."""
        was_open = self._core.has_open
        ready = self._core.add(item, _now_ms())
        self._outgoing += ready
        if self._timer is None:
            self._timer = threading.Thread(target=self._run_timer, name="batch-timer", daemon=True)
            self._timer.start()
        if not was_open and self._core.has_open:
            self._opened.notify()
        return bool(ready)

    def _withdraw(self, item: Item[K, T]) -> bool:
        with self._lock:
            ready = self._core.withdraw(item, _now_ms())
            self._outgoing += ready or ()
        self._dispatch()
        return ready is not None

    # --- sending
    def _dispatch(self) -> None:
        """Send what is ready. If another thread is sending, it also sends ours, so a key's batches keep their order."""
        while True:
            with self._lock:
                if self._sending or not self._outgoing:
                    return
                self._sending = True
                batches, self._outgoing = self._outgoing, deque()
            try:
                while batches:
                    self._send_one(batches.popleft())
            finally:
                with self._lock:
                    self._outgoing.extendleft(reversed(batches))  # none is left, unless this thread is being stopped
                    self._sending = False

    def _send_one(self, batch: Batch[K, T]) -> None:
        settle = partial(self._settle, batch)
        try:
            self._send(batch.key, [item.record for item in batch.items], settle)
        except Exception as error:  # noqa: BLE001 - it is the outcome: its callers must hear of it
            settle(error)
        except BaseException:
            settle(LogUnavailable("the thread that sent this batch was stopped; it may be written yet"))
            raise

    def _settle(self, batch: Batch[K, T], outcome: Outcome[R]) -> None:
        with self._lock:
            if not self._core.is_under_way(batch):
                return  # settled before
            self._outgoing += self._core.give_back(batch, _now_ms())
            self._settled.notify_all()
        self._dispatch()
        if not isinstance(outcome, Exception) and len(outcome) != len(batch.items):
            outcome = InvariantError(f"{len(batch.items)} records were sent, and {len(outcome)} results came back")
        _tell(batch.items, outcome)

    # --- the timer
    def tick(self) -> None:
        """Send what has become old; the timer's turn."""
        with self._lock:
            self._outgoing += self._core.due(_now_ms())
        self._dispatch()

    def _run_timer(self) -> None:
        period_s = self._core.settings.timer_period_ms / 1000
        while not self._stopped.wait(period_s):
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - a bug must not end the timer: nothing would be sent any more
                _log.exception("a turn of the batches' timer failed")
            with self._lock:
                while not (self._core.has_open or self._core.closed):
                    self._opened.wait()

    # --- the end
    def stop(self) -> None:
        """Refuse further records and those that wait for room; send the open batches. Idempotent."""
        with self._lock:
            ready, refused = self._core.close()
            self._outgoing += ready
            self._opened.notify_all()
        self._stopped.set()
        _tell(refused, closed_error())
        self._dispatch()

    def abandon(self) -> None:
        """After `stop`: give up what has no answer yet. Idempotent."""
        with self._lock:
            batches = self._core.under_way
        for batch in batches:
            self._settle(batch, LogUnavailable("closed before the log answered; the record may be written or not"))

    def close(self, timeout_s: float) -> None:
        """`stop`, wait at most `timeout_s` for answers, `abandon`. Blocks; for threads without a loop. Idempotent."""
        self.stop()
        with self._lock:
            self._settled.wait_for(lambda: not self._core.under_way, timeout_s)
        self.abandon()
        if self._timer is not None:
            self._timer.join(timeout_s)


def _now_ms() -> float:
    return time.monotonic() * 1000


def _resolve(
    future: asyncio.Future[Any] | concurrent.futures.Future[Any], result: Any, error: Exception | None
) -> None:
    if future.done():
        return  # its caller gave up
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _tell(items: Sequence[Item[Any, Any]], outcome: Outcome[Any]) -> None:
    """Tell each caller, those of another loop in one call for each loop."""
    elsewhere: dict[asyncio.AbstractEventLoop, list[tuple[Done, Any, Exception | None]]] = {}
    here = _running_loop()
    for at, item in enumerate(items):
        waiter: _Waiter = item.waiter
        told = (
            (waiter.done, None, _copy(outcome)) if isinstance(outcome, Exception) else (waiter.done, outcome[at], None)
        )
        if waiter.loop is None or waiter.loop is here:
            _call_all([told])
        else:
            elsewhere.setdefault(waiter.loop, []).append(told)
    for loop, calls in elsewhere.items():
        with suppress(RuntimeError):  # that loop is closed, and nothing waits there any more
            loop.call_soon_threadsafe(_call_all, calls)


def _call_all(calls: Iterable[tuple[Done, Any, Exception | None]]) -> None:
    for done, result, error in calls:
        try:
            done(result, error)
        except Exception:  # noqa: BLE001 - the others must hear of their records
            _log.exception("a callback for a record's result failed")


def _copy(error: Exception) -> Exception:
    """A new one for each caller: they collect tracebacks."""
    try:
        copy = type(error)(*error.args)
    except Exception:  # noqa: BLE001 - a class with a constructor of its own
        return error
    copy.__cause__ = error.__cause__
    return copy


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
