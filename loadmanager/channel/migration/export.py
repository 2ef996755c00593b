"""An export of a log: the replayed state of every partition, its documents, and the file that holds them.

The file is read and written whole or not at all:

    LMEXPORT 01 {header as JSON}\n    readable with `head -1`
    length, chunk; length, chunk; …     4 bytes, big endian; chunks as of snapshots, partition after partition, then the
                                        entries of the document topics (format 2, where there are any), then keys and
                                        values of the groups (format 3, where there are any)
    BLAKE2b-128 of all that, in hex, and \n

The frame is the same in every version, so that a damaged file is told from one of a newer release.

Policies, settings and plans are copied along with the channel, unchanged, refused ones too: the same entries in the
same order give every reader the same documents. Copying goes on where an earlier run ended, by the entries' ids.
Decisions stay in the old log, since they refer to its offsets.

Of consumer groups the last value of each key is copied. A file has their settings, but not their members: by the time
it is imported these may read something else, so they join again. A move takes the members along too, so that no other
member gets what they may be reading.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import msgspec

from loadmanager.channel.migration.offline_log import patiently
from loadmanager.consumers.coordinator.store import GROUPS, GroupTable
from loadmanager.documents.fold import DOCUMENT_TOPICS, Entry
from loadmanager.errors import Conflict, Invalid
from statechannel.errors import BadSnapshot, NewerRecord
from statechannel.law import snapshot
from statechannel.law.agreement import Agreement
from statechannel.law.partition import ClusterIdentity, NamespaceState, PartitionState
from statechannel.law.record import Count
from statechannel.law.snapshot import Decoding, SnapshotInfo
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Ownership
from statechannel.ports import Log, Payload, TopicSpec


class Export(msgspec.Struct, frozen=True):
    """A channel, each partition as of one offset. A namespace is in one partition, so it is consistent."""

    cluster_identity: ClusterIdentity
    taken_ms: int
    """When it was taken, on that machine's wall clock; for people only."""
    address: str
    """The log's address; for people only."""
    states: tuple[PartitionState, ...]
    documents: DocumentEntries = msgspec.field(default_factory=dict)
    """Policies, settings and plans, as in their topics."""
    groups: GroupEntries = ()

    def namespaces(self) -> Iterator[NamespaceState]:
        """The existing namespaces."""
        for state in self.states:
            yield from (namespace for namespace in state.namespaces if namespace.entries)

    def entries(self) -> Iterator[Ownership]:
        """The entries of all bundles."""
        for namespace in self.namespaces():
            yield from namespace.entries

    def incarnations(self) -> dict[str, int]:
        """The highest incarnation of each broker name in the log."""
        highest: dict[str, int] = {}
        for state in self.states:
            for name, number in state.incarnations:
                highest[name] = max(number, highest.get(name, 0))
        return highest

    @property
    def agreement(self) -> Agreement | None:
        """The log's agreement, or the one that was about to replace it; None if there was none."""
        agreed = self.states[0].agreed
        return agreed.following or agreed.agreement

    @property
    def moved_to(self) -> str | None:
        """Where the channel goes on, if any partition of this log was closed."""
        return next((state.retired for state in self.states if state.retired is not None), None)

    @property
    def next_generation(self) -> int:
        """The lowest unused generation: if this log was moved, the next log has used its generation for tokens too."""
        return self.cluster_identity.generation + (1 if self.moved_to is None else 2)

    @property
    def bundles(self) -> int:
        return sum(state.bundles for state in self.states)

    def owners(self) -> dict[str, int]:
        """How many bundles each broker's name holds."""
        counts: dict[str, int] = {}
        for entry in self.entries():
            if entry.holder is not None:
                counts[entry.holder.name] = counts.get(entry.holder.name, 0) + 1
        return dict(sorted(counts.items()))


def nothing(cluster: str, generation: int) -> Export:
    """An export without namespaces and documents, for a log of this generation, where there is no backup."""
    identity = ClusterIdentity(cluster, "", generation - 1)
    table = OwnershipTable(1)
    table.cluster_identity = identity
    return Export(identity, 0, "", (table.cut(0),))


def export_of(
    table: OwnershipTable, documents: DocumentEntries, address: str, taken_ms: int, groups: GroupEntries = ()
) -> Export:
    """An export of all that was replayed. Raises Conflict if the log belongs to no cluster, or is incomplete."""
    if table.cluster_identity is None:
        raise Conflict(f"{address} belongs to no cluster, so there is nothing to export: correct --log")
    if table.import_is_unfinished:
        raise Conflict(f"{address} was only filled in part by an import: run that import again, then export")
    states = tuple(table.cut(partition) for partition in range(table.partitions))
    return Export(table.cluster_identity, taken_ms, address, states, documents, groups)


