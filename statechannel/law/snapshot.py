"""The snapshot format: encodes a partition of the ownership table for the snapshots topic, and decodes it. Pure.

The topic is compacted and has as many partitions as the channel. Each partition has chunks under the keys
`{snapshot id}/{number}`, and under `index` one record that lists the snapshots kept. A new snapshot is its chunks, then
the new index, then the tombstones of the chunks it drops: all in one transaction. A chunk holds some thousand bundles
in columns, because a million bundles must be read in a second or two. Chunks and index are framed and sealed as in
`codec.py`.

A snapshot is used whole or not at all: every chunk of its own id, their checksum, the cluster and the log must agree.
Compacting the *channel* instead is not possible: a compacted topic keeps the last record, the law wants the first valid
one."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from zlib import crc32

import msgspec

from statechannel.errors import BadSnapshot, NewerRecord
from statechannel.law.agreement import NOTHING_AGREED, Agreed
from statechannel.law.bundle import FULL_LOWER, FULL_UPPER, Bundle
from statechannel.law.partition import ClusterIdentity, Lead, Move, NamespaceState, PartitionState
from statechannel.law.record import Action, BrokerId, LogEntry, Payload
from statechannel.law.transitions import State
from statechannel.law.verdict import Cutting, Ownership

PLAIN_FORMAT, FORMAT = 1, 2
"""A snapshot with an agreement has format 2, so that earlier releases refuse it: they would lose the agreement."""
CHUNK_BUNDLES = 2_000
CHUNK_BYTES = 400_000
"""The bundles, or about how many bytes of rare fields, at which a chunk ends. Logs take entries of 1 MiB."""

_STATES, _ACTIONS = tuple(State), tuple(Action)
_STATE_CODES = {state: code for code, state in enumerate(_STATES)}
_ACTION_CODES = {action: code for code, action in enumerate(_ACTIONS)}
"""Indices in the enumerations: a member added anywhere but at the end needs a new FORMAT (a test checks them)."""


class Rare(msgspec.Struct, frozen=True, array_like=True):
    """Fields that few bundles have; `index` is the bundle's within the section."""

    index: int
    target: BrokerId | None
    hand_off: bytes | None
    cutting: Cutting | None


class Section(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring bundles of one namespace in columns; brokers by their number in the chunk, 0 for none."""

    namespace: str
    revision: int
    lo: int
    his: list[int] = []
    states: bytes = b""
    holders: list[int] = []
    revisions: list[int] = []
    tokens: list[int] = []
    actions: bytes = b""
    bys: list[int] = []
    rare: list[Rare] = []


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The state that belongs to no bundle. It is in the first chunk; if its lists are long, in the first few."""

    cluster_identity: ClusterIdentity | None
    lead: Lead
    retired: str | None
    incarnations: tuple[tuple[str, int], ...] = ()
    leaving: tuple[tuple[Bundle, BrokerId], ...] = ()
    arrived: tuple[tuple[Bundle, tuple[Move, ...]], ...] = ()
    agreed: Agreed = NOTHING_AGREED

    def followed_by(self, more: Head) -> Head:
        """This piece and the next joined. Raises BadSnapshot if they are of different heads."""
        ours = (self.cluster_identity, self.lead, self.retired, self.agreed)
        if ours != (more.cluster_identity, more.lead, more.retired, more.agreed):
            raise BadSnapshot("the pieces of its head do not fit together")
        return msgspec.structs.replace(
            self,
            incarnations=self.incarnations + more.incarnations,
            leaving=self.leaving + more.leaving,
            arrived=self.arrived + more.arrived,
        )


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """The value of one key of the snapshots topic."""

    head: Head | None
    brokers: list[BrokerId]
    sections: list[Section]


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Chunk).decode


def unpack(value: bytes) -> Chunk:
    """The chunk in these bytes. Raises BadSnapshot, NewerRecord."""
    try:
        return _unpack(opened(value))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadSnapshot(f"a chunk cannot be read: {error}") from None


def packed(state: PartitionState, chunk_bundles: int = CHUNK_BUNDLES) -> Iterator[bytes]:
    """The partition's chunks, each made in a few milliseconds."""
    version = PLAIN_FORMAT if state.agreed == NOTHING_AGREED else FORMAT
    for chunk in _chunks(state, chunk_bundles):
        yield sealed(_pack(chunk), version)


def _chunks(state: PartitionState, chunk_bundles: int) -> Iterator[Chunk]:
    head: Head | None = None
    for piece in _heads(state):
        if head is not None:
            yield Chunk(head, [], [])
        head = piece
    sections: list[tuple[NamespaceState, Sequence[Ownership]]] = []
    bundles, size_bytes = 0, 0
    for namespace, run in _runs(state.namespaces, chunk_bundles):
        run_bytes = len(namespace.name) + sum(map(_rare_bytes, run))
        if sections and (bundles + len(run) > chunk_bundles or size_bytes + run_bytes > CHUNK_BYTES):
            yield _chunk(head, sections)
            head, sections, bundles, size_bytes = None, [], 0, 0
        sections.append((namespace, run))
        bundles += max(1, len(run))
        size_bytes += run_bytes
    if sections or head is not None:
        yield _chunk(head, sections)


