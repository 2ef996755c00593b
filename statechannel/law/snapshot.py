"""Encodes a partition of the ownership table for the snapshots topic, and decodes it. Pure.

The topic is compacted and has as many partitions as the channel. Each partition has chunks under the keys
`{snapshot id}/{number}`, and under `index` one record that lists the snapshots kept. A new snapshot is its chunks, then
the new index, then the tombstones of the chunks it drops: all in one transaction. A chunk holds some thousand bundles
in columns (`snapshot_columns.py`), because a million bundles must be read in a second or two. Chunks and index are
framed and sealed as in `codec.py`.

A snapshot is used whole or not at all: every chunk of its own id, their checksum, the cluster and the log must agree.
Compacting the *channel* instead is no option: a compacted topic keeps the last record, the law wants the first valid
one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b

import msgspec

from statechannel.errors import BadSnapshot
from statechannel.law.bundle import FULL_LOWER, FULL_UPPER
from statechannel.law.entry import LogEntry, Payload
from statechannel.law.partition import ClusterIdentity, NamespaceState, PartitionState
from statechannel.law.record import BrokerId
from statechannel.law.snapshot_columns import CHUNK_BUNDLES, Chunk, Head, entries, opened, packed, sealed, unpack
from statechannel.law.verdict import Ownership

INDEX_KEY = b"index"
SNAPSHOTS = "-snapshots"
"""Suffix of the snapshots topic, after the channel's name."""


class SnapshotInfo(msgspec.Struct, frozen=True):
    """One snapshot that is kept; it covers everything below `next_offset`."""

    snapshot_id: str
    next_offset: int
    at_ms: int
    """When it was taken, on its writer's wall clock."""
    chunks: int
    bundles: int
    size_bytes: int
    checksum: str


class Index(msgspec.Struct, frozen=True):
    """The snapshots kept of one partition, the one that covers most last, and the cluster identity they belong to."""

    cluster_identity: ClusterIdentity = msgspec.field(name="genesis")
    partition: int
    snapshots: tuple[SnapshotInfo, ...]

    @property
    def newest(self) -> SnapshotInfo:
        return self.snapshots[-1]


_pack = msgspec.msgpack.Encoder().encode
_unpack_index = msgspec.msgpack.Decoder(Index).decode


# --- writing


def encode(
    state: PartitionState, snapshot_id: str, at_ms: int, chunk_bundles: int = CHUNK_BUNDLES
) -> Iterator[Payload | SnapshotInfo]:
    """The chunks one by one, each made in a few milliseconds; last the snapshot's line in the index."""
    checksum, size_bytes, chunks = blake2b(digest_size=16), 0, 0
    for value in packed(state, chunk_bundles):
        checksum.update(value)
        size_bytes += len(value)
        yield Payload(chunk_key(snapshot_id, chunks), value)
        chunks += 1
    yield SnapshotInfo(
        snapshot_id, state.next_offset, at_ms, chunks, state.bundles, size_bytes, checksum.hexdigest()
    )  # fmt: skip


def chunk_key(snapshot_id: str, number: int) -> bytes:
    """The key of a chunk."""
    return f"{snapshot_id}/{number}".encode()


def closing(
    known: Index | None,
    cluster_identity: ClusterIdentity,
    partition: int,
    info: SnapshotInfo,
    keep: Collection[str],
) -> list[Payload]:
    """What goes into the transaction after the chunks: the index, and tombstones of the snapshots that are not kept.

    Of the known snapshots those named in `keep` stay. Raises BadSnapshot where a known one covers more than the new.
    """
    # One of the same id is this one: an earlier attempt, whose outcome was unknown, wrote it. It has the same chunks.
    earlier = tuple(each for each in known.snapshots if each.snapshot_id != info.snapshot_id) if known else ()
    if any(each.next_offset > info.next_offset for each in earlier):
        raise BadSnapshot(
            f"partition {partition} has a snapshot that covers more than {info.next_offset}: not replaced"
        )
    kept = tuple(each for each in earlier if each.snapshot_id in keep)
    dropped = [each for each in earlier if each.snapshot_id not in keep]
    index = Payload(INDEX_KEY, sealed(_pack(Index(cluster_identity, partition, (*kept, info)))))
    return [index, *(Payload(chunk_key(d.snapshot_id, n), None) for d in dropped for n in range(d.chunks))]


# --- reading


