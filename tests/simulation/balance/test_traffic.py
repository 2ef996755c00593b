"""What load data costs: counted from real reports, with few enough of them to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from loadmanager.settings import Settings
from loadmanager.strategies.playground.game import play
from loadmanager.strategies.playground.scenario import Scenario, Size, scenario
from loadmanager.strategies.playground.traffic import owners_by_round, traffic
from tests.simulation.balance.strategies import Scripted, move, still

ROUNDS = 40
TEN_HOTTEST = Settings(load_top_bundles=10)


def steady(bundles: int) -> Scenario:
    """Four brokers with equal, unchanging bundles."""
    size = Size(4, bundles, ROUNDS)
    return scenario("steady", size, np.random.default_rng(0), np.ones((ROUNDS, bundles)), home=np.arange(bundles) % 4)


def test_a_steady_cluster_reports_at_its_start_and_then_every_quarter_of_an_hour():
    found = traffic(play(steady(80), still()), TEN_HOTTEST)
    assert found.hours == pytest.approx(ROUNDS / 60)
    assert found.reports == 4 * 3


def test_a_move_makes_both_brokers_report():
    once = Scripted(lambda model, at: [move(model, 0, 1)] if at == 5 else [])
    assert traffic(play(steady(80), once), TEN_HOTTEST).reports == 4 * 3 + 2


def test_everything_is_read_by_all_and_the_hottest_by_the_leader_alone():
    found = traffic(play(steady(80), still()), TEN_HOTTEST)
    assert found.everything_read == 4 * found.everything_written
    assert found.top_written < found.top_read < 4 * found.top_written
    assert found.top_written < found.everything_written


def test_with_ten_bundles_each_all_bundles_are_the_ten_hottest():
    found = traffic(play(steady(40), still()), TEN_HOTTEST)
    assert found.top_written == found.everything_written


def test_only_one_of_the_two_ways_grows_with_the_bundles():
    few, many = (traffic(play(steady(bundles), still()), TEN_HOTTEST) for bundles in (80, 320))
    assert many.everything_read > 3 * few.everything_read
    assert many.top_read < 1.1 * few.top_read


def test_owners_follow_the_moves():
    once = Scripted(lambda model, at: [move(model, 0, 1)] if at == 5 else [])
    owners = owners_by_round(play(steady(8), once))
    assert owners[:5, 0].tolist() == [0] * 5
    assert owners[5:, 0].tolist() == [1] * (ROUNDS - 5)
    assert (owners[:, 1:] == np.arange(1, 8) % 4).all()
