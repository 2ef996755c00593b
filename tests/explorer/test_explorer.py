"""Every interleaving of small worlds: one owner, always. A check taken out gives two owners, or a malformed table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest

from loadmanager.leader import core
from statechannel.law import table, transitions
from statechannel.law.record import Action
from statechannel.law.transitions import State
from tests.explorer import explorer
from tests.explorer.explorer import A, B, Budget, World, begin, explore
from tests.statechannel.mutation import mutate, reguard

FAIL_OVER = Budget(records=0, ticks=3, elections=0, suspects=(A,))
MOVES = Budget(records=2, ticks=0, elections=0, suspicions=0)
HAND_OVER = Budget(records=1, ticks=2, elections=0, suspects=(A,))
TWO_LEADERS = Budget(records=0, ticks=2, electable=(B,), suspects=(A,))
TABLE_OF, LEADER = table.OwnershipTable, core.LeaderCore

SMALL = {"a fail-over": begin(FAIL_OVER), "a fail-over with a lost record": begin(replace(FAIL_OVER, losses=1))}
LARGE = {
    "planned moves": begin(MOVES),
    "planned moves with a copied record": begin(replace(MOVES, copies=1)),
    "a hand-over": begin(MOVES, target=B),
    "a move and its hand-over during a fail-over": begin(HAND_OVER, target=B),
    "a lookup": begin(MOVES, unassigned=True),
    "two leaders": begin(TWO_LEADERS),
}
ROWS = {(row.state, row.action, row.next) for row in transitions.TABLE if State.SPLITTING not in (row.state, row.next)}


@pytest.mark.parametrize("name", SMALL)
def test_no_interleaving_has_two_owners_or_strands_the_bundle(name: str):
    found = explore(SMALL[name], settled_each=10)
    assert not found.violation, found.scenario()
    assert found.complete
    assert found.states > 300


@pytest.mark.slow
def test_no_interleaving_of_larger_worlds_has_two_owners_or_strands_the_bundle(subtests: pytest.Subtests):
    applied = set[tuple[State, Action, State]]()
    for name, start in LARGE.items():
        with subtests.test(name):
            found = explore(start, settled_each=100)
            assert not found.violation, found.scenario()
            assert found.complete
            applied |= found.steps
    assert applied >= ROWS, "each row of the table is applied in some world"


Mutant = tuple[ModuleType | type, str, str, str]
MUTANTS: dict[str, tuple[Budget, Mutant]] = {
    "anybody may": (MOVES, (table, "find_row", "if not row.by.isdisjoint(who)", "")),
    "a leader does not wait": (
        FAIL_OVER,
        (LEADER, "_is_placed", "+ self._settings.validity_s + self._settings.margin_s", ""),
    ),
    "a leader forgets the margin": (FAIL_OVER, (LEADER, "_is_placed", "+ self._settings.margin_s", "")),
    "a leader does not wait for the raise": (
        FAIL_OVER,
        (LEADER, "_is_placed", "max(raised_s, since_s)", "since_s"),
    ),
}
GUARDS: dict[str, tuple[World, Callable[..., bool]]] = {
    guard.__name__: (start, guard)
    for start, guard in (
        (begin(MOVES), transitions.to_is_another),
        (begin(MOVES), transitions.target_is_known),
        (begin(MOVES, unassigned=True), transitions.to_is_given),
        (begin(FAIL_OVER), transitions.to_is_not_the_revoked),
    )
}
MALFORMED = re.compile(r"is (?:transferring to nobody|assigning with holder None|transferring without a target)")
"""Without `to_is_none` and `target_is_none` a record means less than its author wrote, and nothing is owned twice."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_check_taken_out_gives_a_counterexample(monkeypatch: pytest.MonkeyPatch, name: str):
    budget, mutant = MUTANTS[name]
    mutate(monkeypatch, *mutant)
    explorer._writable.cache_clear()
    found = explore(begin(budget), settled_each=10)
    assert found.violation.endswith("serve the bundle at the same time"), f"{found.states} states: {found.violation}"


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_taken_out_gives_a_counterexample(monkeypatch: pytest.MonkeyPatch, name: str):
    start, guard = GUARDS[name]
    reguard(monkeypatch, guard, None)
    explorer._writable.cache_clear()
    found = explore(start, settled_each=10)
    assert MALFORMED.search(found.violation), f"{found.states} states: {found.violation}"
