"""The two ports for all input and output, and the contract of their adapters; one test suite checks each adapter.

Every method but `Coordination.abandon` is called on one asyncio event loop, the one that ran `start()`. Adapters turn
foreign threads into events on that loop and foreign errors into those of `errors.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from statechannel.law.agreement import Identity as Identity
from statechannel.law.record import BrokerId
from statechannel.law.record import LogEntry as LogEntry
from statechannel.law.record import Payload as Payload


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic as this system needs it.

    `partitions` None means: as many as exist, or the adapter's default when it creates the topic. A `compacted` topic
    may lose all but the last entry of a key; any other keeps everything. A compacted topic that is `followed` has
    readers who want every entry: it loses no entry before the log's compaction lag is over.
    """

    name: str
    partitions: int | None = None
    compacted: bool = False
    followed: bool = False


class Batches(Protocol):
    """Entries as they are read. It holds resources until it ends or is closed: use `contextlib.aclosing`."""

    def __aiter__(self) -> AsyncIterator[Sequence[LogEntry]]: ...

    def __anext__(self) -> Awaitable[Sequence[LogEntry]]: ...

    def aclose(self) -> Awaitable[None]: ...


class Log(Protocol):
    """Named topics of partitions, each a totally ordered, durable sequence of entries.

    *Order*: a partition's entries have strictly increasing offsets (gaps are allowed); every reader sees the same
    entries in the same order. The payloads of one `append`, and of successive appends of one caller to one partition,
    keep their order. *Durability*: what `append` acknowledged, or any reader has seen, is never lost (crash of a
    process or, on Kafka, of any minority of replicas). *Visibility*: readers see acknowledged entries without being
    asked, within milliseconds. *Duplicates*: an append that failed or was cancelled may still have happened, and may
    happen twice.
    """

    async def start(self, timeout_s: float) -> None:
        """Connect. Raises LogUnavailable, with the address, after `timeout_s`."""
        ...

    async def open_topic(self, spec: TopicSpec) -> int:
        """Create the topic, or check the one that exists; the number of its partitions.

        Raises TopicMismatch if its cleanup policy, or a partition count that the spec gives, differs; the message says
        what to change. Raises LogUnavailable.
        """
        ...

    async def has_topic(self, topic: str) -> bool:
        """Whether the topic exists, opened by this client or not. Creates nothing. Raises LogUnavailable."""
        ...

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """Append in order and return when durable.

        Raises RecordTooLarge (nothing was written), or LogUnavailable: nothing, all, or a prefix may have been written.
        """
        ...

    async def ends(self, topic: str) -> tuple[int, ...]:
        """For each partition the offset that the next entry will have at least. Raises LogUnavailable.

        The end may lie behind a transaction marker, which no reader gets: where an exclusive writer writes, do not wait
        for the end on a tail, but use `read`.
        """
        ...

    def tail(self, topic: str, starts: Sequence[int]) -> Batches:
        """All entries from the given offset of each partition on, without end, in batches of one partition (<= 1,000).

        Retries while the log is unavailable, and never skips an offset. `aclose` frees it.
        Raises Trimmed if the next entry was trimmed meanwhile, LogError if the topic cannot be read at all.
        """
        ...

    # --- a log that lives for years

    def read(self, topic: str, partition: int, start: int) -> Batches:
        """The entries that one partition has at the time of the call, from an offset on, in batches (<= 1,000).

        `start` may be an offset that a compacted topic no longer has: the next one comes first then. Entries of a
        transaction appear only once it is committed. Raises Trimmed if `start` lies below the partition's begin (not
        for compacted topics), LogUnavailable if no answer comes within the adapter's time-out.
        """
        ...

    async def begins(self, topic: str) -> tuple[int, ...]:
        """For each partition the lowest offset that can be read, its end if none can. Raises LogUnavailable."""
        ...

    async def offset_at(self, topic: str, partition: int, at_ms: int) -> int:
        """The offset of the first entry that the log took at `at_ms` (its wall clock) or later, else the end.

        Raises LogUnavailable.
        """
        ...

    async def trim(self, topic: str, partition: int, before: int) -> None:
        """Forget all entries below `before`, but none that is appended later. Idempotent.

        Readers below it get Trimmed. Offsets are not reused. Raises LogUnavailable, or TopicMismatch for a compacted
        topic, which cannot be trimmed.
        """
        ...

    async def exclusive(self, writer_id: str) -> ExclusiveWriter:
        """Become the only writer of this id; the previous one is fenced from now on.

        Raises LogUnavailable, or LogError if this client has no permission.
        """
        ...

    async def close(self) -> None:
        """Flush what was handed over, as far as it goes within a second, and free everything. Idempotent."""
        ...


