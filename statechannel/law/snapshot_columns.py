"""The chunks of a snapshot: some thousand bundles each, in columns, framed and sealed as in `codec.py`."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from zlib import crc32

import msgspec

from statechannel.errors import BadSnapshot, NewerRecord
from statechannel.law.agreement import NOTHING_AGREED, Agreed
from statechannel.law.bundle import FULL_LOWER, Bundle
from statechannel.law.moves import Move
from statechannel.law.partition import ClusterIdentity, Lead, NamespaceState, PartitionState
from statechannel.law.record import Action, BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Cutting, Ownership

PLAIN_FORMAT, FORMAT = 1, 2
"""A snapshot with an agreement has format 2, so that earlier releases refuse it: they would lose the agreement."""
CHUNK_BUNDLES = 2_000
CHUNK_BYTES = 400_000
"""A chunk ends at so many bundles, or at about so many bytes of rare fields. Logs take entries of 1 MiB."""

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
            map(brokers.__getitem__, section.bys),  # type: ignore[arg-type] # 0, nobody, is never an author
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
