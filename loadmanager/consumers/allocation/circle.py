"""`AVG_BY_CIRCLE`: the queues are dealt out one by one."""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.consumers.allocation.strategy import Allocation, MessageQueue, for_one


class AveragelyByCircle:
    """Each consumer gets every n-th queue, with n consumers."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, current: str | None, queues: Sequence[MessageQueue] | None, consumers: Sequence[str] | None
    ) -> list[MessageQueue]:
        """Allocate as `Strategy` says."""
        return for_one(self.allocate_all, current, queues, consumers)

    def allocate_all(self, queues: Sequence[MessageQueue], consumers: Sequence[str]) -> Allocation:
        """Allocate as `Strategy` says."""
        found: dict[str, list[MessageQueue]] = {}
        for index, consumer in enumerate(consumers):
            found.setdefault(consumer, list(queues[index :: len(consumers)]))
        return found
