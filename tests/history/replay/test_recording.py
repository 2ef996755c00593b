"""A window's rows become the game that they tell of, or a word on what is missing."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.history.replay.game import Missing, RecordedGame, costs, recorded, sliced, tiled
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import BrokerLoadData, bundle_row, total_of
from loadmanager.strategies.playground.game import play
from loadmanager.strategies.playground.scenario import CPU, Size, broker_names
from loadmanager.strategies.playground.traffic import owners_by_round
from loadmanager.strategies.playground.workloads import make
from statechannel.law.record import BrokerId
from tests.history.replay.written import BEGIN_US, SECOND, History, Report, Step, frame, written
from tests.simulation.balance.strategies import still

ROUND = 60 * SECOND
A, B, C = broker_names(3)
LEFT, RIGHT, WHOLE = (
    "play/ns-0/0x00000000_0x40000000",
    "play/ns-0/0x40000000_0xffffffff",
    "play/ns-0/0x00000000_0xffffffff",
)


def found(history: History, rounds: int, coverage: float = 0.9, settle_s: float = 0.0) -> RecordedGame:
    answer = recorded(sliced(history.table(), frame(rounds)), coverage, settle_s)
    assert isinstance(answer, RecordedGame), answer
    return answer


def cpu(percent: float) -> dict[str, float]:
    return {"cpu_percent": percent, "in_rate_bytes_s": 0.0, "out_rate_bytes_s": 0.0, "rate_msg_s": percent}


def says(minute: float, broker: str, used: float, listed: dict[str, float], total: float, **more) -> Report:
    """Of ten cores; loads of bundles in percent of one."""
    rates = {bundle: cpu(percent) for bundle, percent in listed.items()}
    return Report(BEGIN_US + round(minute * ROUND), broker, used, 10.0, rates, cpu(total), **more)


def owns(bundle: str, broker: str, minute: float = -30, **more) -> Step:
    return Step(BEGIN_US + round(minute * ROUND), bundle, "assigned", "return", broker, **more)


def in_cores(game: RecordedGame, bundle: str) -> list[float]:
    row = [str(each) for each in game.scenario.bundles].index(bundle)
    return game.scenario.load[:, row, CPU].round(9).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["zipf", "restart", "mixed"])
def test_a_run_is_read_as_it_was(workload):
    run = play(make(workload, Size(5, 40, 30), 3), "plan")
    game = found(written(run), 30)
    scenario = run.scenario
    held = scenario.present[np.arange(30)[:, None], owners_by_round(run)]
    assert held.all()
    assert (game.owner == owners_by_round(run)).all()
    assert (game.scenario.home == game.owner[0]).all()
    load = np.stack([scenario.loads(at, game.owner[at]) for at in range(30)])
    assert np.allclose(game.scenario.load[..., [0, 2, 3, 4]], load[..., [0, 2, 3, 4]])
    assert (game.scenario.present == scenario.present).all()
    assert np.allclose(game.scenario.foreign[scenario.present][:, CPU], scenario.foreign[scenario.present][:, CPU])
    late = [(each.round, each.bundle) for each in run.moved if each.round > 0]
    assert sorted((each.round, each.bundle) for each in game.steps) == sorted(late)


def test_what_a_broker_does_not_list_has_even_parts_of_the_rest():
    run = play(make("heavy", Size(3, 30, 4), 1), still())
    game = found(written(run, top=4), 4)
    scenario = run.scenario
    for broker in range(3):
        mine = np.flatnonzero(scenario.home == broker)
        true, read = (
            loads[:, mine, CPU]
            for loads in (np.stack([scenario.loads(t, scenario.home) for t in range(4)]), game.scenario.load)
        )
        assert np.allclose(true.sum(axis=1), read.sum(axis=1))
        order = np.argsort(-true[0])
        assert np.allclose(true[0, order[:4]], read[0, order[:4]])
        assert np.allclose(read[0, order[4:]], read[0, order[4]])


def test_a_load_holds_until_the_next_report():
    reports = [says(-1, A, 50, {LEFT: 200}, 200), says(2.5, A, 50, {LEFT: 400}, 400), says(-1, B, 0, {}, 0)]
    game = found(History(reports, [owns(LEFT, A)]), 5)
    assert in_cores(game, LEFT) == [2, 2, 2, 4, 4]
    assert game.scenario.foreign[:, 0, CPU].tolist() == pytest.approx([3, 3, 3, 1, 1]), "work that no bundle causes"


def test_a_bundle_that_moved_keeps_its_load_until_its_new_broker_reports():
    reports = [
        says(-1, A, 20, {LEFT: 200}, 200),
        says(-1, B, 10, {RIGHT: 100}, 100),
        says(1.6, A, 0, {}, 0),
        says(3.5, B, 40, {LEFT: 300, RIGHT: 100}, 400),
    ]
    moved = Step(BEGIN_US + ROUND * 3 // 2, LEFT, "transferring", "transfer", A, B, "assigned", A)
    game = found(History(reports, [owns(LEFT, A), owns(RIGHT, B), moved]), 5)
    assert in_cores(game, LEFT) == [2, 2, 2, 2, 3]
    assert game.owner[:, 0].tolist() == [0, 0, 1, 1, 1]
    assert [(each.round, each.how) for each in game.steps] == [(2, "transfer")]


def test_an_unload_is_told_from_a_transfer():
    us = BEGIN_US + ROUND // 2
    given_back = Step(us, LEFT, "releasing", "unload", A, None, "assigned", A)
    taken = Step(us + SECOND, LEFT, "assigning", "own", B, None, "unassigned")
    reports = [says(-1, A, 20, {LEFT: 200}, 200), says(-1, B, 0, {}, 0)]
    game = found(History(reports, [owns(LEFT, A), given_back, taken]), 3)
    assert [(each.round, each.how) for each in game.steps] == [(1, "unload")]


def test_a_broker_that_was_revoked_is_gone_until_it_comes_back_as_another():
    died = BEGIN_US + 3 * ROUND // 2
    history = History(
        [
            says(-1, A, 20, {LEFT: 200}, 200),
            says(-1, B, 0, {}, 0),
            says(1.8, B, 20, {LEFT: 200}, 200),
            says(1.9, A, 0, {}, 0, incarnation=2),
        ],
        [
            owns(LEFT, A),
            Step(died, LEFT, "revoking", "revoke", A, None, "assigned", A),
            Step(died + SECOND, LEFT, "assigning", "release", B, None, "revoking", A),
        ],
    )
    game = found(history, 4)
    assert game.scenario.present[:, 0].tolist() == [True, True, False, True], "also where it was away for seconds"
    assert [(each.round, each.how) for each in game.steps] == [(2, "death")]


def test_a_broker_that_goes_on_reporting_only_lost_a_bundle():
    revoked = Step(BEGIN_US + ROUND // 2, LEFT, "revoking", "revoke", A, None, "releasing", A)
    reports = [says(-1, A, 20, {LEFT: 200}, 200), says(-1, B, 0, {}, 0), says(0.9, A, 0, {}, 0)]
    game = found(History(reports, [owns(LEFT, A), revoked, owns(LEFT, B, 0.6)]), 3)
    assert game.scenario.present.all()
    assert [each.how for each in game.steps] == ["transfer"]


def test_a_report_that_was_taken_away_or_is_too_old_says_nothing():
    withdrawn = says(1.5, B, 0, {}, 0, gone=True)
    reports = [says(at, A, 20, {LEFT: 200}, 200) for at in (-1, 8)] + [says(-1, B, 0, {}, 0), withdrawn]
    reports += [says(-1, C, 0, {}, 0)]
    game = found(History(reports, [owns(LEFT, A)]), 12)
    present = game.scenario.present
    assert present[:, 0].all()
    assert present[:, 1].tolist() == [True] * 2 + [False] * 10
    assert present[:, 2].tolist() == [True] * 9 + [False] * 3, "ten minutes after its only report"


def test_a_late_report_of_a_broker_that_stopped_does_not_bring_it_back():
    reports = [says(at, A, 20, {LEFT: 200}, 200) for at in (-1, 4)] + [says(at, B, 0, {}, 0) for at in (-1, 1.6)]
    reports.append(says(1.5, B, 0, {}, 0, gone=True))

    def present(*more: Report) -> list[bool]:
        return found(History([*reports, *more], [owns(LEFT, A)]), 6).scenario.present[:, 1].tolist()

    assert present() == [True] * 2 + [False] * 4
    assert present(says(2.6, B, 0, {}, 0)) == [True, True, False, True, True, True], "it goes on reporting"
    assert present(says(3.5, B, 0, {}, 0, incarnation=2)) == [True, True, False, False, True, True]


def test_a_broker_that_has_bundles_is_there_before_its_first_report():
    """The record begins with the first report of any broker; the others were there as well."""
    reports = [says(0, A, 20, {LEFT: 200}, 200), says(0.5, B, 20, {RIGHT: 200}, 200), says(2.5, C, 0, {}, 0)]
    game = found(History(reports, [owns(LEFT, A), owns(RIGHT, B, 0.4)]), 6, coverage=0.5)
    assert game.scenario.present[0].tolist() == [True, True, False]
    assert game.scenario.home.tolist() == [0, 1]
    assert game.scenario.present[:4, 2].tolist() == [False] * 3 + [True]


def test_a_bundle_does_not_look_cold_while_the_means_there_are_short():
    """The rates that a broker reports are means over `load_window_s`; the leader corrects them after a move, too."""
    warm = [says(-1, A, 20, {LEFT: 200}, 200), says(-1, B, 0, {}, 0)]
    warm += [says(at, B, used / 10, {LEFT: used}, used) for at, used in ((1.5, 50), (2.5, 150), (3.5, 180), (4.5, 190))]
    history = History([*warm, *(says(at, A, 0, {}, 0) for at in (1.5, 4.5))], [owns(LEFT, A), owns(LEFT, B, 0.9)])
    assert in_cores(found(history, 6), LEFT) == [2, 2, 0.5, 1.5, 1.8, 1.9]
    assert in_cores(found(history, 6, settle_s=120), LEFT) == [2, 2, 2, 2, 1.8, 1.9]


def test_a_broker_whose_report_was_away_before_the_window_is_there():
    gone, back = says(-2, B, 0, {}, 0, gone=True), says(-1, B, 0, {}, 0, incarnation=2)
    game = found(History([says(-1, A, 20, {LEFT: 200}, 200), gone, back], [owns(LEFT, A)]), 3)
    assert game.scenario.present.all()


def test_a_broker_that_died_before_the_window_is_not_there_though_its_report_is_not_too_old():
    history = History(
        [says(-3, A, 90, {LEFT: 200}, 200), says(-1, B, 20, {LEFT: 200}, 200)],
        [
            owns(LEFT, A),
            Step(BEGIN_US - 2 * ROUND, LEFT, "revoking", "revoke", A, None, "assigned", A),
            Step(BEGIN_US - 2 * ROUND + SECOND, LEFT, "assigning", "release", B, None, "revoking", A),
        ],
    )
    game = found(history, 4)
    assert not game.scenario.present[:, 0].any()
    assert (game.owner == 1).all()


def test_what_was_moved_before_the_window_rests_in_it():
    """From A to B a minute and a half ago, at two cores; from B to C by itself, which binds nobody."""
    us = BEGIN_US - ROUND * 3 // 2
    moved = Step(us, LEFT, "transferring", "transfer", A, B, "assigned", A)
    given = Step(us, RIGHT, "transferring", "transfer", B, C, "assigned", B, "broker")
    unheard = Step(BEGIN_US - 8 * ROUND, RIGHT, "transferring", "transfer", C, B, "assigned", C)
    reports = [says(-5, A, 20, {LEFT: 200}, 200), says(-1, B, 40, {LEFT: 300}, 300), says(-1, C, 10, {RIGHT: 100}, 100)]
    game = found(History(reports, [owns(LEFT, A), owns(RIGHT, C), unheard, moved, given]), 3)
    rests = [(each.round, each.bundle, each.source, each.load[CPU]) for each in game.scenario.rests]
    assert rests == [(-8, 1, 2, 1.0), (-2, 0, 0, 2.0)], "one that nobody had told of is as in the first round"


def test_a_broker_that_gives_everything_away_was_about_to_stop():
    given = [
        Step(BEGIN_US + ROUND * at + 1, bundle, "transferring", "transfer", A, B, "assigned", A, "broker")
        for at, bundle in ((1, LEFT), (2, RIGHT))
    ]
    reports = [says(-1, A, 30, {LEFT: 200, RIGHT: 100}, 300), says(-1, B, 0, {}, 0)]
    history = History(reports, [owns(LEFT, A), owns(RIGHT, A), *given])
    assert found(history, 6).scenario.draining[:, 0].tolist() == [False, False, True, True, True, True]
    kept = History(reports, history.steps[:3])
    assert not found(kept, 6).scenario.draining.any(), "it gave only one away"


def test_a_split_is_played_as_if_it_had_been_there_from_the_beginning():
    split = BEGIN_US + 3 * ROUND // 2
    children = [Step(split, name, "assigned", "create", A) for name in (LEFT, RIGHT)]
    history = History(
        [
            says(-1, A, 40, {WHOLE: 400}, 400),
            says(1.6, A, 40, {RIGHT: 100, LEFT: 300}, 400),
            says(-1, B, 0, {}, 0),
        ],
        [owns(WHOLE, A), *children, Step(split, WHOLE, None, "create", None, None, "splitting", A)],
    )
    game = found(history, 4)
    assert [str(each) for each in game.scenario.bundles] == [LEFT, RIGHT]
    assert in_cores(game, LEFT)[:3] == pytest.approx([1, 1, 3]), "a quarter of the range, then what it really had"
    assert game.scenario.load.sum(axis=(1, 2)) - game.scenario.load[..., 4].sum(axis=1) == pytest.approx([4] * 4)
    assert not game.steps


def test_a_deleted_bundle_has_no_load_any_more():
    gone = Step(BEGIN_US + ROUND // 2, LEFT, None, "delete_namespace", None, None, "unassigned")
    reports = [says(-1, A, 30, {LEFT: 200}, 300)]
    game = found(History(reports, [owns(LEFT, A), owns(RIGHT, A), gone]), 3)
    assert in_cores(game, LEFT) == [2, 0, 0]
    assert in_cores(game, RIGHT) == [1, 1, 1]


@pytest.mark.parametrize(
    ("history", "why"),
    [
        (History([], [owns(LEFT, A)]), "no broker reported"),
        (History([says(-1, A, 20, {LEFT: 200}, 200)], []), "the channel does not say who had the bundles"),
        (History([says(-1, A, 20, {}, 0)], [owns(LEFT, A)]), "no bundle had any load"),
        (History([says(-9, A, 20, {LEFT: 200}, 200)], [owns(LEFT, A)]), "brokers with bundles did not report"),
    ],
)
def test_what_is_not_known_is_not_made_up(history, why):
    assert recorded(sliced(history.table(), frame(9)), 0.9) == Missing(why)


def test_a_part_that_is_not_known_is_let_pass_if_it_is_small_enough():
    history = History([says(-9, A, 20, {LEFT: 200}, 200), says(-1, B, 0, {}, 0)], [owns(LEFT, A)])
    assert isinstance(recorded(sliced(history.table(), frame(9)), 0.1), RecordedGame)


# --- parts


loads = st.floats(0, 1e6, allow_subnormal=False)


@given(st.lists(st.tuples(loads, loads, loads, loads), min_size=1, max_size=5), st.booleans(), loads)
def test_bundles_cost_what_they_cost_in_production(rates, with_cpu, used):
    bundles = [BundleLoad(0, 0, m, 0.0, i, o, c if with_cpu else 0.0) for c, i, o, m in rates]
    total = total_of(bundles)
    broker = BrokerLoadData(BrokerId(A, 1), 0, cpu_percent=used, capacity={"cpu": 4.0})
    wanted = [bundle_row(each, total, broker) for each in bundles]
    columns = np.array(
        [[b.cpu_percent, b.in_rate_bytes_s, b.out_rate_bytes_s, b.rate_msg_s] for b in [*bundles, total]]
    )
    assert np.allclose(costs(columns[:-1], columns[-1], used, 4.0), wanted, rtol=1e-9)


@given(st.sets(st.integers(1, 2**32 - 2), max_size=6), st.sets(st.integers(1, 2**32 - 2), max_size=6))
def test_tiles_are_the_finest_cut_and_their_parts_sum_up(first, second):
    edges = [[0, *sorted(cuts), 2**32 - 1] for cuts in (first, second)]
    names = {f"a/b/0x{lo:08x}_0x{hi:08x}" for cut in edges for lo, hi in itertools.pairwise(cut)}
    tiles = tiled(sorted(names))
    assert len(tiles) == len(first | second) + 1
    for row, name in enumerate(sorted(names)):
        held = tiles.bundles[tiles.first[row] : tiles.last[row]]
        assert f"a/b/0x{held[0].lo:08x}_0x{held[-1].hi:08x}" == name
        assert tiles.parts(row).sum() == pytest.approx(1)


def test_a_recorded_scenario_gives_copies_of_its_loads():
    run = play(make("heavy", Size(3, 9, 3), 1), still())
    scenario = found(written(run), 3).scenario
    scenario.asked(0)[:] = 0
    assert scenario.total(0)[CPU] > 0
    assert msgspec.structs.asdict(scenario)["home"].tolist() == run.scenario.home.tolist()
