"""What strategies without memory have in common: the queue, the contract, and the check of what a client asks.

Neither queues nor consumers are sorted here: every caller must give the same order, as a rule the natural one. Results
and errors are those of RocketMQ 5.5 (`client/consumer/rebalance`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol


class MessageQueue(NamedTuple):
    """A queue of a topic on a broker; a partition of a Kafka topic has no broker. Ordered by topic, broker, id."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        """As RocketMQ writes it: consistent hashing hashes this text."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker}, queueId={self.queue_id}]"


class InvalidArgument(ValueError):
    """Something that cannot be allocated was asked: RocketMQ's IllegalArgumentException, in its words."""


Allocation = Mapping[str, Sequence[MessageQueue]]
"""The queues of each consumer."""


class Strategy(Protocol):
    """Divides queues among consumers, always the same queues among the same consumers in the same way."""

    @property
    def name(self) -> str:
        """What settings call it, for example `AVG`."""
        ...

    def allocate(
        self, current: str | None, queues: Sequence[MessageQueue] | None, consumers: Sequence[str] | None
    ) -> Sequence[MessageQueue]:
        """The queues of one consumer, in order; none if it is not among the consumers.

        Raises InvalidArgument if `current`, `queues` or `consumers` is empty.
        """
        ...

    def allocate_all(self, queues: Sequence[MessageQueue], consumers: Sequence[str]) -> Allocation:
        """The queues of each consumer, as `allocate` would say. It costs about as much as for one."""
        ...


def is_member(current: str | None, queues: Sequence[MessageQueue] | None, consumers: Sequence[str] | None) -> bool:
    """Whether the consumer gets queues at all. Raises InvalidArgument as `Strategy.allocate` says."""
    if not current:
        raise InvalidArgument("currentCID is empty")
    if not queues:
        raise InvalidArgument("mqAll is null or mqAll empty")
    if not consumers:
        raise InvalidArgument("cidAll is null or cidAll empty")
    return current in consumers


def for_one(
    allocate_all: Callable[[Sequence[MessageQueue], Sequence[str]], Allocation],
    current: str | None,
    queues: Sequence[MessageQueue] | None,
    consumers: Sequence[str] | None,
) -> list[MessageQueue]:
    """`Strategy.allocate` by `allocate_all`."""
    if not is_member(current, queues, consumers):
        return []
    return list(allocate_all(queues or (), consumers or ())[current or ""])


def java_order(text: str) -> bytes:
    """A sort key that orders texts as Java does, by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
