"""One partition of the ownership table: the result of replaying its records, live and as an immutable copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from statechannel.law.agreement import NOTHING_AGREED, Agreed
from statechannel.law.bundle import Bundle
from statechannel.law.moves import Move, Moves
from statechannel.law.namespace import Namespace
from statechannel.law.record import BrokerId
from statechannel.law.verdict import Ownership

PACKED_AT_ONCE = 500

_pack = msgspec.msgpack.Encoder().encode


class ClusterIdentity(msgspec.Struct, frozen=True):
    """Which cluster this log belongs to: the first genesis record wins."""

    cluster: str
    identity: str
    generation: int

    def __str__(self) -> str:
        return f"cluster {self.cluster!r} (log {self.identity}, generation {self.generation})"


class Lead(msgspec.Struct, frozen=True, gc=False):
    """Who leads in a partition: of leaders' records only this leader's of this epoch count."""

    epoch: int = 0
    leader: BrokerId | None = None


class NamespaceState(msgspec.Struct, frozen=True):
    """A namespace at one moment; a deleted one has no entries."""

    name: str
    revision: int
    entries: Sequence[Ownership]
    """Never changes."""


class PartitionState(msgspec.Struct, frozen=True):
    """A partition at one moment: everything below `next_offset` has been replayed. Namespaces are sorted by name.

    Only partition 0 has a `cluster_identity`. `leaving` and `arrived` are its `Moves`.
    """

    partition: int
    next_offset: int
    cluster_identity: ClusterIdentity | None
    lead: Lead
    retired: str | None
    incarnations: tuple[tuple[str, int], ...]
    namespaces: tuple[NamespaceState, ...]
    leaving: tuple[tuple[Bundle, BrokerId], ...]
    arrived: tuple[tuple[Bundle, tuple[Move, ...]], ...]
    agreed: Agreed = NOTHING_AGREED

    @property
    def bundles(self) -> int:
        """How many bundles there are."""
        return sum(len(namespace.entries) for namespace in self.namespaces)

    def digest(self) -> str:
        """A hash of everything but `next_offset`: equal on all replicas at equal offsets."""
        digest = blake2b(digest_size=16)
        for piece in self._encoded():
            digest.update(piece)
        return digest.hexdigest()

    def _encoded(self) -> Iterator[bytes]:
        """In MessagePack, piece by piece: the tuple of what belongs to no namespace, then each namespace.

        Without an agreement the bytes are those of releases before record format 3.
        """
        if self.agreed != NOTHING_AGREED:
            yield _pack(self.agreed)
        yield b"\x96" + _pack(self.cluster_identity) + _pack(self.lead) + _pack(self.retired)
        for items in (self.incarnations, self.leaving, self.arrived):
            yield from _array(items)
        for namespace in self.namespaces:
            yield b"\x83" + _pack("name") + _pack(namespace.name) + _pack("revision") + _pack(namespace.revision)
            yield _pack("entries")
            yield from _array(namespace.entries)


def _array(items: Sequence[object]) -> Iterator[bytes]:
    """As `_pack(items)`, in pieces: no other thread runs while an encoder works, and one of them renews proofs."""
    yield _array_head(len(items))
    for begin in range(0, len(items), PACKED_AT_ONCE):
        piece = items[begin : begin + PACKED_AT_ONCE]
        yield _pack(piece)[len(_array_head(len(piece))) :]


def _array_head(length: int) -> bytes:
    if length < 16:
        return bytes([0x90 | length])
    return b"\xdc" + length.to_bytes(2) if length < 1 << 16 else b"\xdd" + length.to_bytes(4)


class Partition:
    """The live state of one partition."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.lead = Lead()
        self.retired: str | None = None
        self.agreed = NOTHING_AGREED
        self.incarnations: dict[str, int] = {}
        self.namespaces: dict[str, Namespace] = {}
        self.moves = Moves()

    def frozen(self) -> Partition:
        """An independent copy of the partition."""
        frozen = Partition()
        frozen.next_offset, frozen.lead, frozen.retired = self.next_offset, self.lead, self.retired
        frozen.agreed = self.agreed
        frozen.incarnations = dict(self.incarnations)
        frozen.namespaces = {name: namespace.frozen() for name, namespace in self.namespaces.items()}
        frozen.moves = self.moves.copy()
        return frozen

    @classmethod
    def of(cls, state: PartitionState) -> Partition:
        """The live state of an immutable copy, without its namespaces: see `filled`."""
        partition = cls()
        partition.next_offset = state.next_offset
        partition.lead = state.lead
        partition.retired = state.retired
        partition.agreed = state.agreed
        partition.incarnations = dict(state.incarnations)
        partition.moves = Moves(state.leaving, state.arrived)
        return partition

    def filled(self, state: PartitionState) -> Iterator[None]:
        """Add the namespaces of the copy, in steps."""
        for each in state.namespaces:
            self.namespaces[each.name] = Namespace(each.name, each.revision, each.entries)
            yield
