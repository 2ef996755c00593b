"""Snapshot plus tail equals full replay, wherever it is cut; and a replica never goes back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.errors import InvariantError
from statechannel.law.bundle import even_boundaries
from statechannel.law.record import Action, Record, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change

from .auditor import Violation
from .snapshots import (
    FEW_BUNDLES,
    A,
    B,
    Logged,
    audit_snapshots,
    check_same,
    evenly,
    history,
    replay_all,
    replayed_from,
    state_of,
    there_and_back,
)

seeds = st.integers(0, 2**32)


# --- snapshot plus tail


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(0, 150), st.integers(0, 150))
def test_snapshot_and_tail_equal_full_replay_wherever_it_is_cut(new_ledger, seed: int, before: int, after: int):
    audit_snapshots(new_ledger(partitions=2), seed, before + after, before)


def test_also_in_many_small_chunks(new_ledger):
    for seed in range(40):
        audit_snapshots(new_ledger(partitions=2), seed, 120, 80, FEW_BUNDLES)


def test_each_cut_of_one_history_comes_to_the_same(new_ledger):
    for at in range(120):
        audit_snapshots(new_ledger(partitions=2), 4, 120, at)


def test_the_histories_have_all_that_a_snapshot_must_not_forget(new_ledger):
    wanted = {"cluster_identity", "retired", "lead", "leaving", "arrived", "deleted", "target", "hand_off", "cutting"}
    found: set[str] = set()
    for seed in range(250):
        states, _ = history(new_ledger(partitions=2), seed, 120, 119)
        for state in states:
            found |= {name for name in ("cluster_identity", "retired", "leaving", "arrived") if getattr(state, name)}
            found |= {"lead"} if state.lead.epoch else set()
            found |= {"deleted" for namespace in state.namespaces if not namespace.entries}
            for each in [entry for namespace in state.namespaces for entry in namespace.entries]:
                found |= {name for name in ("target", "hand_off", "cutting") if getattr(each, name)}
        if found == wanted:
            break
    assert found == wanted


def test_what_comes_back_is_what_was_cut(new_ledger):
    for seed in range(20):
        states, _ = history(new_ledger(partitions=2), seed, 100, 99)
        for state in states:
            back = there_and_back(state)
            assert back == msgspec.structs.replace(state, namespaces=back.namespaces)
            assert back.digest() == state.digest()


def test_an_empty_table_is_a_snapshot_too():
    empty = OwnershipTable(1).cut(0)
    assert there_and_back(empty) == empty
    table, _ = replayed_from([there_and_back(empty)], [], partitions=1)
    assert (table.next_offset(0), list(table)) == (0, [])


def test_what_was_cut_stays_as_it_was_while_the_table_goes_on(ledger):
    x, y = ledger.begin()
    ledger.assign(x)
    cut = ledger.table.cut(0)
    digest = cut.digest()
    for write_more in (
        lambda: ledger.write(Action.OWN, y, to=ledger.B),
        lambda: ledger.write(Action.CREATE, x, boundaries=(5,)),
        lambda: ledger.lead(2, ledger.B),
    ):
        write_more()
        assert cut.digest() == digest != ledger.table.digest(0)
    again = ledger.table.cut(0)
    ledger.table.restore(there_and_back(again))
    ledger.write(Action.RETURN, y, ledger.B)
    assert again.digest() != ledger.table.digest(0)


def test_copy_stays_as_it_was_while_the_table_goes_on_and_vice_versa(ledger):
    x, y = ledger.begin()
    ledger.assign(x)
    frozen = ledger.table.frozen()
    digest, held = frozen.digest(0), frozen.held_by(ledger.A)
    assert digest == ledger.table.digest(0)
    for write_more in (
        lambda: ledger.write(Action.OWN, y, to=ledger.B),
        lambda: ledger.write(Action.CREATE, x, boundaries=(5,)),
        lambda: ledger.lead(2, ledger.B),
    ):
        write_more()
        assert frozen.digest(0) == digest != ledger.table.digest(0)
        assert (frozen.held_by(ledger.A), frozen.in_state(State.ASSIGNING)) == (held, ())
        frozen.check_invariants()
        ledger.table.check_invariants()
    digest = ledger.table.digest(0)
    frozen.replay(0, 1_000, Record("r", Action.OWN, ledger.B, subjects=(Subject(y, 1),), to=ledger.B))
    assert ledger.table.digest(0) == digest


def test_a_picture_belongs_to_the_same_log_so_its_tokens_are_the_same(ledger):
    x, y = ledger.begin()
    ledger.assign(x)
    ledger.assign(y, ledger.B)
    cluster_identity = Record("g", Action.GENESIS, ledger.A, cluster="prod", epoch=3)
    assert isinstance(ledger.table.replay(0, ledger.table.next_offset(0), cluster_identity), Change)
    frozen = ledger.table.frozen()
    assert frozen.cluster_identity == ledger.table.cluster_identity is not None
    assert frozen.cut(0) == ledger.table.cut(0)
    for entry in ledger.table:
        assert frozen.token(entry) == ledger.table.token(entry)
        assert frozen.token(entry).generation == 3


# --- restore


def test_a_replica_never_goes_back(ledger):
    x, _ = ledger.begin()
    behind = ledger.table.cut(0)
    ledger.table.restore(behind)
    ledger.assign(x)
    digest, offset = ledger.table.digest(0), ledger.table.next_offset(0)
    with pytest.raises(InvariantError, match="never goes back"):
        ledger.table.restore(behind)
    assert (ledger.table.digest(0), ledger.table.next_offset(0)) == (digest, offset)
    ledger.table.check_invariants()
    ledger.table.restore(ledger.table.cut(0))
    assert ledger.table.digest(0) == digest


def test_a_record_that_a_snapshot_covers_is_not_replayed_again(ledger):
    ledger.begin()
    table = OwnershipTable(1)
    table.restore(ledger.table.cut(0))
    with pytest.raises(InvariantError, match="never goes back"):
        table.replay(*ledger.log[-1])
    assert replay_all(table, ledger.log) == {}


def test_replica_state_that_the_snapshot_lacks_is_gone_with_its_indices(ledger):
    """It cannot be from the same log; but nothing of it may be left to be found."""
    x, _ = ledger.begin()
    ledger.assign(x)
    ledger.table.restore(state_of(evenly("game/rooms", 2, holder=B), next_offset=99))
    ledger.table.check_invariants()
    assert ledger.table.namespaces() == ["game/rooms"]
    assert (ledger.table.held_by(A), len(ledger.table.held_by(B))) == ((), 2)
    assert (ledger.table.get(x), ledger.table.namespace("shop/orders")) == (None, None)


def test_a_partition_is_restored_and_the_others_stay_as_they_are(new_ledger):
    ledger = new_ledger(partitions=4)
    names = [f"shop/n{i}" for i in range(12)]
    for name in names:
        ledger.create_namespace(name, even_boundaries(2))
    for partition in range(4):
        before = [ledger.table.digest(p) for p in range(4)]
        ledger.table.restore(there_and_back(ledger.table.cut(partition)))
        ledger.table.check_invariants()
        assert [ledger.table.digest(p) for p in range(4)] == before
    assert ledger.table.namespaces() == sorted(names)


# --- last-value compaction of the channel itself


def compacted(log: list[Logged]) -> list[Logged]:
    """What a compacted topic, keyed by bundle and namespace, would still have of the log: each key's last record."""
    last: dict[object, int] = {}
    for number, (partition, _, record) in enumerate(log):
        keys: list[object] = [s.bundle for s in record.subjects] or [record.namespace or record.action]
        last |= {(partition, key): number for key in keys}
    return [log[number] for number in sorted(set(last.values()))]


