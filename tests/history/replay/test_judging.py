"""What an outcome costs, and that the record is measured as the simulator measures the same run."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from loadmanager.history.replay.candidates import Candidate
from loadmanager.history.replay.cost import Gaps, Judge, Objective, Terms
from loadmanager.history.replay.game import Frame, Missing, RecordedGame, Step, recorded, sliced
from loadmanager.history.replay.play import Outcome, Rules, outcomes, played
from loadmanager.settings import Settings
from loadmanager.strategies.playground.bounds import Ruler
from loadmanager.strategies.playground.game import play
from loadmanager.strategies.playground.measures import TRANSFER_GAP_S, measure
from loadmanager.strategies.playground.scenario import Size
from loadmanager.strategies.playground.workloads import make
from tests.history.replay.games import game, lopsided
from tests.history.replay.written import BEGIN_US, SECOND, frame, written
from tests.installed import install
from tests.simulation.balance.strategies import Scripted, move

RULER = Ruler.of(Settings())
MOMENTARY = Settings(load_window_s=0.5)
"""For the record of a run, whose reports are no means over a time."""


def rules(*candidates: str, **more: Any) -> Rules:
    given = tuple(Candidate(each) for each in candidates)
    return Rules(MOMENTARY, given, Objective(), Gaps(), more.pop("coverage", 0.9), **more)


def measured(*asked: Any) -> list[Outcome]:
    """The outcomes in a window of which nothing is missing."""
    found = outcomes(*asked)
    assert not isinstance(found, Missing)
    return found


def terms_of(outcome: Outcome) -> Terms:
    assert outcome.terms is not None, outcome.broke
    return outcome.terms


def test_the_terms_of_a_game_that_can_be_reckoned_by_hand():
    """Two brokers of ten cores; nine cores of load are on the first for two rounds, then a third of it moves."""
    made = game(np.full((4, 3), 3.0), [0, 0, 0], brokers=2)
    judge = Judge(made, RULER, Objective(overload=2.0, imbalance=3.0, moved=5.0, gap=7.0), Gaps(0.5, 1.5))
    owner = np.array([[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]])
    terms = judge.terms(owner, (Step(2, 0, "transfer"),))
    assert terms.overload == pytest.approx((0.05 + 0.05) / 4)
    assert terms.imbalance == pytest.approx((0.45 + 0.45 + 0.15 + 0.15) / 4)
    assert terms.moved == pytest.approx(0.3)
    assert terms.gap_s == 0.5
    hours = 4 / 60
    assert terms.objective == pytest.approx(2 * 0.025 + 3 * 0.3 + 5 * 0.3 / hours + 7 * 0.5 / hours)
    assert terms.max_over_mean == pytest.approx((2 + 2 + 4 / 3 + 4 / 3) / 4)
    assert terms.above_percent == 100


def test_an_unload_costs_its_gap_and_a_death_nothing():
    made = game(np.full((4, 3), 3.0), [0, 0, 0], brokers=2)
    judge = Judge(made, RULER, Objective(), Gaps(0.5, 1.5))
    owner = np.zeros((4, 3), np.int64)
    assert judge.terms(owner, (Step(1, 0, "unload"),)).gap_s == 1.5
    dead = judge.terms(owner, (Step(1, 0, "death"),))
    assert (dead.gap_s, dead.moved, dead.moves) == (0, 0, 0)


def test_who_allows_himself_more_is_not_better_by_that():
    """With limits that nobody reaches it does nothing; what comes of that is measured by the cluster's own limits."""
    table = written(lopsided(12)).table()
    wide = Candidate("overload", {"balancing_tolerance": 1.0, "overloaded_percent": 100.0})
    given = Rules(Settings(), (Candidate("recorded"), wide), Objective(), Gaps(), 0.9)
    recorded_, wide_ = measured(table, frame(12), given, (0, 1))
    assert wide_.terms == recorded_.terms
    assert terms_of(wide_).above_percent == 100
    assert terms_of(wide_).overload > 0


@pytest.mark.parametrize("workload", ["zipf", "restart", "noisy"])
def test_the_record_of_a_run_has_the_figures_of_the_run(workload):
    run = play(make(workload, Size(4, 32, 40), 2), "plan")
    expected = measure(run, 0)
    history = written(run, begin_us=BEGIN_US + 60 * SECOND)
    first = [each for each in history.reports if each.us < BEGIN_US + 60 * SECOND]
    history.reports += [msgspec.structs.replace(each, us=each.us - 60 * SECOND) for each in first]
    table = history.table()
    [whole] = measured(table, frame(41), rules("recorded"), (0,))
    assert expected.moves > 0
    [same] = measured(table, Frame(BEGIN_US + 60 * SECOND, 60 * SECOND, 40), rules("recorded"), (0,))
    assert terms_of(same).max_over_mean == pytest.approx(expected.max_over_mean)
    assert terms_of(same).std == pytest.approx(expected.std)
    assert terms_of(same).above_percent == pytest.approx(expected.above_tolerance_percent)
    assert (terms_of(whole).moves, terms_of(whole).gap_s) == (expected.moves, pytest.approx(expected.gap_s))
    assert terms_of(whole).moves * TRANSFER_GAP_S == pytest.approx(terms_of(whole).gap_s)


def test_a_game_is_played_from_the_recorded_placement_and_always_the_same():
    history = written(lopsided(20))
    made = recorded(sliced(history.table(), frame(20)), 0.9)
    assert isinstance(made, RecordedGame)
    first, second = (played(made, Candidate("plan"), rules("plan")) for _ in range(2))
    home = made.scenario.home
    assert home.tolist() == lopsided(20).scenario.home.tolist()
    assert first.steps == second.steps
    assert (first.owner == second.owner).all()
    begun = [int(home[each.bundle]) for each in first.steps if each.round == 0]
    assert begun.count(0) > len(begun) / 2, "the one that is too full gives most"
    given = rules("recorded", "plan", "transfer")
    once, again = (outcomes(history.table(), frame(20), given, (0, 1, 2)) for _ in range(2))
    assert once == again


def test_who_breaks_a_rule_or_fails_loses_the_window_and_is_told(monkeypatch, tmp_path):
    def twice(model, at):
        return [move(model, 0, 1)] * 2

    def fails(model, at):
        raise ZeroDivisionError("no idea")

    made = {"twice": lambda: Scripted(twice, "twice"), "fails": lambda: Scripted(fails, "fails")}
    install(monkeypatch, tmp_path, made)
    found = measured(written(lopsided(8)).table(), frame(8), rules("twice", "plan", "fails"), (0, 1, 2))
    broken, kept, failed = found
    assert "twice moves" in broken.broke
    assert broken.terms is None
    assert isinstance(kept, Outcome)
    assert kept.broke == ""
    assert failed.broke == "fails failed: ZeroDivisionError: no idea"


def test_what_cannot_be_played_is_not():
    history = written(lopsided(8))
    history.reports = []
    assert outcomes(history.table(), frame(8), rules("plan"), (0,)) == Missing("no broker reported")
