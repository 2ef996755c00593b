"""`GroupConsumer` for asyncio.

async with AsyncGroupConsumer("shop/orders/billing", ["orders"], brokers=urls, kafka=settings) as consumer:
    async for message in consumer:
        await handle(message)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Message

from loadmanager.consumer.group_consumer import GroupConsumer, Told
from loadmanager.consumers.coordinator.records import Partition

TURN_S = 0.2
"""How long the thread waits for a record at a time; so long `close` may have to wait for it."""

ToldLater = Callable[[list[Partition]], Awaitable[object]]


class AsyncGroupConsumer:
    """One member of a group. Use `async with`; belongs to the loop that enters it.

    The arguments are those of `GroupConsumer`, except that the callbacks are coroutine functions, which run on the
    loop. Kafka's client waits on a thread of its own, so the loop is never blocked.
    """

    def __init__(
        self,
        group: str,
        topics: Iterable[str],
        *,
        brokers: Iterable[str],
        kafka: Mapping[str, Any],
        on_assign: ToldLater | None = None,
        on_revoke: ToldLater | None = None,
        on_lost: ToldLater | None = None,
        **options: Any,
    ) -> None:
        self._consumer = GroupConsumer(
            group, topics, brokers=brokers, kafka=kafka,
            on_assign=self._on_loop(on_assign), on_revoke=self._on_loop(on_revoke), on_lost=self._on_loop(on_lost),
            **options,
        )  # fmt: skip
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = ThreadPoolExecutor(1, "loadmanager-poll")
        self._polling: asyncio.Future[Message | None] | None = None
        """It goes on when its caller is cancelled: what it finds is given to the next one."""
        self._turn = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._consumer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(last_is_done=error is None)

    async def close(self, *, last_is_done: bool = True) -> None:
        """As `GroupConsumer.close`."""
        if self._closed:
            return
        self._closed = True
        if self._polling is not None:
            await asyncio.wait([self._polling])
            found = None if self._polling.exception() else self._polling.result()
            last_is_done = last_is_done and found is None  # what it found was not delivered
        await asyncio.to_thread(self._consumer.close, last_is_done=last_is_done)
        self._thread.shutdown()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Records until `close`."""
        while not self._closed:
            message = await self.poll(1.0)
            if message is not None:
                yield message

    async def poll(self, timeout_s: float) -> Message | None:
        """As `GroupConsumer.poll`. If it is cancelled no record is lost: the next call returns it.

        Several tasks may call it, with `auto_done=False`.
        """
        deadline_s = time.monotonic() + timeout_s
        async with self._turn:
            await asyncio.sleep(0)  # others have their turn, however many records there are
            if self._polling is None and not self._closed:
                message = self._consumer.poll_fetched()
                if message is not None:
                    return message
            while not self._closed:
                left_s = max(0.0, deadline_s - time.monotonic())
                if self._polling is None:
                    loop = asyncio.get_running_loop()
                    self._polling = loop.run_in_executor(self._thread, self._consumer.poll, min(left_s, TURN_S))
                await asyncio.wait([self._polling])
                if self._closed:
                    break
                polled, self._polling = self._polling, None
                message = polled.result()
                if message is not None or left_s <= TURN_S:
                    return message
        return None

    def done(self, message: Message) -> None:
        """As `GroupConsumer.done`."""
        self._consumer.done(message)

    @property
    def assignment(self) -> list[Partition]:
        """What may be read at this moment."""
        return self._consumer.assignment

    def _on_loop(self, callback: ToldLater | None) -> Told | None:
        """The callback for the thread, which waits for it."""
        if callback is None:
            return None

        async def call(partitions: list[Partition]) -> None:
            await callback(partitions)

        def told(partitions: list[Partition]) -> None:
            assert self._loop is not None, "callbacks come after `async with`"
            asyncio.run_coroutine_threadsafe(call(partitions), self._loop).result()

        return told
