"""A simulated log server: topics in memory, exclusive writers with epochs, transactions, random compaction.

It never loses what it has taken, through outages too. It behaves as a Kafka broker where readers can tell: a
transaction's marker takes an offset that nobody reads, an aborted transaction leaves a gap, a compacted topic loses
superseded entries at any time, and a writer's epoch is checked when its request *arrives*, however late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

import msgspec

from loadmanager.simulation.log_partition import LogPartition
from statechannel.errors import LogError, TopicMismatch, Trimmed, WriterFenced
from statechannel.ports import LogEntry, Payload, TopicSpec

if TYPE_CHECKING:
    from loadmanager.simulation.log_tail import Tail

LOG_SERVER = "log"
DEFAULT_PARTITIONS = 4
MAX_BATCH = 1_000

COMPACTION_CHANCE = 0.05
MOST_ACTIVE_ENTRIES = 8
TOMBSTONES_KEPT_MS = 30_000
READ_SIZES = (2, 20, MAX_BATCH)


class Step(StrEnum):
    """Requests that belong to the work on snapshots."""

    BECOME_WRITER = "becoming the writer"
    COMMIT = "a commit"
    TRIM = "trimming"
    READ = "reading"


class _Topic(msgspec.Struct, eq=False):
    spec: TopicSpec
    partitions: list[LogPartition]


class SimulatedLogServer:
    """Topics in memory. `wall_ms` is the log's wall clock; an entry larger than `max_entry_bytes` is refused."""

    def __init__(
        self,
        random: Random,
        wall_ms: Callable[[], int],
        *,
        default_partitions: int = DEFAULT_PARTITIONS,
        max_entry_bytes: int = 1_000_000,
    ) -> None:
        self.max_entry_bytes = max_entry_bytes
        self.has_markers = True
        """Whether a commit uses up one more offset, so that `ends` points beyond what can be read."""
        self.compaction_chance = COMPACTION_CHANCE
        """Chance that a write to a compacted topic is followed by a compaction."""
        self.read_sizes: Sequence[int] = READ_SIZES
        """The most entries of one request of a `read`, drawn for each; other things happen between two requests."""
        self._random = random
        self._wall_ms = wall_ms
        self._default_partitions = default_partitions
        self._topics: dict[str, _Topic] = {}
        self._epochs: dict[str, int] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._tails: list[Tail] = []
        self.on_append: Callable[[str, LogEntry], None] | None = None
        """If set, called with each entry as the server takes it, before anybody can read it."""
        self.on_step: Callable[[Step, str], None] | None = None
        """If set, called with the step and the process's name when its request arrives, before it is carried out."""
        self.on_trim: Callable[[str, int, int], None] | None = None
        """If set, called with topic, partition and new begin just before the entries below are dropped."""

    def open_topic(self, spec: TopicSpec) -> int:
        topic = self._topics.get(spec.name)
        if topic is None:
            count = spec.partitions or self._default_partitions
            topic = self._topics[spec.name] = _Topic(spec, [LogPartition(number) for number in range(count)])
        if topic.spec.compacted != spec.compacted or spec.partitions not in (None, len(topic.partitions)):
            raise TopicMismatch(
                f"topic {spec.name} exists with {len(topic.partitions)} partitions, compacted={topic.spec.compacted}; "
                f"asked for {spec.partitions}, compacted={spec.compacted}. Use another name, or delete the topic"
            )
        return len(topic.partitions)

    def has_topic(self, topic: str) -> bool:
        return topic in self._topics

    def readers(self, topic: str) -> set[str]:
        """The processes that have a tail of a topic."""
        return {tail.process for tail in self._tails if tail.topic == topic}

    def reached(self, step: Step, process: str) -> None:
        """A request for such a step has arrived."""
        if self.on_step is not None:
            self.on_step(step, process)

    # --- writing

    def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        self._take(topic, partition, payloads)
        self._show(topic, partition)

    def append_torn(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """Take a prefix, most often an empty one."""
        if taken := payloads[: self._random.randint(-len(payloads), len(payloads) - 1)]:
            self.append(topic, partition, taken)

    def new_writer(self, writer_id: str) -> int:
        """The epoch of the writer of this id from now on; all earlier ones are fenced."""
        epoch = self._epochs[writer_id] = self._epochs.get(writer_id, 0) + 1
        return epoch

    def commit(
        self, writer_id: str, epoch: int, number: int, topic: str, partition: int, payloads: Sequence[Payload]
    ) -> None:
        """Take all payloads as the `number`th transaction of this writer; a repeated one changes nothing."""
        self._check_writer(writer_id, epoch)
        if number <= self._committed.get((writer_id, epoch), 0) or not payloads:
            return
        self._committed[writer_id, epoch] = number
        self._take(topic, partition, payloads)
        self._partition(topic, partition).skip(int(self.has_markers))
        self._show(topic, partition)

    def commit_torn(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """An aborted transaction: none of it is ever read, though some of it may have used up offsets."""
        self._partition(topic, partition).skip(self._random.randint(0, len(payloads) + 1) * self.has_markers)

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Forget the entries below an offset."""
        stored = self._partition(topic, partition)
        if self._topics[topic].spec.compacted:
            raise LogError(f"topic {topic} is compacted and cannot be trimmed; delete keys instead")
        if self.on_trim is not None and before > stored.begin:
            self.on_trim(topic, partition, min(before, stored.end))
        stored.trim(before)

    def compact(self, topic: str, partition: int) -> None:
        """Drop superseded entries from a compacted topic, except among a random number of the newest ones."""
        active = self._random.randint(0, MOST_ACTIVE_ENTRIES)
        self._partition(topic, partition).compact(active, self._wall_ms() - TOMBSTONES_KEPT_MS)

    def _take(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        stored, now_ms = self._partition(topic, partition), self._wall_ms()
        for payload in payloads:
            entry = stored.append(payload, now_ms)
            if self.on_append is not None:
                self.on_append(topic, entry)

    def _show(self, topic: str, partition: int) -> None:
        for tail in tuple(self._tails):
            if tail.topic == topic:
                tail.send_next()
        if self._topics[topic].spec.compacted and self._random.random() < self.compaction_chance:
            self.compact(topic, partition)

    def _check_writer(self, writer_id: str, epoch: int) -> None:
        current = self._epochs[writer_id]
        if epoch < current:
            raise WriterFenced(f"epoch {epoch} of writer {writer_id} was followed by {current}; stop writing")

    # --- reading

    def ends(self, topic: str) -> tuple[int, ...]:
        return tuple(partition.end for partition in self._topic(topic).partitions)

    def begins(self, topic: str) -> tuple[int, ...]:
        return tuple(partition.begin for partition in self._topic(topic).partitions)

    def offset_at(self, topic: str, partition: int, at_ms: int) -> int:
        return self._partition(topic, partition).first_since(at_ms)

    def read(self, topic: str, partition: int, start: int, limit: int = MAX_BATCH) -> Sequence[LogEntry]:
        """At most `limit` entries from an offset on. Raises Trimmed if it lies below the begin."""
        stored = self._partition(topic, partition)
        if start < stored.begin:
            raise Trimmed(f"{topic}/{partition}: offset {start} was trimmed, the log begins at {stored.begin}; reload")
        return stored.read(start, limit)

    def read_part(self, topic: str, partition: int, start: int, end: int | None) -> tuple[Sequence[LogEntry], int, int]:
        """Some entries from `start` on but below `end` (None: the present end); the next start, and that end."""
        limit = self._random.choice(self.read_sizes)
        found = self.read(topic, partition, start, limit)
        end = self._partition(topic, partition).end if end is None else end
        reached = found[-1].offset + 1 if len(found) == limit else end
        return [entry for entry in found if entry.offset < end], min(reached, end), end

    def partitions(self, topic: str) -> Sequence[LogPartition]:
        """The stored partitions, for inspection."""
        return self._topic(topic).partitions

    def attach(self, tail: Tail) -> None:
        """Serve a reader from now on. Idempotent; does nothing for a closed reader."""
        self._topic(tail.topic)
        if tail not in self._tails and not tail.closed:
            self._tails.append(tail)
            tail.send_next()

    def detach(self, tail: Tail) -> None:
        if tail in self._tails:
            self._tails.remove(tail)

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics:
            raise LogError(f"topic {name} does not exist; call open_topic first")
        return self._topics[name]

    def _partition(self, topic: str, partition: int) -> LogPartition:
        partitions = self._topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise LogError(f"topic {topic} has partitions 0 to {len(partitions) - 1}, not {partition}")
        return partitions[partition]
