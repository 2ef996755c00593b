"""What a snapshot, a date or a reload must not lead to: another cluster's state, rests without end, early suspicion."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec
import pytest

from loadmanager.cluster.membership import Membership
from loadmanager.model.observation import MoveHistory
from statechannel.errors import BadSnapshot
from statechannel.law.bundle import even_boundaries
from statechannel.law.partition import BUNDLES_KEPT, MOVES_KEPT_A_BUNDLE, Move
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.snapshot import CHUNK_BYTES, SnapshotInfo, closing, encode
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change
from statechannel.ports import Payload
from tests.loadmanager.small_world import A, B, Hand, replica, virtually
from tests.simulator.world import World
from tests.statechannel.snapshots import GENESIS, Topic, evenly, state_of
from tests.statechannel.test_replica import SNAPSHOTS_TOPIC, claimed, late, snapshot
from tests.statechannel.test_service import noop


def written(pieces: Iterable[Payload | SnapshotInfo]) -> tuple[list[Payload], SnapshotInfo]:
    *chunks, info = pieces
    assert isinstance(info, SnapshotInfo)
    return [chunk for chunk in chunks if isinstance(chunk, Payload)], info


@virtually
async def test_a_snapshot_is_not_put_before_a_longer_log_of_another_cluster(world: World):
    """As if the channel's topic had been made anew, and written to, under the snapshots of the old one."""
    async with replica(world) as channel:
        await claimed(channel)
        theirs = OwnershipTable(1)
        theirs.replay(0, 0, Record("genesis-of-another", Action.GENESIS, B, cluster="c"))
        create = Record(
            "n", Action.CREATE_NAMESPACE, B, Role.ADMIN, namespace="t/theirs", boundaries=even_boundaries(2)
        )
        assert isinstance(theirs.replay(0, 1, create), Change)
        chunks, info = written(encode(theirs.cut(0), "foreign", 0))
        cluster_identity = theirs.cluster_identity
        assert cluster_identity is not None
        writer = await channel.replica.log.exclusive("test")
        await writer.commit(SNAPSHOTS_TOPIC, 0, [*chunks, *closing(None, cluster_identity, 0, info, ())])
        await writer.close()
        other = late(world)
        with pytest.raises(BadSnapshot, match="restore both from one backup"):
            await other.open()
        assert other.table.namespaces() == []


@virtually
async def test_a_snapshot_of_this_very_log_is_used(world: World):
    async with replica(world) as channel:
        await claimed(channel)
        await Hand(channel).channel.publish(noop(), 0)
        info = await snapshot(channel, channel.replica.log, "ours")
        other = late(world)
        await other.open()
        assert other.loaded == [info]


def moved(at_ms: int) -> tuple[OwnershipTable, Subject]:
    """A bundle that a planned move brought from A to B, at a time that B wrote down."""
    table = OwnershipTable(1)
    bundles = Record("n", Action.CREATE_NAMESPACE, A, Role.ADMIN, namespace="t/n", boundaries=even_boundaries(1))
    table.replay(0, 0, bundles)
    (bundle,) = table.namespace("t/n").bundles  # type: ignore[union-attr]
    steps = [
        (Action.OWN, A, A, Role.BROKER),
        (Action.RETURN, A, None, Role.BROKER),
        (Action.TRANSFER, A, B, Role.ADMIN),
        (Action.READY, B, None, Role.BROKER),
        (Action.RELEASE, A, None, Role.BROKER),
        (Action.RETURN, B, None, Role.BROKER),
    ]
    for offset, (action, actor, to, role) in enumerate(steps, 1):
        entry = table.get(bundle)
        assert entry is not None
        record = Record(
            f"r{offset}", action, actor, role, subjects=(Subject(bundle, entry.revision),), to=to, at_ms=at_ms
        )
        assert isinstance(table.replay(0, offset, record), Change)
    return table, Subject(bundle, 6)


def test_new_owner_with_a_clock_years_ahead_makes_no_bundle_rest_for_years():
    now_ms = 1_700_000_000_000
    table, subject = moved(at_ms=now_ms + 10 * 365 * 86_400_000)
    assert table.moves(subject.bundle) != ()
    assert MoveHistory(table, memory_s=600).arrival(subject.bundle, now_ms) is None


def test_a_clock_that_is_a_little_ahead_is_no_reason_to_forget_a_move():
    now_ms = 1_700_000_000_000
    table, subject = moved(at_ms=now_ms + 2_000)
    assert MoveHistory(table, memory_s=600).arrival(subject.bundle, now_ms) is not None


def test_broker_with_possible_life_signs_in_unread_records_is_not_silent():
    membership = Membership(validity_s=2.0, recovery_grace_s=150.0, now_s=0.0)
    membership.missed_changes(100.0)
    assert membership.listening_since_s == 100.0


def test_head_with_all_kept_moves_reads_back_the_same_from_its_pieces():
    name, entries = evenly("t/n", BUNDLES_KEPT)
    broker, other = BrokerId("broker-0.example.org:6650", 3), BrokerId("broker-1.example.org:6650", 3)
    moves = tuple(Move(broker, other, 1_700_000_000_000 + n) for n in range(MOVES_KEPT_A_BUNDLE))
    state = state_of(
        (name, entries),
        arrived=tuple((entry.bundle, moves) for entry in entries),
        leaving=tuple((entry.bundle, broker) for entry in entries),
    )
    chunks, info = written(encode(state, "s", 1))
    assert max(len(chunk.value or b"") for chunk in chunks) < 1.2 * CHUNK_BYTES
    topic = Topic()
    topic.commit([*chunks, *closing(None, GENESIS, 0, info, ())])
    assert topic.read().state("s") == state


@pytest.mark.parametrize("bundles", [1, 15, 16, 499, 500, 501, 65_536])
def test_a_digest_made_in_pieces_is_that_of_the_whole(bundles: int):
    name, entries = evenly("t/n", bundles)
    state = state_of((name, entries), ("t/o", []), leaving=tuple((entry.bundle, A) for entry in entries[:700]))
    encode_, whole = msgspec.msgpack.encode, blake2b(digest_size=16)
    whole.update(
        encode_((state.cluster_identity, state.lead, state.retired, state.incarnations, state.leaving, state.arrived))
    )
    for namespace in state.namespaces:
        whole.update(encode_(namespace))
    assert state.digest() == whole.hexdigest()
