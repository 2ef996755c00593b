"""`ExclusiveWriter` on Kafka: a transactional producer on a thread of its own, and the wait until readers see a commit.

Kafka acknowledges a commit when it is decided; readers get it some milliseconds later. `commit` returns only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from statechannel.adapters.kafka.offsets import Offsets
from statechannel.adapters.kafka.reader import Reader
from statechannel.adapters.kafka.transactions import FencedWhileCommitting, Transactions
from statechannel.adapters.kafka.writer import check_sizes
from statechannel.errors import LogError, LogUnavailable, WriterFenced
from statechannel.ports import Payload

CLOSE_TIMEOUT_S = 1.0

T = TypeVar("T")


class Exclusive:
    """As `ExclusiveWriter`. Commits run one after the other; cancelling a caller does not stop its commit."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic_prefix: str,
        offsets: Offsets,
        reader: Reader,
        request_timeout_s: float,
    ) -> None:
        self._id = str(settings["transactional.id"])
        self._settings = settings
        self._prefix = topic_prefix
        self._offsets = offsets
        self._reader = reader
        self._timeout_s = request_timeout_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"kafka-{self._id}")
        self._transactions: Transactions | None = None
        self._closed = False

    async def take_over(self) -> None:
        """Become the only writer of this id. Raises LogUnavailable, or LogError if no retry helps."""
        try:
            self._transactions = await self._run(lambda: Transactions(self._settings, self._timeout_s))
            await self._run(self._transactions.take_over)
        except KafkaException as error:
            raise LogError(
                f"Kafka's client refuses its settings: {error.args[0].str()}; correct client_settings"
            ) from error

    async def commit(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """As `ExclusiveWriter.commit`."""
        check_sizes(payloads)
        transactions = self._transactions
        if self._closed or transactions is None:
            raise LogUnavailable(f"the writer {self._id} is closed; ask for a new one")
        if not payloads:
            return
        name = self._prefix + topic
        try:
            last = await self._run(lambda: transactions.commit(name, partition, payloads))
        except FencedWhileCommitting as fenced:
            await self._find_out(name, partition, fenced)
        else:
            await self._offsets.until_readable(name, partition, last)

    async def close(self) -> None:
        """As `ExclusiveWriter.close`; a commit under way fails."""
        transactions, self._transactions, self._closed = self._transactions, None, True
        if transactions is not None:
            transactions.leave()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._run(transactions.drop)
        self._thread.shutdown(wait=False)

    async def _run(self, job: Callable[[], T]) -> T:
        try:
            running = self._thread.submit(job)
        except RuntimeError:
            raise LogUnavailable(f"the writer {self._id} is closed; ask for a new one") from None
        return await asyncio.wrap_future(running)

    async def _find_out(self, topic: str, partition: int, fenced: FencedWhileCommitting) -> None:
        """Return if the group was committed before its writer was fenced. Raises WriterFenced or LogUnavailable."""
        try:
            await self._offsets.until_readable(topic, partition, fenced.first)  # then it was committed or aborted
            committed = await self._reader.holds(topic, partition, fenced.first)
        except LogError as error:
            raise LogUnavailable(
                f"it is not known whether {self._id} committed before another writer fenced it: {error}"
            ) from error
        if not committed:
            raise WriterFenced(f"{fenced}; nothing was written") from fenced
