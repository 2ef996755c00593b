"""Every interleaving of small worlds: one owner, always; and each guard taken out gives a way to two owners."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from loadmanager.leader import core
from statechannel.law import table, transitions
from tests.explorer import explorer
from tests.explorer.explorer import A, B, Budget, World, begin, explore
from tests.statechannel.mutation import mutate, reguard

FAIL_OVER = Budget(records=0, ticks=3, elections=0, suspects=(A,))
MOVES = Budget(records=2, ticks=0, elections=0, suspicions=0)
MOVE_AND_FAIL_OVER = Budget(records=1, ticks=2, elections=0, suspicions=1)
TWO_LEADERS = Budget(records=0, ticks=2, electable=(B,), suspects=(A,))
TABLE_OF, LEADER = table.OwnershipTable, core.LeaderCore

WORLDS = {"a fail-over": FAIL_OVER}
LARGE = {"planned moves": MOVES, "a move during a fail-over": MOVE_AND_FAIL_OVER, "two leaders": TWO_LEADERS}


@pytest.mark.parametrize("name", WORLDS)
def test_no_interleaving_has_two_owners_or_strands_the_bundle(name: str):
    found = explore(begin(WORLDS[name]), settled_each=10)
    assert not found.violation, found.scenario()
    assert found.complete
    assert found.states > 500


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_no_interleaving_of_a_larger_world_has_two_owners_or_strands_the_bundle(name: str):
    found = explore(begin(LARGE[name]), settled_each=100)
    assert not found.violation, found.scenario()
    assert found.complete


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
"""Without `to_is_none` and `target_is_none` a record means less than its author wrote, and nothing is owned twice."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_check_taken_out_gives_a_counterexample(monkeypatch: pytest.MonkeyPatch, name: str):
    budget, mutant = MUTANTS[name]
    mutate(monkeypatch, *mutant)
    explorer._writable.cache_clear()
    found = explore(begin(budget), settled_each=10)
    assert found.violation, f"{found.states} states without a counterexample"


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_taken_out_gives_a_counterexample(monkeypatch: pytest.MonkeyPatch, name: str):
    start, guard = GUARDS[name]
    reguard(monkeypatch, guard, None)
    explorer._writable.cache_clear()
    found = explore(start, settled_each=10)
    assert found.violation, f"{found.states} states without a counterexample"