FORMAT, WITHOUT_GROUPS, WITHOUT_DOCUMENTS = 3, 2, 1
_MAGIC = b"LMEXPORT "
_SEAL_BYTES = 33
_LENGTH_BYTES = 4


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of the file."""

    cluster: str
    identity: str
    generation: int
    taken_ms: int
    log: str
    partitions: tuple[SnapshotInfo, ...]
    documents: tuple[tuple[str, Count], ...] = ()
    """Document topics, and how many entries each has."""
    groups: Count = 0
    """How many entries of groups follow, each a key and a value."""


def encode(export: Export) -> bytes:
    """The file's bytes; the same export gives the same bytes."""
    chunks: list[bytes] = []
    infos: list[SnapshotInfo] = []
    for state in export.states:
        for piece in snapshot.encode(state, f"partition-{state.partition}", export.taken_ms):
            if isinstance(piece, Payload):
                assert piece.value is not None
                chunks.append(piece.value)
            else:
                infos.append(piece)
    cluster_identity = export.cluster_identity
    counts = tuple((topic, len(values)) for topic, values in export.documents.items() if values)
    for topic, _ in counts:
        chunks += export.documents[topic]
    for entry in export.groups:
        chunks += entry
    header = Header(
        cluster_identity.cluster,
        cluster_identity.identity,
        cluster_identity.generation,
        export.taken_ms,
        export.address,
        tuple(infos),
        counts,
        len(export.groups),
    )
    version = FORMAT if export.groups else WITHOUT_GROUPS if counts else WITHOUT_DOCUMENTS
    body = b"".join(
        (_MAGIC, b"%02x " % version, msgspec.json.encode(header), b"\n", *(_framed(chunk) for chunk in chunks))
    )
    return body + _seal(body)


