"""`MACHINE_ROOM`: only queues of some rooms are allocated. A broker's name is `room@name`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from loadmanager.consumers.allocation.strategy import Allocation, InvalidArgument, MessageQueue, for_one

PARTS = 2


class MachineRoom:
    """Contiguous blocks of the queues in `rooms`, then one queue more for each of the first consumers.

    Queues in other rooms, or on brokers with another form of name, go to nobody.
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str] | None) -> None:
        self._rooms = rooms

    def allocate(
        self, current: str | None, queues: Sequence[MessageQueue] | None, consumers: Sequence[str] | None
    ) -> list[MessageQueue]:
        """Allocate as `Strategy` says. Raises InvalidArgument if there are no `rooms` to compare a broker's with."""
        return for_one(self.allocate_all, current, queues, consumers)

    def allocate_all(self, queues: Sequence[MessageQueue], consumers: Sequence[str]) -> Allocation:
        """Allocate as `Strategy` says. Raises InvalidArgument as `allocate`."""
        served, found = self._served(queues), dict[str, list[MessageQueue]]()
        for index, consumer in enumerate(consumers):
            found.setdefault(consumer, _share(served, index, len(consumers)))
        return found

    def _served(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        return [queue for queue in queues if self._serves(queue)]

    def _serves(self, queue: MessageQueue) -> bool:
        parts = queue.broker.rstrip("@").split("@")  # as Java splits: no empty parts at the end
        if len(parts) != PARTS:
            return False
        if self._rooms is None:
            raise InvalidArgument("the machine rooms (consumeridcs) are missing: say which ones are served")
        return parts[0] in self._rooms


def _share(served: list[MessageQueue], index: int, consumers: int) -> list[MessageQueue]:
    size, more = divmod(len(served), consumers)
    block = served[index * size : (index + 1) * size]
    return [*block, served[consumers * size + index]] if index < more else block
