"""The two protocols that carry all input and output, and what an adapter owes; one contract suite runs on each adapter.

Every method but `Coordination.abandon` is called on one asyncio event loop, the one that ran `start()`. Adapters turn
foreign threads into events on that loop and foreign errors into those of `errors.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from statechannel.law.coordination_root import Identity as Identity
from statechannel.law.entry import LogEntry as LogEntry
from statechannel.law.entry import Payload as Payload
from statechannel.law.record import BrokerId


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic as this system needs it.

    `partitions` None means: as many as exist, or the adapter's default when it creates the topic. A `compacted` topic
    may lose all but the last entry of a key; one that is not keeps everything. A compacted one that is `followed` has
    readers who want every entry: it loses none before the log's compaction lag is over.
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

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """Append in order and return when durable.

        Raises RecordTooLarge (nothing was written), or LogUnavailable: nothing, all, or a prefix may have been written.
        """
        ...

    async def ends(self, topic: str) -> tuple[int, ...]:
        """For each partition the offset that the next entry will have at least. Raises LogUnavailable.

        It may pass what closes a transaction, which no reader gets: where an exclusive writer writes do not wait for it
        on a tail, but use `read`.
        """
        ...

    def tail(self, topic: str, starts: Sequence[int]) -> Batches:
        """All entries from the given offset of each partition on, for ever, in batches of one partition (<= 1,000).

        Rides out unavailability by itself and never skips an offset. `aclose` frees it.
        Raises Trimmed if what comes next was trimmed meanwhile, LogError if it cannot be read at all.
        """
        ...

    # --- a log that lives for years

    def read(self, topic: str, partition: int, start: int) -> Batches:
        """What one partition holds from an offset on at the time of the call, in batches (<= 1,000); then it ends.

        `start` may be an offset that a compacted topic no longer has: it goes on with the next one. Entries of a
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
        """Forget all entries below `before`; what lies beyond the end is not forgotten in advance. Idempotent.

        Readers that stand below get Trimmed. Offsets go on as they were. Raises LogUnavailable, or TopicMismatch for a
        compacted topic, which is not trimmed.
        """
        ...

    async def exclusive(self, writer_id: str) -> ExclusiveWriter:
        """Become the only writer of this id: whoever was it before is fenced from now on.

        Raises LogUnavailable, or LogError where this client has no right to.
        """
        ...

    async def close(self) -> None:
        """Flush what was handed over, as far as it goes within a second, and free everything. Idempotent."""
        ...


class ExclusiveWriter(Protocol):
    """Writes groups of entries, each all-or-nothing, as long as nobody else becomes the writer of its id.

    The order that matters: whatever an earlier writer of the id has committed can be read once `Log.exclusive` has
    returned, and nothing of it is committed later.
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
    """What is known of the link to the coordination service. In doubt it is `suspended`."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No answer at present. Sessions may or may not have ended; nothing may be concluded from what was read."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """A registered broker: the incarnation of its liveness node, and the data it registered."""

    broker: BrokerId
    data: bytes


class Leadership(msgspec.Struct, frozen=True, gc=False):
    """Who leads, and since which epoch. Epochs only grow."""

    leader: BrokerId
    epoch: int


class WatchCounts(msgspec.Struct):
    """What following the watched values has cost since the start."""

    reads: int = 0
    """Times that they, or one of them, were asked for."""
    changes: int = 0
    """How often something new was read: somebody came, went, registered again, leads, took a lease."""


class Coordination(Protocol):
    """Who is alive, which incarnation of a name is current, and who leads.

    *Linearized, checked writes* (`start_incarnation`, `register`, `prove`, `raise_incarnation`, `campaign`, `evict`,
    `resign`, `claim`, `vacate`): each is one atomic transaction that checks what it depends on, or changes nothing. A
    success counts from before the request was sent. Each raises CoordinationUnavailable when there is no answer within
    the adapter's request time-out (`request_timeout_s`); then it may or may not have happened. After `identify` each
    also checks that this is still the root that was identified: else it changes nothing and raises RootLost (the data
    is gone; `connection` is suspended then) or ForeignRoot (another root stands there).

    *Liveness*: a registration, a leadership and a lease end when their session ends (the process closed it, or was
    not heard for `session_timeout_s`); no client is told in time of its own session's end: only `prove` tells.

    *Watches* (`members`, `leadership`, `leases`, `connection`): last known values, kept fresh while connected;
    `changed` is called on the loop after each change. They may lag: act on them, but never prove anything by them.
    """

    async def start(self, timeout_s: float) -> None:
        """Connect and begin to watch. Raises CoordinationUnavailable, with the address, after `timeout_s`."""
        ...

    async def identify(self, cluster: str, log_identity: str, root: str | None = None) -> str:
        """Check whose root this is, and from now on that it stays the same; its random identity.

        With `root`, the log's word, this has to be that root, and nothing is made here. Without, the log has no word on
        it yet: the first caller ties this root to cluster and log, and draws its identity. Raises ForeignCluster.
        """
        ...

    async def identity(self) -> Identity | None:
        """What this root is tied to, None if to nothing yet. Changes nothing, also not an empty root."""
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
        """Write our own liveness node, the incarnation checked; registers again, with the last data, where it vanished.

        Raises Fenced if the incarnation is not the current one of its name.
        """
        ...

    async def unregister(self, broker: BrokerId) -> None:
        """Remove our own liveness node, if it is ours. Idempotent."""
        ...

    async def raise_incarnation(self, broker: BrokerId, epoch: int) -> None:
        """Make `broker` not current: raise its name's number, checked against its incarnation and the leader's `epoch`.

        A number that is already higher is success, whoever raised it. Raises Deposed if `epoch` is not the current one.
        """
        ...

    # --- election
    async def campaign(self, candidate: BrokerId, above: int = 0) -> Leadership | None:
        """Try once to take the lead: None if somebody leads, else our leadership under a new, greater epoch.

        It is greater than `above`, the highest that the log shows. Raises Fenced if the candidate is not current.
        """
        ...

    async def resign(self, leadership: Leadership) -> None:
        """Give up our own leadership if we still have it. Idempotent."""
        ...

    async def evict(self, leadership: Leadership) -> bool:
        """End somebody's leadership, if it is still this one (its epoch is checked); whether this call ended it."""
        ...

    # --- leases
    async def claim(self, lease: str, candidate: BrokerId) -> bool:
        """Take a lease that nobody holds, for as long as our session lasts; whether it is ours now.

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
        """Who holds which lease, as last seen. Nothing may rest on it: whoever acts in one is fenced elsewhere."""
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
        """What it has cost to keep these values fresh."""
        ...

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the loop after any of the watched values changed. Several may be registered."""
        ...

    # --- the end
    def abandon(self) -> None:
        """End the session because the loop hangs: the one method that any thread may call, and that waits for nobody.

        Registrations, leadership and leases end at once if the service can be reached, else by time-out. From now on
        `register`, `prove`, `campaign` and `claim` raise Fenced, whoever asks, until `start_incarnation` has returned:
        what was started before never acts again. Idempotent; does nothing to a client that was not started.
        """
        ...

    async def close(self) -> None:
        """End the session: registration and leadership end at once. Idempotent."""
        ...
