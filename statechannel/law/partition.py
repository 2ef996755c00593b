"""One partition of the ownership table: the result of replaying its records, live and as an immutable copy.

It also holds the planned moves of each bundle, and tells a log that an import fills: by the identity of its genesis
record, and by the import's last mark. Until that mark the log holds only a part of the cluster, and no broker may act
on it. The marks are no-ops of a broker that never lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain

import msgspec

from statechannel.law.agreement import NOTHING_AGREED, Agreed
from statechannel.law.bundle import Bundle
from statechannel.law.namespace import Namespace
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership, Transition

IDENTITY = "import-"
"""The prefix of the identity of a log that an import made."""
AT_WORK, DONE = BrokerId("import", 1), BrokerId("import", 2)
"""The author of an import's records, and that of its last one. No broker has this name: theirs are `host:port`."""


def generation_of(identity: str) -> int:
    """The generation of the log with this identity: an import's identity tells it, every other log has 0."""
    number = identity.removeprefix(IDENTITY).partition("-")[0] if identity.startswith(IDENTITY) else ""
    return int(number) if number.isdecimal() else 0


MOVES_KEPT_A_BUNDLE = 8
BUNDLES_KEPT = 10_000

_LAST_MS = 2**63 - 1
"""Authors may write any number as their time; this is the largest that fits into a snapshot."""

_PLANNED = frozenset({Action.TRANSFER, Action.UNLOAD})
_BROKER, _LEADER, _REVOKE = Role.BROKER, Role.LEADER, Action.REVOKE
_ASSIGNING, _ASSIGNED, _TRANSFERRING = State.ASSIGNING, State.ASSIGNED, State.TRANSFERRING
"""Looked up once, because every record needs them."""


def ends_a_failed_move(record: Record) -> bool:
    """Returns True if a leader cancels because the target died or takes too long. With a `cause` it has decided so."""
    return record.role is _LEADER and record.action is Action.CANCEL and not record.cause


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A planned move that arrived: from where, to where, and when its new owner said so (its wall clock, ms).

    Only moves that the leader or an administrator asked for are kept: after a failover or a drain for a restart a
    bundle may go back as soon as its old broker is there again. A move fails if its target can't prepare for the
    bundle or acquire it, or dies, or the leader ends it for its delay. Then the bundle counts as arrived at the
    target and gone from it again, so that it rests before the next try. Bounded: the newest moves of a bundle, and
    in a partition the bundles that moved last.
    """

    source: BrokerId
    destination: BrokerId
    at_ms: int


class Moves:
    """The planned moves of one partition: under way, and arrived."""

    def __init__(
        self, leaving: Iterable[tuple[Bundle, BrokerId]] = (), arrived: Iterable[tuple[Bundle, tuple[Move, ...]]] = ()
    ) -> None:
        self._leaving: dict[str, dict[Bundle, BrokerId]] = {}
        """By namespace, so that `forget` is quick for a namespace with 65,536 bundles under way."""
        for bundle, source in leaving:
            self._leaving.setdefault(bundle.namespace, {})[bundle] = source
        self._arrived = dict(arrived)

    def copy(self) -> Moves:
        """An independent copy."""
        copy = Moves()
        copy._leaving = {namespace: dict(some) for namespace, some in self._leaving.items()}
        copy._arrived = dict(self._arrived)
        return copy

    def of(self, bundle: Bundle) -> tuple[Move, ...]:
        """The bundle's planned moves as far as they are kept, newest last."""
        return self._arrived.get(bundle, ())

    @property
    def leaving(self) -> tuple[tuple[Bundle, BrokerId], ...]:
        """Bundles of planned moves that have not arrived, each with the holder it came from; by namespace."""
        return tuple(chain.from_iterable(some.items() for some in self._leaving.values()))

    @property
    def arrived(self) -> tuple[tuple[Bundle, tuple[Move, ...]], ...]:
        """Bundles with their moves, the bundle that moved last at the end."""
        return tuple(self._arrived.items())

    def observe(self, record: Record, transitions: Sequence[Transition]) -> None:
        """Take the next accepted record of the partition."""
        planned = record.role is not _BROKER and record.action in _PLANNED
        for transition in transitions:
            self._step(transition, planned, record)

    def forget(self, namespace: str) -> None:
        """Drop the moves of a namespace whose bundles are gone."""
        for bundle in [bundle for bundle in self._arrived if bundle.namespace == namespace]:
            del self._arrived[bundle]
        self._leaving.pop(namespace, None)

    def _step(self, transition: Transition, planned: bool, record: Record) -> None:
        before, after = transition.before, transition.after
        if after is None:
            self._left(transition.bundle)
            self._arrived.pop(transition.bundle, None)
        elif planned and before is not None and before.holder is not None:
            self._leaving.setdefault(after.bundle.namespace, {})[after.bundle] = before.holder
        elif after.state is _ASSIGNED:
            source = self._left(after.bundle)
            if source is not None and before is not None and before.state is _TRANSFERRING:  # cancelled
                failed = ends_a_failed_move(record) or (record.role is _BROKER and record.actor == before.target)
                source = before.target if failed else None
            self._arrive(after.bundle, source, after.holder, record.at_ms)
        elif before is not None and before.state is _ASSIGNING:  # given back or revoked
            source = self._left(after.bundle)
            self._arrive(after.bundle, source, before.holder, record.at_ms)
            if source is not None and before.holder is not None:
                self._leaving.setdefault(after.bundle.namespace, {})[after.bundle] = before.holder
        elif after.action is _REVOKE:
            self._left(after.bundle)

    def _left(self, bundle: Bundle) -> BrokerId | None:
        """End a move under way; returns the holder that the bundle came from, None if it was not under way."""
        some = self._leaving.get(bundle.namespace)
        source = None if some is None else some.pop(bundle, None)
        if some is not None and not some:
            del self._leaving[bundle.namespace]
        return source

    def _arrive(self, bundle: Bundle, source: BrokerId | None, at: BrokerId | None, at_ms: int) -> None:
        if source is None or at is None or source == at:
            return
        earlier = self._arrived.pop(bundle, ())
        move = Move(source, at, min(max(0, at_ms), _LAST_MS))
        self._arrived[bundle] = (*earlier[1 - MOVES_KEPT_A_BUNDLE :], move)
        if len(self._arrived) > BUNDLES_KEPT:
            del self._arrived[next(iter(self._arrived))]


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
