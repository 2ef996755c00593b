"""`AVG`: contiguous blocks of queues; the first consumers get one more where it does not come out even."""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.consumers.allocation.strategy import Allocation, MessageQueue, for_one


class Averagely:
    """RocketMQ's default."""

    name = "AVG"

    def allocate(
        self, current: str | None, queues: Sequence[MessageQueue] | None, consumers: Sequence[str] | None
    ) -> list[MessageQueue]:
        """Allocate as `Strategy` says."""
        return for_one(self.allocate_all, current, queues, consumers)

    def allocate_all(self, queues: Sequence[MessageQueue], consumers: Sequence[str]) -> Allocation:
        """Allocate as `Strategy` says."""
        blocks = (_block(index, len(queues), len(consumers)) for index in range(len(consumers)))
        found: dict[str, list[MessageQueue]] = {}
        for consumer, (start, end) in zip(consumers, blocks, strict=True):
            found.setdefault(consumer, list(queues[start:end]))
        return found


def _block(index: int, queues: int, consumers: int) -> tuple[int, int]:
    """The positions of a consumer's queues."""
    size, more = divmod(queues, consumers)
    return index * size + min(index, more), (index + 1) * size + min(index + 1, more)
