"""Every interleaving of small worlds: one owner, always; and each guard taken out gives a way to two owners."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from loadmanager.leader import core
from statechannel.law import table, transitions
from tests.explorer import explorer
from tests.explorer.explorer import Budget, begin, explore
from tests.statechannel.mutation import mutate, reguard

FAIL_OVER = Budget(records=0, ticks=4, elections=0, suspicions=1)
MOVES = Budget(records=3, ticks=0, elections=0, suspicions=0)
MOVE_AND_FAIL_OVER = Budget(records=1, ticks=2, elections=0, suspicions=1)
TWO_LEADERS = Budget(records=0, ticks=3, elections=1, suspicions=1)
TABLE_OF, LEADER = table.OwnershipTable, core.LeaderCore

WORLDS = {"a fail-over": FAIL_OVER, "two leaders": TWO_LEADERS}
LARGE = {"planned moves": MOVES, "a move during a fail-over": MOVE_AND_FAIL_OVER}


@pytest.mark.parametrize("name", WORLDS)
def test_no_interleaving_has_two_owners_or_strands_the_bundle(name: str):
    found = explore(begin(WORLDS[name]), settled_each=10)
    assert not found.violation, found.scenario()
    assert found.complete and found.states > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_no_interleaving_of_a_larger_world_has_two_owners_or_strands_the_bundle(name: str):
    found = explore(begin(LARGE[name]), settled_each=100)
    assert not found.violation, found.scenario()
    assert found.complete


Mutant = tuple[ModuleType | type, str, str, str]
MUTANTS: dict[str, tuple[Budget, Mutant]] = {
    "no revision check": (MOVE_AND_FAIL_OVER, (TABLE_OF, "_judge_one", "subject.seen != entry.revision", "False")),
    "no epoch check": (
        TWO_LEADERS,
        (TABLE_OF, "_check_lead", "record.epoch != lead.epoch or record.actor != lead.leader", "False"),
    ),
    "anybody may": (MOVES, (table, "find_row", "if not row.by.isdisjoint(who)", "")),
    "a leader does not wait": (
        FAIL_OVER,
        (LEADER, "_is_placed", "+ self._settings.validity_s + self._settings.margin_s", ""),
    ),
    "a leader forgets the margin": (FAIL_OVER, (LEADER, "_is_placed", "+ self._settings.margin_s", "")),
    "a leader does not see the incarnation raised": (FAIL_OVER, (LEADER, "_is_placed", "max(raised_s, since_s)", "since_s")),
    "a leader does not see the revocation": (FAIL_OVER, (LEADER, "_is_placed", "max(raised_s, since_s)", "raised_s")),
    "the target is forgotten": (MOVES, (table, "step", "target = entry.target", "target = None")),
    "an epoch may go back": (TWO_LEADERS, (table, "take_lead", "record.epoch <= part.lead.epoch", "False")),
}
GUARDS: dict[str, tuple[Budget, Callable[..., bool]]] = {
    guard.__name__: (budget, guard)
    for budget, guard in (
        (MOVES, transitions.to_is_given),
        (MOVES, transitions.to_is_another),
        (FAIL_OVER, transitions.to_is_not_the_revoked),
        (MOVES, transitions.to_is_none),
        (MOVES, transitions.target_is_known),
        (MOVES, transitions.target_is_none),
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_check_taken_out_gives_a_counterexample(monkeypatch: pytest.MonkeyPatch, name: str):
    budget, mutant = MUTANTS[name]
    mutate(monkeypatch, *mutant)
    explorer._writable.cache_clear()
    found = explore(begin(budget), settled_each=10, most=100_000)
    print(found.states, found.scenario())
    assert found.violation


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_taken_out_gives_a_counterexample(monkeypatch: pytest.MonkeyPatch, name: str):
    budget, guard = GUARDS[name]
    reguard(monkeypatch, guard, None)
    explorer._writable.cache_clear()
    found = explore(begin(budget), settled_each=10, most=100_000)
    print(found.states, found.scenario())
    assert found.violation
