"""What a replay of the cluster's own settings says of the replay itself."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from loadmanager.history.replay.candidates import Candidate
from loadmanager.history.replay.ranking import Config, WindowRow, compared, config_of, ranked, unknown, verdict
from loadmanager.settings import Settings


def rows(candidate: str, costs: Sequence[float | None]) -> list[WindowRow]:
    """Of each window what it cost; None where the candidate broke a rule."""
    return [
        WindowRow(
            f"2026-11-02T{at:02}", candidate, "", 0.0, cost, 0.0, cost, 0.0, 0.0, None if cost is None else 1 + cost
        )
        for at, cost in enumerate(costs)
    ]


@pytest.mark.parametrize(
    ("had", "has", "agrees"),
    [
        (0.5, 0.5, True),
        (0.5, 0.74, True),
        (0.5, 0.34, True),
        (5.8, 13.4, False),
        (0.5, 0.76, False),
        (0.5, 0.3, False),
        (0.01, 0.029, True),
        (0.0, 0.03, False),
    ],
)
def test_a_replay_agrees_within_half_as_much_again_or_a_hair(had: float, has: float, agrees: bool):
    found = compared(rows("recorded", [had] * 5), rows("plan", [has] * 5), "plan")
    assert (found.agrees, found.windows) == (agrees, 5)
    assert (found.recorded, found.replayed) == (pytest.approx(had), pytest.approx(has))
    assert (found.recorded_max_over_mean, found.replayed_max_over_mean) == (
        pytest.approx(1 + had),
        pytest.approx(1 + has),
    )
    assert agrees == (not found.against)


def test_the_same_cost_for_moves_instead_of_imbalance_is_no_agreement():
    still, moving = rows("recorded", [0.46] * 5), rows("plan", [0.4] * 5)
    still = [msgspec.structs.replace(row, max_over_mean=2.4) for row in still]
    moving = [msgspec.structs.replace(row, max_over_mean=1.12) for row in moving]
    found = compared(still, moving, "plan")
    assert not found.agrees
    assert "(plan) have a max/mean of 1.12 in it, and the cluster had 2.4" in found.against


def test_windows_in_which_it_broke_a_rule_count_on_neither_side():
    found = compared(rows("recorded", [9.0, 1.0, 1.0]), rows("plan", [None, 1.1, 1.1]), "plan")
    assert (found.windows, found.recorded, found.agrees) == (2, 1.0, True)
    broke = compared(rows("recorded", [1.0] * 3), rows("plan", [None, None, 1.0]), "plan")
    assert "broke a rule in 2 of 3 windows" in broke.against
    assert not compared(rows("recorded", [1.0]), rows("plan", [None]), "plan").agrees


def test_nothing_is_to_be_set_by_a_replay_that_is_not_what_happened():
    candidates = (Candidate("recorded"), Candidate("plan"), Candidate("avg"))
    given = [*rows("recorded", [5.8] * 9), *rows("plan", [13.4] * 9), *rows("avg", [1.0] * 9)]
    check = compared(given[:9], given[9:18], "plan")
    table = ranked(given, candidates, 0)
    config = config_of(candidates[2], Settings(), check)
    assert (table[0].candidate, config) == ("avg", Config("avg", {}, ()))
    assert verdict(table, config, check).startswith("set nothing: this replay is not what happened: the cluster's own")
    good = msgspec.structs.replace(check, agrees=True, against="")
    assert config_of(candidates[2], Settings(), good).commands == ("loadmanager config set balancing_strategy avg",)


def test_the_settings_of_a_strategy_that_is_not_here_cannot_be_checked():
    assert "strategy mine is not installed" in unknown("mine").against