def test_a_last_value_forgets_who_was_first(ledger):
    x, _ = ledger.begin()
    seen = ledger.revision(x)
    ledger.write(Action.OWN, x, A, to=A, seen=seen)
    ledger.write(Action.OWN, x, B, to=B, seen=seen)
    replica = OwnershipTable(1)
    replay_all(replica, compacted(ledger.log))
    assert (ledger.table.held_by(A), replica.held_by(B)) == ((x,), (x,)), "two owners"


def test_the_property_catches_a_channel_that_is_compacted_by_last_value(new_ledger):
    for seed in range(20):
        ledger = new_ledger(partitions=2)
        history(ledger, seed, 60, 0)
        replica = OwnershipTable(2)
        replay_all(replica, compacted(ledger.log))
        with pytest.raises(Violation):
            check_same(replica, ledger.table)


def test_a_tail_is_judged_by_subjects_that_saw_what_the_snapshot_says(ledger):
    x, _ = ledger.begin()
    ledger.assign(x)
    table, _ = replayed_from([there_and_back(ledger.table.cut(0))], ledger.log, partitions=1)
    late = Record("late", Action.UNLOAD, A, subjects=(Subject(x, ledger.revision(x) - 1),))
    assert table.replay(0, 99, late) == ledger.table.replay(0, 99, late)
    fits = Record("fits", Action.UNLOAD, A, subjects=(Subject(x, ledger.revision(x)),))
    assert table.replay(0, 100, fits) == ledger.table.replay(0, 100, fits)
    assert table.digest(0) == ledger.table.digest(0)