def write(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Write all of it under this name, or nothing; only the owner may read it. Raises OSError, FileExistsError.

    `replace` replaces a file of that name atomically.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            beside.replace(path)
        else:
            os.link(beside, path)  # unlike a rename it fails if the path exists
    finally:
        beside.unlink(missing_ok=True)
    _flush_directory(path.absolute().parent)


def decode(data: bytes) -> Export:
    """The export in a file. Raises Invalid: no export, damaged, truncated, or of a newer release."""
    if not data.startswith(_MAGIC):
        raise Invalid("this is not an export of a channel: name a file that `loadmanager channel export` wrote")
    body = data[:-_SEAL_BYTES]
    if data[-_SEAL_BYTES:] != _seal(body):
        raise Invalid("the export is damaged or truncated: its checksum does not match; take another copy of it")
    line, newline, rest = body.partition(b"\n")
    version, _, text = line[len(_MAGIC) :].partition(b" ")
    if version not in (b"%02x" % each for each in (FORMAT, WITHOUT_GROUPS, WITHOUT_DOCUMENTS)):
        found = version.decode(errors="replace")
        raise Invalid(
            f"the export is of format {found}, this release reads up to {FORMAT:02x}: import it with a newer release"
        )
    try:
        header = msgspec.json.decode(text, type=Header)
        return _whole(header, _chunks(rest if newline else b""))
    except NewerRecord as error:
        raise Invalid(f"the export was written by a newer release: {error}") from None
    except (msgspec.MsgspecError, BadSnapshot) as error:
        raise Invalid(f"the export cannot be read: {error}; take another copy of it") from None


def seal_of(data: bytes) -> str:
    """The file's checksum, which identifies it."""
    return data[-_SEAL_BYTES:].decode().strip()


def _whole(header: Header, chunks: Iterator[bytes]) -> Export:
    cluster_identity = ClusterIdentity(header.cluster, header.identity, header.generation)
    states = tuple(_state(partition, info, chunks) for partition, info in enumerate(header.partitions))
    documents = {topic: tuple(islice(chunks, count)) for topic, count in header.documents}
    if any(len(documents[topic]) != count for topic, count in header.documents):
        raise BadSnapshot("it lacks documents")
    groups = tuple(zip(*[islice(chunks, 2 * header.groups)] * 2, strict=False))
    if len(groups) != header.groups:
        raise BadSnapshot("it lacks groups")
    if next(chunks, None) is not None:
        raise BadSnapshot("it holds more than its header says")
    if not states or states[0].cluster_identity != cluster_identity:
        raise BadSnapshot("its header names another log than its content")
    return Export(cluster_identity, header.taken_ms, header.log, states, documents, groups)


def _state(partition: int, info: SnapshotInfo, chunks: Iterator[bytes]) -> PartitionState:
    values = [chunk for chunk in (next(chunks, None) for _ in range(info.chunks)) if chunk is not None]
    if len(values) != info.chunks:
        raise BadSnapshot(f"it lacks {info.chunks - len(values)} chunks of partition {partition}")
    decoding = Decoding(partition, info, values)
    for _ in decoding:
        pass
    return decoding.state()


def _chunks(rest: bytes) -> Iterator[bytes]:
    begin = 0
    while begin < len(rest):
        end = begin + _LENGTH_BYTES + int.from_bytes(rest[begin : begin + _LENGTH_BYTES], "big")
        if end > len(rest):
            raise BadSnapshot("its last chunk is cut off")
        yield rest[begin + _LENGTH_BYTES : end]
        begin = end


def _framed(chunk: bytes) -> bytes:
    return len(chunk).to_bytes(_LENGTH_BYTES, "big") + chunk


def _seal(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode() + b"\n"


def _flush_directory(directory: Path) -> None:
    """Flush a directory, which makes a new name in it durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


ENTRIES_AT_ONCE = 500

DocumentEntries = Mapping[str, tuple[bytes, ...]]
"""The values of each document topic, in their order."""

GroupEntries = Sequence[tuple[bytes, bytes]]
"""Keys of the groups' topic and their last values that count, in the order in which these were written."""


async def documents_in(log: Log) -> DocumentEntries:
    """All entries of the document topics; creates missing topics. Raises LogUnavailable."""
    return {topic: await patiently(lambda topic=topic: _entries(log, topic)) for topic in DOCUMENT_TOPICS}


async def fill_documents(log: Log, documents: DocumentEntries) -> int:
    """Append the entries that a new log lacks; returns how many. Raises Conflict if it has other documents already."""
    found = await documents_in(log)
    lacking = {topic: _lacking(topic, found[topic], wanted) for topic, wanted in documents.items()}
    for topic, values in lacking.items():
        for begin in range(0, len(values), ENTRIES_AT_ONCE):
            payloads = [Payload(None, value) for value in values[begin : begin + ENTRIES_AT_ONCE]]
            await patiently(lambda topic=topic, payloads=payloads: log.append(topic, 0, payloads))
    return sum(map(len, lacking.values()))


def _lacking(topic: str, found: Sequence[bytes], wanted: Sequence[bytes]) -> Sequence[bytes]:
    """The wanted values that are missing. Those found must be the first ones; an append may be partial or repeated."""
    ids = list(dict.fromkeys(map(_id, found)))
    if ids != list(dict.fromkeys(map(_id, wanted)))[: len(ids)]:
        raise Conflict(f"the new log's topic {topic!r} has documents of its own: choose a new log or topic prefix")
    there = set(ids)
    return [value for value in wanted if _id(value) not in there]


def _id(value: bytes) -> str:
    """An entry's id; for a value that is not an entry of ours, the whole value."""
    try:
        return msgspec.json.decode(value, type=Entry).id
    except (ValueError, RecursionError):  # no JSON, no entry, no Unicode, nested too deeply
        return value.hex()


async def _entries(log: Log, topic: str) -> tuple[bytes, ...]:
    await log.open_topic(TopicSpec(topic, 1))
    values: list[bytes] = []
    batches = log.read(topic, 0, 0)
    async with aclosing(batches):
        async for batch in batches:
            values += [entry.value for entry in batch if entry.value is not None]
    return tuple(values)


async def groups_in(log: Log, *, members: bool) -> GroupEntries:
    """What the log has of consumer groups, and of their `members` if wanted. Creates nothing. Raises LogUnavailable."""
    return await patiently(lambda: _groups(log, members=members))


async def fill_groups(log: Log, groups: GroupEntries) -> int:
    """Append what a new log lacks; returns how much. Raises Conflict if it has other groups already."""
    found, wanted = await groups_in(log, members=True), set(groups)
    if not wanted.issuperset(found):
        raise Conflict("the new log has consumer groups of its own: choose a new log or topic prefix")
    there = set(found)
    lacking = [each for each in groups if each not in there]
    if lacking:
        await patiently(lambda: log.open_topic(GROUPS))
    for begin in range(0, len(lacking), ENTRIES_AT_ONCE):
        payloads = [Payload(key, value) for key, value in lacking[begin : begin + ENTRIES_AT_ONCE]]
        await patiently(lambda payloads=payloads: log.append(GROUPS.name, 0, payloads))
    return len(lacking)


async def _groups(log: Log, *, members: bool) -> GroupEntries:
    if not await log.has_topic(GROUPS.name):
        return ()
    await log.open_topic(GROUPS)
    table, last = GroupTable(), dict[bytes, bytes]()
    async with aclosing(log.read(GROUPS.name, 0, 0)) as batches:
        async for batch in batches:
            for entry in batch:
                if not table.take(entry):
                    continue  # in its place in the new log it may replace what counts, or count itself
                key = entry.key or b""
                last.pop(key, None)  # in the order of the last writes, as compaction leaves them
                if entry.value is not None and (members or key.endswith(b"\n")):  # a group's key ends so
                    last[key] = entry.value
    return tuple(last.items())
