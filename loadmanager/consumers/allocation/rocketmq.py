"""RocketMQ's strategies, which have no memory, with its names, results and errors. Pure.

Neither queues nor consumers are sorted here: every caller must give the same order, as a rule the natural one. Results
and errors are those of RocketMQ 5.5 (`client/consumer/rebalance`).

* `AVG`: contiguous blocks of queues; the first consumers get one more where it does not come out even;
* `AVG_BY_CIRCLE`: the queues are dealt out one by one;
* `CONSISTENT_HASH`: consumers and queues lie on a ring; a queue goes to the next consumer;
* `CONFIG`: each member reads what the configuration says for its name. RocketMQ's gives every consumer the queues of
its own configuration, and leaves it to people that no two read one. Here one configuration is for the whole group, so a
partition has one reader;
* `MACHINE_ROOM_NEARBY-…`: consumers read in their own room; rooms without a consumer are read by all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import md5
from typing import NamedTuple, Protocol, TypeVar


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


class ConsistentHash:
    """Each consumer has `virtual_nodes` places on the ring. Without any, no consumer gets a queue."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10) -> None:
        """Raises InvalidArgument if `virtual_nodes` is negative."""
        if virtual_nodes < 0:
            raise InvalidArgument(f"illegal virtualNodeCnt :{virtual_nodes}")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, current: str | None, queues: Sequence[MessageQueue] | None, consumers: Sequence[str] | None
    ) -> list[MessageQueue]:
        """Allocate as `Strategy` says."""
        return for_one(self.allocate_all, current, queues, consumers)

    def allocate_all(self, queues: Sequence[MessageQueue], consumers: Sequence[str]) -> Allocation:
        """Allocate as `Strategy` says."""
        ring = self._ring(consumers)
        places = sorted(ring)
        found: dict[str, list[MessageQueue]] = {consumer: [] for consumer in consumers}
        if places:
            for queue in queues:
                at = bisect_left(places, _place_of(queue))
                found[ring[places[at % len(places)]]].append(queue)
        return found

    def _ring(self, consumers: Sequence[str]) -> dict[int, str]:
        """Who is where. A repeated consumer gets further places: its numbers continue behind those it still has."""
        ring: dict[int, str] = {}
        known: set[str] = set()
        for consumer in consumers:
            first = sum(each == consumer for each in ring.values()) if consumer in known else 0
            known.add(consumer)
            for replica in range(first, first + self._virtual_nodes):
                ring[_hash(f"{consumer}-{replica}")] = consumer
        return ring


@lru_cache(200_000)
def _place_of(queue: MessageQueue) -> int:
    """A group asks for the same queues at each change."""
    return _hash(str(queue))


def _hash(text: str) -> int:
    """A place on the ring: the first four bytes of the MD5 digest of the text in UTF-8, as a number."""
    return int.from_bytes(md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4])


class Named(Protocol):
    """A member, as far as it matters here."""

    @property
    def name(self) -> str: ...

    @property
    def topics(self) -> tuple[str, ...]: ...


def by_config(
    config: Mapping[str, Mapping[str, tuple[int, ...]]], members: Mapping[str, Named], sizes: Mapping[str, int]
) -> dict[tuple[str, int], str]:
    """The reader of each partition that is configured and exists: members by their ids. Members of one name that
    subscribe to the topic take turns. A partition whose member is not there waits for it."""
    by_name: dict[str, list[str]] = {}
    for each in sorted(members):
        by_name.setdefault(members[each].name, []).append(each)
    found: dict[tuple[str, int], str] = {}
    for name, topics in config.items():
        for topic, numbers in topics.items():
            readers = [each for each in by_name.get(name, ()) if topic in members[each].topics]
            there = [number for number in sorted(numbers) if number < sizes.get(topic, 0)] if readers else ()
            found.update(((topic, number), readers[at % len(readers)]) for at, number in enumerate(there))
    return found


T = TypeVar("T")


class MachineRoomNearby:
    """The queues of each room are allocated by `inner` to the consumers of that room.

    Those of rooms without a consumer are allocated to all consumers, room by room in the order of their names.
    `room_of_broker` and `room_of_consumer` say where a broker or a consumer is, by its name.
    """

    def __init__(
        self,
        inner: Strategy,
        room_of_broker: Callable[[str], str | None],
        room_of_consumer: Callable[[str], str | None],
    ) -> None:
        self._inner = inner
        self._room_of_broker = room_of_broker
        self._room_of_consumer = room_of_consumer

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, current: str | None, queues: Sequence[MessageQueue] | None, consumers: Sequence[str] | None
    ) -> list[MessageQueue]:
        """Allocate as `Strategy` says. Raises InvalidArgument if the room of a broker or consumer is not known."""
        return for_one(self.allocate_all, current, queues, consumers)

    def allocate_all(self, queues: Sequence[MessageQueue], consumers: Sequence[str]) -> Allocation:
        """Allocate as `Strategy` says. Raises InvalidArgument as `allocate`."""
        near, far = self._rooms(queues, consumers)
        found: dict[str, list[MessageQueue]] = {consumer: [] for consumer in consumers}
        for room_queues, room_consumers in (*near, *((each, consumers) for each in far)):
            for consumer, its in self._inner.allocate_all(room_queues, room_consumers).items():
                found[consumer] += its
        return found

    def _rooms(
        self, queues: Sequence[MessageQueue], consumers: Sequence[str]
    ) -> tuple[list[tuple[list[MessageQueue], list[str]]], list[list[MessageQueue]]]:
        """Queues and consumers of each room that has both; the queues of each room that has no consumer."""
        queues_by_room = _grouped(queues, lambda each: self._room_of_broker(each.broker), "mq")
        consumers_by_room = _grouped(consumers, self._room_of_consumer, "consumer id")
        near, far = list[tuple[list[MessageQueue], list[str]]](), list[list[MessageQueue]]()
        for room in sorted(queues_by_room, key=java_order):
            if room in consumers_by_room:
                near.append((queues_by_room[room], consumers_by_room[room]))
            else:
                far.append(queues_by_room[room])
        return near, far


def _grouped(things: Iterable[T], room_of: Callable[[T], str | None], what: str) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for each in things:
        room = room_of(each)
        if not room:
            raise InvalidArgument(f"Machine room is null for {what} {each}")
        found.setdefault(room, []).append(each)
    return found
