"""Sharing queues in RocketMQ's POP mode, where several consumers may read one queue."""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.consumers.allocation.strategy import MessageQueue, Strategy, is_member

ANY_QUEUE = -1
"""As a queue's id: any queue of the topic on that broker."""


class PopShare:
    """Each consumer reads its own queues, by `inner`, and those of the `shared` consumers that follow it.

    With more consumers than queues each one gets one queue. If `shared` is not positive, or leaves nobody out,
    everybody may read any queue. There is no `allocate_all`: a queue has many consumers.
    """

    def __init__(self, inner: Strategy, shared: int) -> None:
        self._inner = inner
        self._shared = shared

    def allocate(
        self, current: str | None, queues: Sequence[MessageQueue], consumers: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues that one consumer may read, in order. Raises InvalidArgument as `Strategy.allocate`, but not where
        everybody may read any queue: who asks does not matter there."""
        if self._shared <= 0 or self._shared >= len(consumers) - 1:
            return [queue._replace(queue_id=ANY_QUEUE) for queue in queues]
        if not is_member(current, queues, consumers):
            return []
        assert current
        index = consumers.index(current)
        if len(consumers) > len(queues):
            return [queues[index % len(queues)]]
        readers = [consumers[(index + further) % len(consumers)] for further in range(self._shared + 1)]
        return [queue for reader in readers for queue in self._inner.allocate(reader, queues, consumers) or ()]