class ExclusiveWriter(Protocol):
    """Writes groups of entries, each all-or-nothing, as long as no other client becomes the writer of its id.

    *Order*: once `Log.exclusive` has returned, everything that an earlier writer of the id committed can be read, and
    that writer commits nothing more.
    """

    async def commit(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """Append all payloads in one transaction: readers see all of them, or none.

        Raises WriterFenced (nothing was written; make no further attempt with this writer), RecordTooLarge (nothing was
        written), or LogUnavailable: all or nothing was written, ask for a new writer.
        """
        ...

    async def close(self) -> None:
        """Free what it holds. Idempotent."""
        ...


class Connection(StrEnum):
    """The state of the link to the coordination service; `suspended` in doubt."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No answer at present. Sessions may or may not have ended: conclude nothing from values read earlier."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """A registered broker: the incarnation of its liveness node, and the data it registered."""

    broker: BrokerId
    data: bytes


class Leadership(msgspec.Struct, frozen=True, gc=False):
    """Who leads, and since which epoch. Epochs only grow."""

    leader: BrokerId
    epoch: int


class WatchCounts(msgspec.Struct):
    """What the watches have cost since the start."""

    reads: int = 0
    """Requests for one or all of the watched values."""
    changes: int = 0
    """Reads that found something new: a broker came, went, registered again, leads, or took a lease."""


class Coordination(Protocol):
    """Who is alive, which incarnation of a name is current, and who leads.

    *Linearized, checked writes* (`start_incarnation`, `register`, `prove`, `raise_incarnation`, `campaign`, `evict`,
    `resign`, `claim`, `vacate`): each is one atomic transaction that checks what it depends on, or changes nothing. A
    success counts from before the request was sent. Each raises CoordinationUnavailable when there is no answer within
    the adapter's request time-out (`request_timeout_s`); then it may or may not have happened. After `identify` each
    also checks that this is still the same root: else it changes nothing and raises RootLost (the data is gone;
    `connection` is suspended then) or ForeignRoot (another root is there).

    *Liveness*: a registration, a leadership and a lease end when their session ends (the process closed it, or sent
    nothing for `session_timeout_s`). No client hears in time that its own session ended: only `prove` shows it.

    *Watches* (`members`, `leadership`, `leases`, `connection`): last known values, kept fresh while connected;
    `changed` is called on the loop after each change. They may lag: act on them, but never prove anything by them.
    """

    async def start(self, timeout_s: float) -> None:
        """Connect and begin to watch. Raises CoordinationUnavailable, with the address, after `timeout_s`."""
        ...

    async def identify(self, cluster: str, log_identity: str, root: str | None = None) -> str:
        """Check whose root this is, and from now on that it stays the same; returns its random identity.

        `root` is the identity that the log names: this root must have it, and nothing is created. None means that the
        log names no root yet: the first caller ties this root to cluster and log, and draws its identity. Raises
        ForeignCluster.
        """
        ...

    async def identity(self) -> Identity | None:
        """What this root is tied to, None if nothing yet. Never changes the root, not even an empty one."""
        ...

    # --- incarnations
    async def start_incarnation(self, name: str, above: int) -> BrokerId:
        """Raise the number of `name` by at least one, to more than `above`; older incarnations prove nothing more."""
        ...

    async def register(self, broker: BrokerId, data: bytes) -> None:
        """Replace or create the liveness node of this broker in this session; its incarnation is checked.

        Also changes the registered data. Raises Fenced if the incarnation is not the current one of its name.
        """
        ...

    async def prove(self, broker: BrokerId) -> None:
        """Write our own liveness node, with a check of the incarnation; if it vanished, register the last data again.

        Raises Fenced if the incarnation is not the current one of its name.
        """
        ...

    async def unregister(self, broker: BrokerId) -> None:
        """Remove our own liveness node, if it is ours. Idempotent."""
        ...

    async def raise_incarnation(self, broker: BrokerId, epoch: int) -> None:
        """End an incarnation: raise its name's number, checked against the incarnation and the leader's `epoch`.

        A number that is already higher counts as success. Raises Deposed if `epoch` is not the current one.
        """
        ...

    # --- election
    async def campaign(self, candidate: BrokerId, above: int = 0) -> Leadership | None:
        """Try once to become leader: None if there is a leader, else our leadership under a new, greater epoch.

        The epoch is above `above`, the highest in the log. Raises Fenced if the candidate is not current.
        """
        ...

    async def resign(self, leadership: Leadership) -> None:
        """Give up our own leadership if we still have it. Idempotent."""
        ...

    async def evict(self, leadership: Leadership) -> bool:
        """End this leadership, if its epoch is still the current one. Returns True if this call ended it."""
        ...

    # --- leases
    async def claim(self, lease: str, candidate: BrokerId) -> bool:
        """Take a free lease, for as long as our session lasts. Returns True if it is ours now.

        Also true if this incarnation holds it already. A lease is a short name (letters, digits, `-`). Raises Fenced
        if the candidate's incarnation is not current.
        """
        ...

    async def vacate(self, lease: str, holder: BrokerId) -> None:
        """Give up our own lease if we still have it. Idempotent."""
        ...

    # --- watches
    @property
    def leases(self) -> Mapping[str, BrokerId]:
        """Who holds which lease, as last seen. Rely on it for nothing: other checks fence the holders of leases."""
        ...

    @property
    def members(self) -> Mapping[str, Member]:
        """Registered brokers by name, as last seen."""
        ...

    @property
    def leadership(self) -> Leadership | None:
        """Who leads, as last seen."""
        ...

    @property
    def connection(self) -> Connection:
        """The state of the link, as last seen."""
        ...

    @property
    def counts(self) -> WatchCounts:
        """The cost of keeping these values fresh."""
        ...

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the loop after any of the watched values changed. Several may be registered."""
        ...

    # --- the end
    def abandon(self) -> None:
        """End the session because the loop hangs: the one method that any thread may call, and it never blocks.

        Registrations, leadership and leases end at once if the service can be reached, else by time-out. From now on
        `register`, `prove`, `campaign` and `claim` raise Fenced until `start_incarnation` has returned: no earlier
        incarnation acts again. Idempotent; does nothing to a client that was not started.
        """
        ...

    async def close(self) -> None:
        """End the session: registration, leadership and leases end at once. Idempotent."""
        ...
