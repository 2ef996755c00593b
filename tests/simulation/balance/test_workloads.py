"""The workloads: the same seed gives the same world, and each has the shape that it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadmanager.errors import Invalid
from loadmanager.strategies.playground.game import play
from loadmanager.strategies.playground.measures import measure
from loadmanager.strategies.playground.scenario import CORES, CPU, MEAN_USAGE, Scenario, Size, tiled
from loadmanager.strategies.playground.workloads import BEAT, BIG, LARGEST, SLOWER, WORKLOADS, make, zipf_weights
from statechannel.law.bundle import tiles_exactly
from tests.simulation.balance.strategies import still

SIZE = Size(brokers=10, bundles=200, rounds=48)
TRACE = Path(__file__).parents[3] / "examples" / "traces" / "us-departures-2001.csv"


def arrays(made: Scenario) -> list[np.ndarray]:
    return [
        *(made.profile, made.activity, made.capacity, made.home),
        *(made.foreign, made.slowness, made.present, made.draining),
    ]


def totals(made: Scenario) -> np.ndarray:
    return made.activity @ made.profile[:, CPU]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_always_gives_the_same_world_and_another_seed_another(name: str):
    one, same, other = make(name, SIZE, 7), make(name, SIZE, 7), make(name, SIZE, 8)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(same), strict=True))
    assert not np.array_equal(one.activity, other.activity)


@pytest.mark.parametrize("name", WORKLOADS)
def test_loads_are_sane_and_somebody_is_always_there_to_carry_them(name: str):
    made = make(name, SIZE, 3)
    assert made.activity.shape == (SIZE.rounds, SIZE.bundles)
    assert np.isfinite(made.activity).all()
    assert (made.activity >= 0).all()
    active = made.present & ~made.draining
    assert (active.sum(axis=1) >= 1).all()
    assert made.present[0, made.home].all(), "every bundle begins on a broker that runs"
    room = (made.capacity[:, CPU] * active).sum(axis=1)
    assert (totals(made) + made.foreign[:, :, CPU].sum(axis=1) < room).all(), "all of it fits somewhere"


@pytest.mark.parametrize("size", [Size(2, 2, 12), Size(3, 40, 13), Size(40, 40, 12)], ids=str)
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_smallest_games_can_be_played_too(name: str, size: Size):
    figures = measure(play(make(name, size, 1), still()), 1)
    assert np.isfinite(figures.max_over_mean)


def test_the_cluster_is_as_full_as_it_is_meant_to_be():
    assert totals(make("zipf", SIZE, 1)).mean() == pytest.approx(MEAN_USAGE * CORES * SIZE.brokers)


def test_zipf_weights_are_those_of_zipfs_law():
    weights = zipf_weights(100, 0.8)
    assert weights.sum() == pytest.approx(1)
    assert weights[0] / weights[31] == pytest.approx(32**0.8)


def test_zipf_keeps_its_total_while_its_ranks_drift():
    made = make("zipf", Size(brokers=10, bundles=200, rounds=400), 1)
    assert totals(made).std() / totals(made).mean() < 0.05
    hottest = made.activity.argmax(axis=1)
    assert len(set(hottest.tolist())) > 5


def test_heavy_tails_are_cut_where_no_broker_could_carry_them():
    made = make("heavy", Size(brokers=10, bundles=2_000, rounds=12), 2)
    mean = made.activity.mean(axis=0)
    assert mean.max() / mean.mean() < 1.2 * LARGEST
    assert mean.max() / np.median(mean) > 10


def test_a_day_peaks_at_its_phase_and_opposite_tenants_never_together():
    made = make("diurnal", Size(brokers=10, bundles=800, rounds=96), 1)
    assert made.interval_s * made.rounds == 86_400
    by_namespace = np.array(
        [made.activity[:, made.namespace == each].sum(axis=1) for each in range(len(made.namespaces))]
    )
    awake, asleep = by_namespace[-1], by_namespace[-2]
    assert np.corrcoef(awake, asleep)[0, 1] < -0.5
    assert abs(int(by_namespace[0].argmax() + 48) % 96 - 48) <= 3, "the first region peaks at midnight"


def test_a_flash_crowd_multiplies_a_few_bundles_at_least_fivefold_and_goes_away():
    made = make("flash", Size(brokers=10, bundles=400, rounds=240), 1)
    growth = made.activity.max(axis=0) / made.activity[0]
    assert 1 <= (growth > 5).sum() <= 12
    assert (made.activity[-1] < 1.2 * made.activity[0]).all()


def test_the_hourly_batch_comes_at_every_full_hour_but_the_first():
    made = make("steps", Size(brokers=10, bundles=400, rounds=300), 1)
    total = made.activity.sum(axis=1)
    for hour in (60, 120, 180):
        assert total[hour] > 1.05 * total[hour - 1]
        assert total[hour + 10] == pytest.approx(total[hour - 1], rel=0.01)


def test_the_swing_beats_with_the_rounds_and_leaves_the_total_alone():
    made = make("oscillation", SIZE, 1)
    swing = made.activity[0] / made.activity[1]
    up = (1 + BEAT) / (1 - BEAT)
    assert np.isclose(swing, up).sum() == np.isclose(swing, 1 / up).sum() == SIZE.bundles // 2
    assert totals(made).std() / totals(made).mean() < 0.03


def test_the_big_bundle_needs_more_than_half_a_broker():
    made = make("big", SIZE, 1)
    assert made.activity.mean(axis=0).max() / CORES == pytest.approx(BIG, rel=0.01)


def test_a_grey_failure_makes_the_same_work_five_times_as_expensive_there_only():
    made = make("grey", SIZE, 1)
    at = SIZE.rounds // 2
    [slow] = np.flatnonzero(made.slowness[at] > 1)
    here, there = made.loads(at, np.full(SIZE.bundles, slow)), made.loads(at, np.full(SIZE.bundles, (slow + 1) % 10))
    assert np.allclose(here[:, CPU], SLOWER * there[:, CPU])
    assert np.array_equal(here[:, CPU + 1 :], there[:, CPU + 1 :])


def test_a_rolling_restart_takes_each_broker_away_once_and_never_two_at_a_time():
    made = make("restart", Size(brokers=10, bundles=200, rounds=120), 1)
    assert (made.present.sum(axis=1) >= 9).all()
    assert not made.present.all(axis=0).any()
    stops = made.present[:-1] & ~made.present[1:]
    assert (stops.sum(axis=0) == 1).all()
    assert made.draining[:-1][stops].all(), "who stops has drained before"


def test_autoscaling_goes_from_five_to_ten_to_five():
    made = make("autoscaling", Size(brokers=10, bundles=200, rounds=80), 1)
    running = made.present.sum(axis=1)
    assert (running[0], running[40], running[-1]) == (5, 10, 5)


def test_only_mixed_counts_several_resources():
    assert [name for name in WORKLOADS if not make(name, SIZE, 1).one_dimension] == ["mixed"]


@pytest.mark.parametrize("bundles", [3, 8, 100])
def test_bundles_tile_their_namespaces(bundles: int):
    made, names, namespace = tiled(bundles)
    assert len(made) == len(namespace) == bundles
    assert all(tiles_exactly(b for b in made if b.namespace == name) for name in names)
    assert [names[each] for each in namespace] == [bundle.namespace for bundle in made]


def test_a_recorded_trace_is_replayed_in_proportion_to_its_rates():
    made = make("trace", Size(brokers=4, bundles=80, rounds=24), 1, TRACE)
    lines = [line.split(",") for line in TRACE.read_text().splitlines() if line[:1].isdigit()]
    rates: dict[str, float] = {}
    recorded = []
    for hour in range(24):
        rates |= {key: float(rate) for time, key, rate in lines if float(time) == hour * 3600}
        recorded.append(sum(rates.values()))
    assert made.interval_s == 3_600
    shape = made.activity.sum(axis=1)
    assert np.allclose(shape / shape.sum(), np.array(recorded) / sum(recorded))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seconds,key,rate\n0,a,1\n", "the first line must be time,key,rate"),
        ("time,key,rate\n", "no line after the first"),
        ("time,key,rate\n0,a,fast\n", "line 2"),
        ("time,key,rate\n0,a,-1\n", "negative"),
        ("time,key,rate\n5,a,1\n0,a,1\n", "time goes back to 0"),
        ("time,key,rate\n0,a,0\n", "all rates are 0"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, told: str):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(Invalid, match=told):
        make("trace", SIZE, 1, path)


def test_a_workload_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(Invalid, match=r"'tsunami' is not a workload; choose from zipf"):
        make("tsunami", SIZE, 1)
