"""`MACHINE_ROOM_NEARBY-…`: consumers read in their own room; rooms without a consumer are read by all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from loadmanager.consumers.allocation.strategy import (
    Allocation,
    InvalidArgument,
    MessageQueue,
    Strategy,
    for_one,
    java_order,
)

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
