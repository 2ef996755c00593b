"""A store of groups' offsets in memory, which can fail."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from loadmanager.consumers.backlog.port import Look
from loadmanager.consumers.coordinator.records import by_topic
from statechannel.errors import LogError


class MemoryOffsets:
    """A `GroupOffsets`; each topic is a mapping of queue to its begin, its end, and store times by offset."""

    def __init__(self) -> None:
        self.groups_committed: dict[str, dict[str, dict[int, int]]] = {}
        self.groups_pulled: dict[str, dict[str, dict[int, int]]] = {}
        self.topics: dict[str, list[tuple[int, int | None]]] = {}
        self.times: dict[tuple[str, int], int | None] = {}
        self.times_at: dict[tuple[str, int, int], int] = {}
        self.begins_asked: Mapping[str, Collection[int]] = {}
        self.times_asked: Sequence[tuple[str, int, int]] = ()
        self.places_looked_at: Sequence[tuple[str, int, int, int]] = ()
        self.first_since: dict[tuple[str, int], int] = {}
        self.gaps: frozenset[int] | range = frozenset()
        self.in_time = True
        self.racks_of: dict[tuple[str, int], str] = {}
        self.failure: LogError | None = None

    async def committed(
        self, group: str
    ) -> tuple[Mapping[str, Mapping[int, int]], Mapping[str, Mapping[int, int]]] | None:
        self._answer()
        found = self.groups_committed.get(group)
        return None if found is None else (found, self.groups_pulled.get(group, {}))

    async def groups(self) -> Collection[str]:
        self._answer()
        return list(self.groups_committed)

    async def queues(self, topics: Collection[str]) -> Mapping[str, int]:
        self._answer()
        return {topic: len(self.topics[topic]) for topic in topics if topic in self.topics}

    async def racks(self, topics: Collection[str]) -> Mapping[str, Mapping[int, str]]:
        self._answer()
        return {topic: its for topic, its in by_topic(self.racks_of).items() if topic in topics}

    async def ends(self, queues: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, int]]:
        self._answer()
        return {
            topic: {number: end for number in numbers if (end := self.topics[topic][number][1]) is not None}
            for topic, numbers in queues.items()
        }

    async def begins(self, queues: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, int]]:
        self._answer()
        self.begins_asked = queues
        return {
            topic: {number: self.topics[topic][number][0] for number in numbers} for topic, numbers in queues.items()
        }

    async def since(self, queues: Mapping[str, Collection[int]], at_ms: int) -> Mapping[str, Mapping[int, int]]:
        """Whatever the time is: `first_since`."""
        self._answer()
        return {
            topic: {n: self.first_since[topic, n] for n in numbers if (topic, n) in self.first_since}
            for topic, numbers in queues.items()
        }

    async def stored_ms(self, places: Sequence[tuple[str, int, int]]) -> Mapping[tuple[str, int], int | None]:
        self._answer()
        self.times_asked = places
        at_place = {place[:2]: self.times_at[place] for place in places if place in self.times_at}
        return {place[:2]: self.times[place[:2]] for place in places if place[:2] in self.times} | at_place

    async def look(self, places: Sequence[tuple[str, int, int, int]], look: Look) -> bool:
        """The value of a record is its offset; there is none at the offsets in `gaps`."""
        self._answer()
        self.places_looked_at = places
        for _, number, first, end in places:
            for offset in range(first, end):
                if offset not in self.gaps and not look(str(number).encode(), str(offset).encode(), {}):
                    return True
        return self.in_time

    def _answer(self) -> None:
        if self.failure is not None:
            raise self.failure