class SnapshotsReader:
    """Collects the snapshots of one partition; give it every entry of the snapshots topic, in order."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._chunks: dict[str, dict[int, bytes]] = {}
        self.index: Index | None = None
        """The last index that was read whole."""

    def take(self, entry: LogEntry) -> None:
        """Take the next entry. Raises NewerRecord if a newer release wrote the index; skips a damaged index."""
        if entry.key == INDEX_KEY:
            self.index = self._index(entry.value) or self.index
            return
        snapshot_id, slash, number = (entry.key or b"").decode(errors="replace").rpartition("/")
        if not slash or not (number.isascii() and number.isdigit()):
            return
        if entry.value is None:
            self._chunks.get(snapshot_id, {}).pop(int(number), None)
        else:
            self._chunks.setdefault(snapshot_id, {})[int(number)] = entry.value

    def _index(self, value: bytes | None) -> Index | None:
        try:
            return _unpack_index(opened(value)) if value is not None else None
        except (BadSnapshot, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def chunks(self, snapshot_id: str) -> list[bytes]:
        """All chunks of a snapshot that the index lists, unchecked. Raises BadSnapshot."""
        info = self._info(snapshot_id)
        found = self._chunks.get(snapshot_id, {})
        missing = [number for number in range(info.chunks) if number not in found]
        if missing:
            raise BadSnapshot(
                f"snapshot {snapshot_id} of partition {self._partition} lacks {len(missing)} of {info.chunks} chunks"
            )
        return [found[number] for number in range(info.chunks)]

    def _info(self, snapshot_id: str) -> SnapshotInfo:
        index = self.index
        info = next((s for s in index.snapshots if s.snapshot_id == snapshot_id), None) if index is not None else None
        if index is None or info is None:
            raise BadSnapshot(f"partition {self._partition} has no snapshot {snapshot_id!r}")
        if index.partition != self._partition:
            raise BadSnapshot(f"this is a snapshot of partition {index.partition}, not of {self._partition}")
        return info

    def checking(self, snapshot_id: str) -> Iterator[None]:
        """Check that a snapshot is complete and intact, chunk by chunk. Raises BadSnapshot."""
        seal = _Seal(self._partition, self._info(snapshot_id))
        for chunk in self.chunks(snapshot_id):
            seal.take(chunk)
            yield
        seal.check()

    def state(self, snapshot_id: str) -> PartitionState:
        """The partition in this snapshot. Raises BadSnapshot, NewerRecord."""
        decoding = self.decoding(snapshot_id)
        for _ in decoding:
            pass
        return decoding.state()

    def decoding(self, snapshot_id: str) -> Decoding:
        """As `state`, chunk by chunk, for a loop that has other work. Raises BadSnapshot, NewerRecord."""
        return Decoding(self._partition, self._info(snapshot_id), self.chunks(snapshot_id))


class _Seal:
    """The checksum of a snapshot's chunks."""

    def __init__(self, partition: int, info: SnapshotInfo) -> None:
        self._partition = partition
        self._info = info
        self._checksum = blake2b(digest_size=16)

    def take(self, chunk: bytes) -> None:
        """Add the next chunk."""
        self._checksum.update(chunk)

    def check(self) -> None:
        """Raises BadSnapshot unless the index has the same checksum."""
        if self._checksum.hexdigest() != self._info.checksum:
            snapshot = f"snapshot {self._info.snapshot_id} of partition {self._partition}"
            raise BadSnapshot(f"{snapshot}: it is damaged, its checksum differs")


class Decoding:
    """Decodes a snapshot: iterate over it, one chunk per step, then take its `state`."""

    def __init__(self, partition: int, info: SnapshotInfo, chunks: Sequence[bytes]) -> None:
        self._partition = partition
        self._info = info
        self._chunks = chunks
        self._taken = 0
        self._seal = _Seal(partition, info)
        self._head: Head | None = None
        self._brokers: dict[BrokerId, BrokerId] = {}
        self._namespaces: dict[str, tuple[int, list[Ownership]]] = {}

    def __iter__(self) -> Iterator[None]:
        """Decode; each step is a few milliseconds. Raises BadSnapshot, NewerRecord."""
        for value in self._chunks:
            self._seal.take(value)
            try:
                self._take(unpack(value))
            except (BadSnapshot, IndexError) as error:
                raise self._bad(str(error)) from None
            self._taken += 1
            yield

    def _take(self, chunk: Chunk) -> None:
        if chunk.head is not None:
            self._head = self._head.followed_by(chunk.head) if self._head is not None else chunk.head
        brokers = [None, *(self._brokers.setdefault(broker, broker) for broker in chunk.brokers)]
        for section in chunk.sections:
            revision, known = self._namespaces.setdefault(section.namespace, (section.revision, []))
            expected = known[-1].bundle.hi if known else FULL_LOWER
            if revision != section.revision or section.lo != expected:
                raise BadSnapshot(f"the pieces of {section.namespace} do not fit together")
            known += entries(section, brokers)

    def state(self) -> PartitionState:
        """The decoded partition. Raises BadSnapshot unless all of it is there, and every namespace is whole."""
        head = self._head
        if self._taken != len(self._chunks):
            raise self._bad(f"only {self._taken} of its {len(self._chunks)} chunks were decoded")
        self._seal.check()
        if head is None:
            raise self._bad("it has no head")
        for name, (_, known) in self._namespaces.items():
            if known and known[-1].bundle.hi != FULL_UPPER:
                raise self._bad(f"the bundles of {name} do not cover the ring")
        return PartitionState(
            partition=self._partition,
            next_offset=self._info.next_offset,
            cluster_identity=head.cluster_identity,
            lead=head.lead,
            retired=head.retired,
            incarnations=head.incarnations,
            namespaces=tuple(
                NamespaceState(name, revision, known)
                for name, (revision, known) in self._namespaces.items()
            ),
            leaving=head.leaving,
            arrived=head.arrived,
            agreed=head.agreed,
        )  # fmt: skip

    def _bad(self, why: str) -> BadSnapshot:
        return BadSnapshot(f"snapshot {self._info.snapshot_id} of partition {self._partition}: {why}")
