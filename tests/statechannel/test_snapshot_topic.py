"""What a snapshots topic holds: several snapshots, chunks that a log takes, and a format that keeps its meaning."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import msgspec
import pytest

from statechannel.errors import BadSnapshot
from statechannel.law import codec, snapshot
from statechannel.law.bundle import FULL_UPPER, Bundle, even_boundaries, tile
from statechannel.law.partition import BUNDLES_KEPT, MOVES_KEPT_A_BUNDLE, Move, PartitionState
from statechannel.law.record import MAX_HAND_OFF_BYTES, Action, BrokerId, Record, Role
from statechannel.law.snapshot import CHUNK_BUNDLES, SnapshotInfo, SnapshotsReader, closing, encode
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Cutting, Refusal
from statechannel.ports import Payload

from .snapshots import (
    FEW_BUNDLES,
    GENESIS,
    A,
    B,
    Topic,
    chunks_of,
    entry,
    evenly,
    newest,
    replayed_from,
    state_of,
    there_and_back,
    write,
)

RECORDED = Path(__file__).parent / "recorded"
MAX_ENTRY_BYTES = 1 << 20
"""What every log takes."""


# --- several snapshots in one topic, and compaction


def test_what_is_not_kept_is_deleted_in_the_same_transaction(ledger):
    topic = Topic(chunk_bundles=FEW_BUNDLES)
    ledger.begin(7)
    for name, keep in (("one", ()), ("two", ("one",)), ("three", ("one",))):
        ledger.lead(ledger.table.lead(0).epoch + 1)
        write(topic, ledger.table.cut(0), name, keep)
    assert [info.snapshot_id for info in topic.known().snapshots] == ["one", "three"]
    last = {entry.key: entry.value for entry in topic.entries}
    assert all(last[key] is None for key in chunks_of(topic, "two"))
    with pytest.raises(BadSnapshot, match="no snapshot 'two'"):
        topic.read().state("two")
    for name in ("one", "three"):
        assert topic.read().state(name).bundles == 7


def test_compaction_takes_nothing_that_is_listed(ledger):
    topic, states = Topic(chunk_bundles=FEW_BUNDLES), {}
    x, *_ = ledger.begin(5)
    ledger.assign(x)
    for round_ in range(6):
        ledger.write(Action.UNLOAD, x)
        ledger.write(Action.RELEASE, x)
        ledger.assign(x)
        name = f"s{round_}"
        states[name] = ledger.table.cut(0)
        keep = [info.snapshot_id for info in topic.known().snapshots][-2:] if topic.index() else []
        write(topic, states[name], name, keep)
        topic.compact(with_tombstones=round_ % 2 == 0)
        listed = [info.snapshot_id for info in topic.known().snapshots]
        assert listed == list(states)[-3:]
        assert [topic.read().state(each).digest() for each in listed] == [states[each].digest() for each in listed]
    topic.compact(with_tombstones=False)
    assert {key.split(b"/")[0].decode() for key in topic.keys} == {"index", "s3", "s4", "s5"}


def test_a_reader_that_began_before_compaction_sees_the_same(topic: Topic):
    reader, half = SnapshotsReader(0), 3
    for each in topic.entries[:half]:
        reader.take(each)
    topic.compact(with_tombstones=False)
    for each in topic.entries:
        if each.offset >= half:
            reader.take(each)
    assert reader.state("new") == topic.read().state("new")


def test_an_older_snapshot_never_takes_the_place_of_a_newer_one(topic: Topic):
    known = topic.known()
    older = msgspec.structs.replace(known.newest, snapshot_id="older", next_offset=known.newest.next_offset - 1)
    with pytest.raises(BadSnapshot, match="covers more"):
        closing(known, GENESIS, 0, older, ())
    same = msgspec.structs.replace(known.newest, snapshot_id="same")
    assert closing(known, GENESIS, 0, same, {"old"})


def test_snapshot_rewritten_after_an_unknown_outcome_is_not_deleted(topic: Topic, ledger):
    write(topic, ledger.table.cut(0), "new", keep={"old", "new"})
    assert [info.snapshot_id for info in topic.known().snapshots] == ["old", "new"]
    topic.compact()
    assert newest(topic).digest() == ledger.table.digest(0)


# --- where chunks end


def chunks_written(state: PartitionState, chunk_bundles: int = CHUNK_BUNDLES) -> list[bytes]:
    pieces = encode(state, "s", 0, chunk_bundles)
    return [piece.value for piece in pieces if not isinstance(piece, SnapshotInfo) and piece.value]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("bundles", [1, 2, 3, 4, 6, 7, 8])
def test_a_namespace_is_cut_into_chunks_wherever_it_must_be(size: int, bundles: int):
    state = state_of(evenly("a/a", bundles), ("b/deleted", []), evenly("c/c", 1), evenly("d/d", bundles))
    chunks = chunks_written(state, size)
    assert all(sum(map(len, [s.his for s in snapshot.unpack(c).sections])) <= size for c in chunks)
    assert len(chunks) >= (2 * bundles + 1) / size
    assert there_and_back(state, size) == state


def test_many_deleted_namespaces_share_chunks_and_are_remembered():
    state = state_of(*((f"t/deleted-{i:05}", []) for i in range(5_000)))
    assert 2 <= len(chunks_written(state)) <= 3
    assert there_and_back(state) == state
    table, _ = replayed_from([there_and_back(state)], [], partitions=1)
    late = Record("r", Action.CREATE_NAMESPACE, A, Role.ADMIN, namespace="t/deleted-00042", boundaries=(0, FULL_UPPER))
    verdict = table.replay(0, 9, late)
    assert isinstance(verdict, Refusal)
    assert verdict.reason == "stale"


def too_much_to_hand_over(namespaces: int, bundles: int) -> PartitionState:
    full = bytes(MAX_HAND_OFF_BYTES)
    return state_of(*(evenly(f"t/n{i:03}", bundles, state=State.ASSIGNING, hand_off=full) for i in range(namespaces)))


BIG = {
    "hand-offs of one namespace": lambda: too_much_to_hand_over(1, 100),
    "hand-offs of many namespaces": lambda: too_much_to_hand_over(100, 1),
    "cuts": lambda: state_of(
        *(evenly(f"t/n{i}", 1, state=State.SPLITTING, cutting=Cutting(tuple(range(1, 50_000)))) for i in range(10))
    ),
    "incarnations": lambda: state_of(incarnations=tuple((f"broker-{i:06}.example.org:6650", i) for i in range(50_000))),
    "moves": lambda: state_of(
        arrived=tuple((bundle, (Move(A, B, 1_700_000_000_000),) * MOVES_KEPT_A_BUNDLE)
                      for bundle in tile("tenant/namespace", even_boundaries(BUNDLES_KEPT)))
    ),
    "planned moves under way": lambda: state_of(
        leaving=tuple((bundle, A) for bundle in tile("tenant/namespace", even_boundaries(50_000)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BIG)
def test_no_chunk_is_larger_than_what_a_log_takes(name: str):
    state = BIG[name]()
    chunks = chunks_written(state)
    assert len(chunks) > 1
    assert max(map(len, chunks)) + 100 < MAX_ENTRY_BYTES
    assert there_and_back(state) == state


def test_snapshot_is_encoded_and_decoded_in_steps_of_bounded_size():
    state = state_of(evenly("t/n", 30_000))
    chunks = [piece for piece in encode(state, "s", 0) if not isinstance(piece, SnapshotInfo)]
    assert len(chunks) == 30_000 / CHUNK_BUNDLES
    topic = Topic()
    info = write(topic, state, "s")
    assert (info.chunks, info.bundles, info.next_offset) == (len(chunks), 30_000, 9)
    assert info.size_bytes == sum(len(chunk.value or b"") for chunk in chunks) < 30_000 * 40
    decoding, steps = topic.read().decoding("s"), 0
    for _ in decoding:
        steps += 1
        if steps < len(chunks):
            with pytest.raises(BadSnapshot, match=f"only {steps} of its {len(chunks)} chunks"):
                decoding.state()
    assert steps == len(chunks)
    assert decoding.state() == state


# --- the format


STATES_OF = {1: ("unassigned", "assigning", "assigned", "transferring", "releasing", "splitting", "revoking")}
ACTIONS_OF: dict[int, tuple[str, ...]] = {
    1: (
        "own",
        "return",
        "transfer",
        "ready",
        "release",
        "unload",
        "split",
        "create",
        "merge",
        "cancel",
        "revoke",
        "create-namespace",
        "delete-namespace",
        "lead",
        "genesis",
        "retire",
        "noop",
    )
}
STATES_OF[2], ACTIONS_OF[2] = STATES_OF[1], (*ACTIONS_OF[1], "amend", "agree")  # fmt: skip


def recorded(partition: int) -> Topic:
    """The snapshot that was recorded when this format was first released."""
    topic = Topic(partition)
    for line in (RECORDED / "snapshot-1.txt").read_text(encoding="utf-8").splitlines():
        home, key, value = line.split(" ", 2)
        if home == str(partition):
            topic.commit([Payload(key.encode(), b64decode(value))])
    return topic


@pytest.mark.parametrize("partition", [0, 1])
def test_a_recorded_snapshot_still_says_what_the_recorded_log_says(partition: int):
    table = OwnershipTable(2)
    for line in (RECORDED / "v2.log").read_text(encoding="utf-8").splitlines():
        home, offset, verdict, payload = (line + " ").split(" ", 3)
        if home == str(partition) and verdict != "corrupt":
            table.replay(partition, int(offset), codec.decode(payload.strip().encode()))
    state = newest(recorded(partition))
    assert (state.next_offset, state.digest()) == (table.next_offset(partition), table.digest(partition))
    again = Topic(partition)
    write(again, state, "again")
    assert newest(again) == state


def test_states_and_actions_keep_their_places_or_the_format_is_raised():
    """A snapshot names them by place. Append only; else raise `snapshot.FORMAT`, and write its places here."""
    for version in range(snapshot.PLAIN_FORMAT, snapshot.FORMAT + 1):
        states, actions = STATES_OF[version], ACTIONS_OF[version]
        assert tuple(State)[: len(states)] == states
        assert tuple(Action)[: len(actions)] == actions


def test_every_state_and_every_action_comes_back_as_itself():
    for state in State:
        for action in Action:
            one = entry(Bundle("t/n", 0, FULL_UPPER), state=state, action=action)
            [(_, _, [back])] = [
                (n.name, n.revision, n.entries) for n in there_and_back(state_of(("t/n", [one]))).namespaces
            ]
            assert back == one


def test_brokers_of_one_chunk_are_written_once():
    brokers = [BrokerId(f"broker-{i}.example.org:6650", 3) for i in range(20)]
    name, entries = evenly("t/n", 1_000)
    spread = [msgspec.structs.replace(e, holder=brokers[i % 20], by=brokers[i % 7]) for i, e in enumerate(entries)]
    [chunk] = chunks_written(state_of((name, spread)))
    assert chunk.count(b"broker-19.example.org") == 1
    back = there_and_back(state_of((name, spread)))
    assert list(back.namespaces[0].entries) == spread
    assert len({id(e.holder) for e in back.namespaces[0].entries}) == 20, "and shared by all that they hold"
