"""`CONFIG`: every consumer gets the queues of the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.consumers.allocation.strategy import Allocation, MessageQueue


class ByConfig:
    """The configured queues as they are; nothing that is asked is looked at, as in RocketMQ."""

    name = "CONFIG"

    def __init__(self, queues: Sequence[MessageQueue] | None) -> None:
        self._queues = queues

    def allocate(
        self,
        current: str | None,  # noqa: ARG002
        queues: Sequence[MessageQueue] | None,  # noqa: ARG002
        consumers: Sequence[str] | None,  # noqa: ARG002
    ) -> list[MessageQueue] | None:
        """Allocate as `Strategy` says."""
        return None if self._queues is None else list(self._queues)

    def allocate_all(self, queues: Sequence[MessageQueue], consumers: Sequence[str]) -> Allocation:  # noqa: ARG002
        """Allocate as `Strategy` says; no queues where none are configured."""
        return {consumer: list(self._queues or ()) for consumer in consumers}
