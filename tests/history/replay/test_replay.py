"""The whole job, on a lakehouse: who is known to be better comes first, and everything else that the table says."""

from __future__ import annotations

import msgspec
import pytest
from pyspark.sql import SparkSession

from loadmanager.errors import Invalid
from loadmanager.history.lake import Lake, Window
from loadmanager.history.replay import Options, ReplayResult, replay
from loadmanager.history.replay.cost import Gaps
from loadmanager.history.replay.job import recorded_gaps, recorded_settings
from loadmanager.settings import Settings
from loadmanager.strategies.playground.game import play
from loadmanager.strategies.playground.scenario import Size
from loadmanager.strategies.playground.workloads import make
from tests.history.replay.games import lopsided
from tests.history.replay.written import BEGIN_US, GAP_S, SECOND, History, at, save, written

BASE = Settings(balancing_strategy="overload", load_report_max_interval_s=60)
OPTIONS = Options(window_s=720.0, settings=BASE, gaps=Gaps(), parallelism=1)
CANDIDATES = ("recorded", "plan", "overload")
SILENT_US = BEGIN_US + 24 * 60 * SECOND, BEGIN_US + 36 * 60 * SECOND


@pytest.fixture(scope="module")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two hours in which nobody balanced a cluster that needed it; in twelve minutes of them nobody reported."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("past")))
    history = written(lopsided(usage=0.33), top=4)
    history.reports = [each for each in history.reports if not SILENT_US[0] - SECOND <= each.us < SILENT_US[1] - SECOND]
    history.save(lake)
    return lake


@pytest.fixture(scope="module")
def result(past: Lake) -> ReplayResult:
    return replay(past, candidates=CANDIDATES, options=OPTIONS)


def test_the_strategy_that_is_known_to_be_better_is_first_for_sure(result):
    plan, *others = result.ranked
    assert plan.candidate == "plan"
    assert {each.candidate for each in others} == {"recorded", "overload"}
    for other in others:
        assert plan.objective.high < other.objective.low
        assert other.is_worse
    assert plan.against_recorded.high < 0
    assert "would have cost" in result.verdict
    assert result.config.commands == ("loadmanager config set balancing_strategy plan",)


def test_windows_without_data_are_left_out_and_counted(result):
    assert result.skipped == {"brokers with bundles did not report": 1}
    assert result.windows == 8
    assert len(result.rows) == 8 * len(CANDIDATES)


def test_every_window_starts_from_its_recorded_placement(result):
    """Nobody balanced, so in each there is as much to do, which plan had done in the window before."""
    assert min(row.moves for row in result.rows if row.candidate == "plan") >= 3


def test_regret_is_never_below_nothing_and_whoever_does_nothing_has_what_was_recorded(result):
    assert all(row.objective >= row.bound - 1e-9 for row in result.rows)
    still, lazy = (
        [msgspec.structs.replace(row, candidate="") for row in result.rows if row.candidate == name]
        for name in ("recorded", "overload")
    )
    assert still == lazy, "overload moves nothing below 85 %"


def test_the_own_settings_are_played_beside_the_record_even_if_nobody_asks(past, result):
    check = result.fidelity
    assert (check.candidate, check.windows, check.agrees) == ("overload", 8, True)
    assert check.replayed == check.recorded == pytest.approx(result.ranked[-1].objective.mean)
    alone = replay(past, candidates=["plan"], options=OPTIONS)
    assert (alone.fidelity, [each.candidate for each in alone.ranked]) == (check, ["plan"])
    other = msgspec.structs.replace(OPTIONS, settings=BASE.model_copy(update={"balancing_strategy": "plan"}))
    unlike = replay(past, candidates=["recorded", "transfer"], options=other)
    assert unlike.fidelity is not None
    assert not unlike.fidelity.agrees, "nobody balanced, and these settings would have"
    assert (unlike.config.commands, unlike.verdict[:12]) == ((), "set nothing:")


def test_the_same_record_gives_the_same_answer_however_it_is_shared_out(past, result):
    shared = msgspec.structs.replace(OPTIONS, parallelism=8)
    assert replay(past, candidates=CANDIDATES, options=shared) == result


def test_moves_cost_what_they_were_seen_to_cost(lake):
    steps = [
        step
        for day, strategy in enumerate(("plan", "uniform"))
        for step in written(
            play(make("bursty", Size(6, 60, 40), 2), strategy), begin_us=BEGIN_US + day * 86_400 * SECOND
        ).steps
    ]
    assert min(sum(step.action == action for step in steps) for action in ("transfer", "unload")) >= 20
    History([], steps).save(lake)
    gaps = recorded_gaps(lake)
    assert gaps.transfer_s == pytest.approx(GAP_S)
    assert gaps.unload_s == pytest.approx(3 * GAP_S)
    assert gaps.source == "recorded transfers and recorded unloads"


def test_settings_are_those_of_the_last_decision(spark, lake):
    rows = [
        {"partition": 0, "offset": n, "at": at(BEGIN_US + n), "settings": text, "day": at(BEGIN_US).date()}
        for n, text in enumerate(('{"balancing_tolerance": "loose", "gone": 1}', '{"balancing_tolerance": "tight"}'))
    ]
    save(spark, lake, "decision", rows)
    assert recorded_settings(lake).tolerance == 0.05
    assert recorded_settings(lake, Window(None, at(BEGIN_US + 1))).tolerance == 0.25


def test_what_makes_no_sense_is_said_before_anything_runs(lake):
    with pytest.raises(Invalid, match="history ingest"):
        replay(lake, candidates=["plan"], options=OPTIONS)
    with pytest.raises(Invalid, match="no strategy is called 'plam'"):
        replay(lake, candidates=["plam"], options=OPTIONS)
