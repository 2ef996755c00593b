"""The file format of an export, which is read and written whole or not at all.

    LMEXPORT 01 {header as JSON}\\n    readable with `head -1`
    length, chunk; length, chunk; …     4 bytes, big endian; chunks as of snapshots, partition after partition, then the
                                        entries of the document topics (format 2, where there are any)
    BLAKE2b-128 of all that, in hex, and \\n

The frame is the same in every version, so that a damaged file is told from one of a newer release.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import msgspec

from loadmanager.channel.migration.export import Export
from loadmanager.errors import Invalid
from statechannel.errors import BadSnapshot, NewerRecord
from statechannel.law import snapshot
from statechannel.law.partition import ClusterIdentity, PartitionState
from statechannel.law.record import Count
from statechannel.law.snapshot import Decoding, SnapshotInfo
from statechannel.ports import Payload

FORMAT, WITHOUT_DOCUMENTS = 2, 1
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
    header = Header(
        cluster_identity.cluster,
        cluster_identity.identity,
        cluster_identity.generation,
        export.taken_ms,
        export.address,
        tuple(infos),
        counts,
    )
    version = FORMAT if counts else WITHOUT_DOCUMENTS
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
        raise Invalid("this is no export of a channel: name a file that `loadmanager channel export` wrote")
    body = data[:-_SEAL_BYTES]
    if data[-_SEAL_BYTES:] != _seal(body):
        raise Invalid("the export is damaged or truncated: its checksum does not match; take another copy of it")
    line, newline, rest = body.partition(b"\n")
    version, _, text = line[len(_MAGIC) :].partition(b" ")
    if version not in (b"%02x" % FORMAT, b"%02x" % WITHOUT_DOCUMENTS):
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
    if next(chunks, None) is not None:
        raise BadSnapshot("it holds more than its header says")
    if not states or states[0].cluster_identity != cluster_identity:
        raise BadSnapshot("its header names another log than its content")
    return Export(cluster_identity, header.taken_ms, header.log, states, documents)


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