def _heads(state: PartitionState) -> Iterator[Head]:
    """The head, in pieces of at most CHUNK_BYTES; no step walks a whole list."""
    bare = Head(state.cluster_identity, state.lead, state.retired, agreed=state.agreed)
    lists = {"incarnations": state.incarnations, "leaving": state.leaving, "arrived": state.arrived}
    piece: dict[str, list[object]] = {name: [] for name in lists}
    size_bytes = 0
    for name, items in lists.items():
        for item in items:
            item_bytes = len(_pack(item))
            if size_bytes and size_bytes + item_bytes > CHUNK_BYTES:
                yield _with(bare, piece)
                piece, size_bytes = {each: [] for each in lists}, 0
            piece[name].append(item)
            size_bytes += item_bytes
    yield _with(bare, piece)


def _with(bare: Head, lists: Mapping[str, Sequence[object]]) -> Head:
    return msgspec.structs.replace(bare, **{name: tuple(items) for name, items in lists.items()})


def _runs(
    namespaces: Sequence[NamespaceState], chunk_bundles: int
) -> Iterator[tuple[NamespaceState, Sequence[Ownership]]]:
    """Each namespace in runs that fit into a chunk; a deleted one as an empty run."""
    for namespace in namespaces:
        begin, size_bytes = 0, 0
        for index, entry in enumerate(namespace.entries):
            size_bytes += _rare_bytes(entry)
            if index > begin and (index - begin >= chunk_bundles or size_bytes > CHUNK_BYTES):
                yield namespace, namespace.entries[begin:index]
                begin, size_bytes = index, _rare_bytes(entry)
        yield namespace, namespace.entries[begin:]


def _rare_bytes(entry: Ownership) -> int:
    """About how many bytes an entry's rare fields take."""
    cutting = entry.cutting
    return (len(entry.hand_off) if entry.hand_off else 0) + (5 * len(cutting.boundaries) if cutting else 0)


def _chunk(head: Head | None, sections: Sequence[tuple[NamespaceState, Sequence[Ownership]]]) -> Chunk:
    numbers: dict[BrokerId | None, int] = {None: 0}
    packed = [_section(namespace, run, numbers) for namespace, run in sections]
    return Chunk(head, [broker for broker in numbers if broker is not None], packed)


def _section(namespace: NamespaceState, run: Sequence[Ownership], numbers: dict[BrokerId | None, int]) -> Section:
    if not run:
        return Section(namespace.name, namespace.revision, FULL_LOWER)
    number = numbers.setdefault
    return Section(
        namespace.name,
        namespace.revision,
        run[0].bundle.lo,
        [entry.bundle.hi for entry in run],
        bytes([_STATE_CODES[entry.state] for entry in run]),
        [number(entry.holder, len(numbers)) for entry in run],
        [entry.revision for entry in run],
        [entry.token for entry in run],
        bytes([_ACTION_CODES[entry.action] for entry in run]),
        [number(entry.by, len(numbers)) for entry in run],
        [
            Rare(index, entry.target, entry.hand_off, entry.cutting)
            for index, entry in enumerate(run)
            if entry.target is not None or entry.hand_off is not None or entry.cutting is not None
        ],
    )


def entries(section: Section, brokers: Sequence[BrokerId | None]) -> list[Ownership]:
    """A section's bundles. Raises BadSnapshot where its columns do not fit each other."""
    edges = [section.lo, *section.his]
    if not all(map(operator.lt, edges, section.his)):
        raise BadSnapshot(f"the boundaries of {section.namespace} do not run upwards")
    bundles = map(Bundle, itertools.repeat(section.namespace), edges, section.his)
    found = list(
        map(
            Ownership,
            bundles,
            map(_STATES.__getitem__, section.states),
            map(brokers.__getitem__, section.holders),
            itertools.repeat(None),
            section.revisions,
            section.tokens,
            map(_ACTIONS.__getitem__, section.actions),
            map(brokers.__getitem__, section.bys),  # type: ignore[arg-type] # 0, no broker, is never an author
        )
    )
    columns = (section.states, section.holders, section.revisions, section.tokens, section.actions, section.bys)
    if any(len(column) != len(section.his) for column in columns):
        raise BadSnapshot(f"the columns of {section.namespace} are of different length")
    for rare in section.rare:
        found[rare.index] = msgspec.structs.replace(
            found[rare.index], target=rare.target, hand_off=rare.hand_off, cutting=rare.cutting
        )
    return found


def sealed(body: bytes, version: int = PLAIN_FORMAT) -> bytes:
    """A body in its frame."""
    head = b"LS%02x" % version
    return head + b" %08x " % crc32(body, crc32(head)) + body


def opened(value: bytes) -> bytes:
    """The body in a frame. Raises BadSnapshot, NewerRecord."""
    head, seal, body = value[:4], value[4:14], value[14:]
    if head[:2] != b"LS" or seal != b" %08x " % crc32(body, crc32(head)):
        raise BadSnapshot("not an intact piece of a snapshot")
    if not any(head == b"LS%02x" % version for version in range(PLAIN_FORMAT, FORMAT + 1)):
        raise NewerRecord(
            f"a snapshot of format {head[2:].decode(errors='replace')}; this release reads up to {FORMAT}: "
            "upgrade this broker"
        )
    return body


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
