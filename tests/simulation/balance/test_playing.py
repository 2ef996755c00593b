"""The simulated cluster, played by strategies whose moves are known."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.playground.cluster import Conditions
from loadmanager.strategies.playground.game import InvariantViolation, Run, play
from loadmanager.strategies.playground.measures import measure
from loadmanager.strategies.playground.scenario import CPU, Scenario, Size, scenario
from loadmanager.strategies.playground.workloads import make
from loadmanager.strategies.rebalancing.decision import Move
from statechannel.law.record import BrokerId
from tests.simulation.balance.strategies import Scripted, even_out, move, still

SMALL = Size(brokers=4, bundles=8, rounds=12)
DRAINING_FROM = 3


def calm(**changes: object) -> Scenario:
    """Eight equal bundles, two on each of four brokers, half full."""
    made = scenario("calm", SMALL, np.random.default_rng(0), np.ones((12, 8)), home=np.arange(8) % 4)
    return msgspec.structs.replace(made, **changes)


def script(**moves: tuple[int, int | None]) -> Scripted:
    """`at2=(5, 1)`: in round 2 move bundle 5 to broker 1."""
    wanted = {int(name.removeprefix("at")): where for name, where in moves.items()}
    return Scripted(lambda model, at: [move(model, *wanted[at])] if at in wanted else [])


def owners(strategy: Scripted, at: int) -> list[int]:
    return strategy.models[at].bundles.owner.tolist()


def test_who_does_nothing_moves_nothing():
    run = play(calm(), still())
    assert not run.moved
    assert np.allclose(run.usage, 0.5)
    assert not run.above.any()


def test_a_move_is_done_before_the_next_round_and_remembered():
    strategy = script(at2=(5, 0))
    run = play(calm(), strategy)
    before, after = strategy.models[2], strategy.models[3]
    assert (before.bundles.owner[5], after.bundles.owner[5]) == (1, 0)
    assert after.brokers.used[0, CPU] == pytest.approx(1.5 * before.brokers.used[0, CPU])
    assert np.isinf(before.bundles.moved_s).all()
    assert after.bundles.moved_s[5] == 60
    assert dict(after.bundles.left) == {5: (1,)}
    assert run.usage[2, 0] == pytest.approx(0.75), "usages are those after the round's moves"


def test_a_slow_move_is_in_flight_and_counts_as_done():
    strategy = script(at2=(5, 0))
    run = play(calm(), strategy, conditions=Conditions(delay_rounds=3))
    flying = [bool(model.bundles.in_flight[5]) for model in strategy.models]
    assert flying == [False] * 3 + [True] * 2 + [False] * 7
    assert owners(strategy, 3)[5] == 0
    assert run.usage[2, 0] == pytest.approx(0.5), "until it lands its load is where it was"
    assert run.usage[5, 0] == pytest.approx(0.75)


def test_where_a_bundle_was_is_forgotten_after_its_rest_time():
    strategy = script(at1=(5, 0))
    play(calm(), strategy, Settings(bundle_rest_s=300))
    assert [5 in model.bundles.left for model in strategy.models] == [False] * 2 + [True] * 4 + [False] * 6


def test_a_bundle_counts_as_changed_once_its_load_is_another():
    activity = calm().activity.copy()
    activity[6:, 5] *= 1.6
    activity[9:, 5] /= 1.6
    strategy = script(at2=(5, 0))
    play(calm(activity=activity), strategy)
    assert [bool(model.bundles.changed[5]) for model in strategy.models] == [False] * 6 + [True] * 3 + [False] * 3


def test_what_leaves_a_slow_machine_gets_cheaper_and_has_not_changed():
    slowness = np.ones((12, 4))
    slowness[:, 1] = 5.0
    strategy = there_and_back("careless")
    run = play(calm(slowness=slowness), strategy)
    assert strategy.models[3].bundles.load[5, CPU] == pytest.approx(strategy.models[2].bundles.load[5, CPU] / 5)
    assert not any(model.bundles.changed.any() for model in strategy.models)
    assert [each.returned for each in run.moved] == [False, True]


def test_a_change_of_less_than_a_hundredth_of_a_broker_is_none():
    activity = calm().activity.copy()
    activity[:, 5] = 0.01
    activity[6:, 5] *= 2
    strategy = script(at2=(5, 0))
    play(calm(activity=activity), strategy)
    assert not any(model.bundles.changed.any() for model in strategy.models)


def test_an_unload_is_placed_by_the_placement_and_never_stays():
    strategy = script(at2=(5, None))
    run = play(calm(), strategy)
    [unloaded] = run.moved
    assert (unloaded.how, unloaded.source) == ("unload", 1)
    assert unloaded.destination != 1


def away(broker: int, *, drained: bool) -> Scenario:
    present, draining = np.ones((12, 4), np.bool_), np.zeros((12, 4), np.bool_)
    present[6:9, broker] = False
    draining[DRAINING_FROM:6, broker] = drained
    return calm(present=present, draining=draining)


def test_the_bundles_of_a_dead_broker_are_placed_and_nobody_rests_for_it():
    strategy = still()
    run = play(away(2, drained=False), strategy)
    assert {(each.round, each.bundle, each.how) for each in run.moved} == {(6, 2, "death"), (6, 6, "death")}
    assert len(strategy.models[6].brokers) == 3
    assert not any(model.bundles.left for model in strategy.models)
    assert measure(run, 0).moved == 0, "a death is nobody's decision"


def test_what_a_stopping_broker_still_has_is_handed_over_as_a_planned_move():
    run = play(away(2, drained=True), still())
    assert {each.how for each in run.moved} == {"hand over"}
    figures = measure(run, 0)
    assert figures.moves == 2
    assert figures.ratio == pytest.approx(1)


def test_a_broker_that_comes_back_is_empty_and_a_new_incarnation():
    strategy = still()
    play(away(2, drained=False), strategy)
    first, back = strategy.models[0].brokers, strategy.models[9].brokers
    assert back.ids[2] == BrokerId(first.ids[2].name, first.ids[2].incarnation + 1)
    assert back.bundles[2] == 0


def test_a_move_to_a_broker_that_dies_meanwhile_ends_elsewhere():
    strategy = script(at5=(5, 2))
    run = play(away(2, drained=False), strategy, conditions=Conditions(delay_rounds=4))
    assert not strategy.models[6].bundles.in_flight.any()
    assert 5 in {each.bundle for each in run.moved if each.how == "death"}
    assert all(model.bundles.owner.min() >= 0 for model in strategy.models)


def test_only_the_hottest_bundles_are_reported_if_so_asked():
    activity = np.tile(np.arange(1.0, 9.0), (12, 1))
    strategy = still()
    play(calm(activity=activity), strategy, conditions=Conditions(top_bundles=1))
    model = strategy.models[0]
    assert [str(bundle) for bundle in model.bundles.ids] == [str(bundle) for bundle in calm().bundles[4:]]
    assert model.brokers.bundles.tolist() == [2, 2, 2, 2]


def test_reports_may_be_missing_and_may_be_late():
    activity = np.tile(np.arange(1.0, 13.0)[:, None], (1, 8))
    strategy = still()
    conditions = Conditions(stale_rounds=3, missing=0.3)
    play(calm(activity=activity), strategy, conditions=conditions, seed=1)
    known = np.array([model.brokers.known for model in strategy.models])
    assert 0.1 < (~known).mean() < 0.6
    seen = np.array([model.bundles.load[:, CPU] for model in strategy.models])
    assert (seen <= activity + 1e-9).all()
    assert (seen[3:] < activity[3:]).any()
    assert (seen[4:] >= activity[4:] - 3 - 1e-9).all()


def test_loads_may_be_divided_wrongly_but_their_sum_is_right():
    strategy = still()
    play(calm(), strategy, conditions=Conditions(noise=0.5), seed=1)
    loads = np.array([model.bundles.load[:, CPU] for model in strategy.models])
    used = np.array([model.brokers.used[:, CPU] for model in strategy.models])
    true = calm().loads(0, calm().home)[:, CPU]
    assert (np.abs(loads - true) > 0.05 * true).any(axis=1).all()
    for model, each, whole in zip(strategy.models, loads, used, strict=True):
        assert np.bincount(model.bundles.owner, each) == pytest.approx(whole)
        assert whole == pytest.approx(used[0])


def test_a_model_tells_how_old_its_reports_are():
    strategy = still()
    play(calm(), strategy, conditions=Conditions(stale_rounds=2), seed=1)
    ages_s = {age for model in strategy.models[2:] for age in np.asarray(model.brokers.report_age_s).tolist()}
    assert ages_s == {0.0, calm().interval_s, 2 * calm().interval_s}


def pinned() -> Scenario:
    fixed = np.zeros(8, np.bool_)
    fixed[5] = True
    return calm(fixed=fixed)


def twice(model: ClusterModel, at: int) -> list[Move]:
    return [move(model, 5, 0), move(model, 5, 2)]


def from_elsewhere(model: ClusterModel, at: int) -> list[Move]:
    return [msgspec.structs.replace(move(model, 5, 0), source=model.brokers.ids[3])]


@pytest.mark.parametrize(
    ("world", "strategy", "conditions", "told"),
    [
        (calm(), script(at1=(5, 0), at2=(5, 2)), Conditions(delay_rounds=3), "in flight"),
        (pinned(), script(at1=(5, 0)), Conditions(), "fixed: pinned"),
        (calm(), script(at1=(5, 1)), Conditions(), "to where it is"),
        (away(2, drained=True), script(at4=(5, 2)), Conditions(), "which drains"),
        (calm(), script(at1=(5, 0)), Conditions(missing=1.0), "which is unknown"),
        (calm(), Scripted(twice), Conditions(), "twice in one decision"),
        (calm(), Scripted(from_elsewhere), Conditions(), "which does not hold it"),
    ],
)
def test_a_strategy_that_breaks_a_rule_is_found_out(
    world: Scenario, strategy: Scripted, conditions: Conditions, told: str
):
    with pytest.raises(InvariantViolation, match=told):
        play(world, strategy, conditions=conditions)


def there_and_back(name: str) -> Scripted:
    wanted = {2: (5, 0), 4: (5, 1)}
    return Scripted(lambda model, at: [move(model, *wanted[at])] if at in wanted else [], name)


def test_an_unwarranted_return_is_counted():
    run = play(calm(), there_and_back("careless"))
    assert [each.returned for each in run.moved] == [False, True]
    assert measure(run, 0).returns == 1


def test_an_unwarranted_return_fails_who_promised_that_there_is_none():
    with pytest.raises(InvariantViolation, match="its load did not change"):
        play(calm(), there_and_back("plan"))


def test_a_return_is_warranted_when_the_load_has_changed():
    activity = calm().activity.copy()
    activity[3:, 5] *= 2
    run = play(calm(activity=activity), there_and_back("plan"))
    assert [each.returned for each in run.moved] == [False, False]


def test_a_return_is_warranted_when_the_bundle_must_go_and_has_left_everybody_else():
    def run(*others: int) -> Run:
        wanted = {2: (5, 0), 4: (5, 1)}
        present, draining = np.ones((12, 4), np.bool_), np.zeros((12, 4), np.bool_)
        draining[4:, 0] = True
        present[1:, list(others)] = False
        strategy = Scripted(lambda model, at: [move(model, *wanted[at])] if at in wanted else [], "plan")
        return play(calm(present=present, draining=draining), strategy)

    assert [each.returned for each in run(2, 3).moved if each.how == "transfer"] == [False, False]
    with pytest.raises(InvariantViolation, match="its load did not change"):
        run(3)


def test_nobody_is_kept_from_returning_after_the_rest_time():
    run = play(calm(), there_and_back("plan"), Settings(bundle_rest_s=60))
    assert len(run.moved) == 2


def test_the_same_game_is_played_the_same_way_again():
    def played() -> Run:
        conditions = Conditions(delay_rounds=2, stale_rounds=2, missing=0.1, top_bundles=20)
        return play(make("zipf", Size(6, 120, 30), 5), Scripted(even_out), conditions=conditions, seed=4)

    one, two = played(), played()
    assert one.moved == two.moved
    assert np.array_equal(one.usage, two.usage, equal_nan=True)
