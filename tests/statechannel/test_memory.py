"""What a replica keeps is bounded by the bundles there are, never by the records it has replayed."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import statechannel.law.table
from statechannel.law import codec
from statechannel.law.bundle import even_boundaries
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State

from .snapshots import Topic, newest, write

BROKER = BrokerId("a:6650", 1)
BROKERS = [f"broker-{number}.example.org:6650" for number in range(20)]
BUNDLES = 20_000
BYTES_PER_BUNDLE = 300
"""About 245 were measured, by snapshot and by replay. A million bundles must fit into a small process."""


@contextmanager
def traced_memory() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.fixture
def traced() -> Iterator[None]:
    with traced_memory():
        yield


def born(bundles: int) -> OwnershipTable:
    table = OwnershipTable(1)
    table.replay(
        0,
        0,
        Record("n", Action.CREATE_NAMESPACE, BROKER, Role.ADMIN, namespace="t/n", boundaries=even_boundaries(bundles)),
    )
    return table


def replay_all(table: OwnershipTable, action: Action, to: BrokerId | None = None, by: BrokerId = BROKER) -> None:
    """One record that does this to every bundle."""
    subjects = tuple(Subject(entry.bundle, entry.revision) for entry in table)
    offset = table.next_offset(0)
    table.replay(0, offset, Record(f"r{offset}", action, by, subjects=subjects, to=to))


def live_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def log_of(table: OwnershipTable) -> list[bytes]:
    """Gives everything to twenty brokers, by records of one bundle each, as they stand in a log."""
    payloads: list[bytes] = []
    bundles = [entry.bundle for entry in table]
    for action, seen in ((Action.OWN, 0), (Action.RETURN, 1)):
        for number, bundle in enumerate(bundles):
            by = BrokerId(BROKERS[number % len(BROKERS)], 7)
            subject = Subject(bundle, seen and seen + number)
            to = by if action is Action.OWN else None
            payloads.append(codec.encode(Record(f"{action}-{number}", action, by, subjects=(subject,), to=to)))
    return payloads


def replayed(payloads: list[bytes]) -> OwnershipTable:
    table = born(BUNDLES)
    for offset, payload in enumerate(payloads, 1):
        table.replay(0, offset, codec.decode(payload))
    assert table.count_by_state()[State.ASSIGNED] == BUNDLES
    return table


@pytest.mark.slow
def test_a_bundle_that_came_by_replay_costs_little():
    payloads = log_of(born(BUNDLES))
    with traced_memory():
        before = live_bytes()
        table = replayed(payloads)
        assert (live_bytes() - before) / BUNDLES < BYTES_PER_BUNDLE
        assert len(table.holders()) == len(BROKERS)


@pytest.mark.slow
def test_bundle_from_a_snapshot_costs_little_and_a_cut_only_references():
    topic = Topic()
    write(topic, replayed(log_of(born(BUNDLES))).cut(0), "s")
    with traced_memory():
        before = live_bytes()
        table = OwnershipTable(1)
        table.restore(newest(topic))
        restored = live_bytes() - before
        assert restored / BUNDLES < BYTES_PER_BUNDLE
        cut = table.cut(0)
        first = next(iter(table))
        table.replay(
            0,
            table.next_offset(0),
            Record("u", Action.UNLOAD, first.by, subjects=(Subject(first.bundle, first.revision),)),
        )
        assert cut.digest() != table.digest(0)
        assert (live_bytes() - before - restored) / BUNDLES < 10


@pytest.mark.usefixtures("traced")
def test_snapshots_that_were_taken_and_dropped_leave_nothing_behind():
    table = born(8)

    def go_round() -> None:
        for action, to in ((Action.OWN, BROKER), (Action.RETURN, None), (Action.UNLOAD, None), (Action.RELEASE, None)):
            table.cut(0)
            replay_all(table, action, to)

    go_round()
    before = live_bytes()
    for _ in range(200):
        go_round()
    assert live_bytes() - before < 20_000


def test_years_of_brokers_leave_their_names_behind_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(statechannel.law.table, "SHARED_BROKERS", 50)
    table = born(2)

    def live(incarnation: int) -> None:
        broker = BrokerId("a:6650", incarnation)
        for action, to in ((Action.OWN, broker), (Action.RETURN, None), (Action.UNLOAD, None), (Action.RELEASE, None)):
            replay_all(table, action, to, broker)

    live(1)
    with traced_memory():
        before = live_bytes()
        for incarnation in range(2, 602):
            live(incarnation)
        assert live_bytes() - before < 20_000
    assert table.highest_incarnation("a:6650") == 601


@pytest.mark.usefixtures("traced")
def test_a_long_history_of_few_bundles_leaves_nothing_behind():
    table = born(8)

    def go_round() -> None:
        for action, to in ((Action.OWN, BROKER), (Action.RETURN, None), (Action.UNLOAD, None), (Action.RELEASE, None)):
            replay_all(table, action, to)

    go_round()
    before = live_bytes()
    for _ in range(500):
        go_round()
    assert table.next_offset(0) == 1 + 4 * 501
    assert live_bytes() - before < 20_000


def test_split_and_merged_bundles_and_their_owners_leave_nothing_behind(ledger):
    [whole] = ledger.begin(1)
    ledger.assign(whole)
    for _ in range(50):
        ledger.write(Action.CREATE, whole, boundaries=(0x40000000, 0x80000000))
        ledger.write(Action.MERGE, ledger.bundles())
    assert (len(ledger.table), ledger.table.held_by(ledger.A)) == (1, (whole,))
    ledger.write(Action.UNLOAD, whole)
    ledger.write(Action.RELEASE, whole)
    assert ledger.table.holders() == ()
    ledger.delete_namespace("shop/orders")
    assert (len(ledger.table), list(ledger.table), ledger.table.moves(whole)) == (0, [], ())
