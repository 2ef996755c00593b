"""What a replica keeps is bounded by the bundles there are, never by the records it has replayed."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from statechannel.bundle import even_boundaries
from statechannel.record import Action, Broker, Record, Role, Subject
from statechannel.table import OwnershipTable

BROKER = Broker("a:6650", 1)
BUNDLES = 4_000
BYTES_PER_BUNDLE = 1_500
"""About 600 were measured; a bundle should never cost what a page costs."""


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def born(bundles: int) -> OwnershipTable:
    table = OwnershipTable(1)
    table.replay(
        0,
        0,
        Record("n", Action.CREATE_NAMESPACE, BROKER, Role.ADMIN, namespace="t/n", boundaries=even_boundaries(bundles)),
    )
    return table


def replay_all(table: OwnershipTable, action: Action, to: Broker | None = None) -> None:
    """One record that does this to every bundle."""
    subjects = tuple(Subject(entry.bundle, entry.revision) for entry in table)
    offset = table.next_offset(0)
    table.replay(0, offset, Record(f"r{offset}", action, BROKER, subjects=subjects, to=to))


def live_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.usefixtures("traced")
def test_a_bundle_costs_little():
    before = live_bytes()
    table = born(BUNDLES)
    replay_all(table, Action.OWN, BROKER)
    replay_all(table, Action.RETURN)
    assert table.count_held_by(BROKER) == BUNDLES
    assert (live_bytes() - before) / BUNDLES < BYTES_PER_BUNDLE


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
    assert (len(ledger.table), ledger.table._entries) == (0, {})
