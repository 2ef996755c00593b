"""What was cut and what was read back are compared to the last bundle."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from loadmanager.channel.owner.reading_back import compare
from statechannel.errors import BadSnapshot
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.partition import ClusterIdentity, Lead, NamespaceState, PartitionState
from statechannel.law.record import Action, BrokerId
from statechannel.law.snapshot import encode
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from statechannel.ports import Payload

BROKERS = tuple(BrokerId(f"b{i}:1", i + 1) for i in range(3))


def namespace(name: str, bundles: int) -> NamespaceState:
    edges = even_boundaries(bundles) if bundles else ()
    return NamespaceState(
        name,
        7,
        tuple(
            Ownership(
                bundle=Bundle(name, lo, hi),
                state=State.ASSIGNED,
                holder=BROKERS[i % 3],
                target=None,
                revision=10 + i,
                token=5 + i,
                action=Action.RETURN,
                by=BROKERS[i % 3],
            )
            for i, (lo, hi) in enumerate(pairwise(edges))
        ),
    )


STATE = PartitionState(
    partition=0,
    next_offset=10_000,
    cluster_identity=ClusterIdentity("test", "id", 1),
    lead=Lead(3, BROKERS[0]),
    retired=None,
    incarnations=tuple((b.name, b.incarnation) for b in BROKERS),
    namespaces=(namespace("t/gone", 0), namespace("t/large", 4_096), namespace("t/one", 1), namespace("t/small", 5)),
    leaving=(),
    arrived=(),
)


def chunks_of(state: PartitionState) -> list[bytes]:
    return [p.value for p in encode(state, "s", 1) if isinstance(p, Payload) and p.value is not None]


def compared(chunks: list[bytes], state: PartitionState = STATE) -> None:
    for _ in compare(chunks, state):
        pass


def test_what_was_cut_reads_as_it_was_cut_over_several_chunks():
    chunks = chunks_of(STATE)
    assert len(chunks) > 2
    compared(chunks)


def changed(number: int, **changes: object) -> PartitionState:
    """One bundle of the large namespace is otherwise."""
    large = STATE.namespaces[1]
    entries = list(large.entries)
    entries[number] = msgspec.structs.replace(entries[number], **changes)
    namespaces = (
        STATE.namespaces[0],
        NamespaceState(large.name, large.revision, tuple(entries)),
        *STATE.namespaces[2:],
    )
    return msgspec.structs.replace(STATE, namespaces=namespaces)


@pytest.mark.parametrize("number", [0, 1_999, 2_000, 4_095])
@pytest.mark.parametrize(
    "changes", [{"holder": BROKERS[0], "by": BROKERS[1]}, {"revision": 1}, {"token": 1}, {"state": State.SPLITTING}]
)
def test_one_bundle_that_reads_otherwise_is_found(number: int, changes: dict[str, object]):
    with pytest.raises(BadSnapshot, match="t/large"):
        compared(chunks_of(changed(number, **changes)))


@pytest.mark.parametrize(
    "head",
    [
        {"lead": Lead(4, BROKERS[0])},
        {"cluster_identity": None},
        {"retired": "elsewhere"},
        {"incarnations": STATE.incarnations[:2]},
        {"arrived": ((STATE.namespaces[2].entries[0].bundle, ()),)},
    ],
)
def test_a_head_that_reads_otherwise_is_found(head: dict[str, object]):
    with pytest.raises(BadSnapshot, match="head"):
        compared(chunks_of(msgspec.structs.replace(STATE, **head)))


def test_namespaces_that_are_missing_too_many_or_in_another_order_are_found():
    for names in (STATE.namespaces[:-1], STATE.namespaces[1:], (*STATE.namespaces, namespace("t/x", 1))):
        with pytest.raises(BadSnapshot):
            compared(chunks_of(msgspec.structs.replace(STATE, namespaces=names)))
    for chunks in (chunks_of(STATE)[:-1], chunks_of(STATE)[::-1], chunks_of(STATE)[1:]):
        with pytest.raises(BadSnapshot):
            compared(chunks)
