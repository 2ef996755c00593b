"""`CONSISTENT_HASH`: consumers and queues lie on a ring; a queue goes to the next consumer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from hashlib import md5

from loadmanager.consumers.allocation.strategy import Allocation, InvalidArgument, MessageQueue, for_one


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
