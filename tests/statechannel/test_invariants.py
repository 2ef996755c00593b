"""What the table checks of itself: entries that must not be, and damage to what it keeps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from statechannel.errors import InvariantError
from statechannel.law.bundle import Bundle
from statechannel.law.namespace import Namespace
from statechannel.law.record import NEVER, Action, BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership, check_entry

# --- entries that must not be


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": State.UNASSIGNED},
        {"state": State.REVOKING, "holder": None},
        {"target": BrokerId("b", 1)},
        {"state": State.TRANSFERRING},
        {"token": 8},
        {"token": NEVER},
    ],
)
def test_an_entry_that_its_state_does_not_allow_is_a_bug_of_ours(wrong: dict[str, object]):
    fine = Ownership(Bundle("t/n", 0, 9), State.ASSIGNED, BrokerId("a", 1), None, 7, 3, Action.RETURN, BrokerId("a", 1))
    check_entry(fine)
    with pytest.raises(InvariantError):
        check_entry(msgspec.structs.replace(fine, **wrong))


def orders(table: OwnershipTable) -> Namespace:
    known = table.namespace("shop/orders")
    assert known is not None
    return known


def damage_bounds(table: OwnershipTable) -> None:
    known = orders(table)
    known.lower_bounds = [0, known.lower_bounds[1] + 1]


def damage_entries(table: OwnershipTable, change: Callable[[list[Ownership]], list[Ownership]]) -> None:
    known = orders(table)
    known._entries = Namespace(known.name, known.revision, change(list(known.entries)))._entries


def damage_copy(table: OwnershipTable) -> None:
    """The namespace that is read is not the one that the partition would put into a snapshot."""
    known = orders(table)
    table._namespaces["shop/orders"] = Namespace(known.name, known.revision, known.entries)


def damage_entry(table: OwnershipTable) -> None:
    known = orders(table)
    known.put(msgspec.structs.replace(known.entries[0], holder=None))


DAMAGES: dict[str, Callable[[OwnershipTable], object]] = {
    "a hole": lambda table: damage_entries(table, lambda entries: entries[1:]),
    "an overlap": lambda table: damage_entries(table, lambda entries: [*entries, entries[0]]),
    "wrong places": damage_bounds,
    "a second copy": damage_copy,
    "a malformed entry": damage_entry,
    "a lost holder": lambda table: table._indices._held.popitem(),
    "a wrong count by holder": lambda table: table._indices._held[BrokerId("a:6650", 1)].update({"shop/orders": 2}),
    "a wrong count by state": lambda table: table._indices.states.update({State.UNASSIGNED: 1}),
    "a lost bundle in flight": lambda table: table._indices._in_flight.popitem(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_invariants_notice_what_is_damaged(ledger, damage: Callable[[OwnershipTable], object]):
    x, y = ledger.begin()
    ledger.assign(x)
    ledger.write(Action.OWN, y, to=ledger.B)
    ledger.table.check_invariants()
    damage(ledger.table)
    with pytest.raises(InvariantError):
        ledger.table.check_invariants()
