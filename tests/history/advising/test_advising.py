"""What is advised, and what is not: of replays, capacities and forecasts made up so that the right answer is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from loadmanager.history.advising.from_bundles import Namespace, cuts_of
from loadmanager.history.advising.from_forecast import Ahead, relief
from loadmanager.history.advising.from_replay import advised, candidates
from loadmanager.history.advising.from_weights import Kind, weight_of
from loadmanager.history.advising.origin import Origin
from loadmanager.history.replay import RECORDED, Ranked, ReplayResult, WindowRow, parsed
from loadmanager.history.replay.ranking import compared, config_of, mean, ranked, verdict
from loadmanager.leader.plans.advice import (
    Advice,
    ChangeSettings,
    Measure,
    SettingChange,
    check,
    check_seal,
    check_steps,
)
from loadmanager.settings import Settings

BASE = Settings.model_construct(None)
HOUR_MS = 3_600_000
NOW_MS = 1_000_000_000
ORIGIN = Origin("test", NOW_MS - 24 * HOUR_MS, NOW_MS, 24 * HOUR_MS, {"decision": 7, "broker_load": 3, "audit": 1})


def replayed(spreads: Mapping[str, list[float]]) -> ReplayResult:
    """Of candidates' spreads, window by window; what they cost is the spread."""
    rows = tuple(_row(hour, name, spread) for name, values in spreads.items() for hour, spread in enumerate(values))
    chosen = parsed(spreads, BASE)
    table: tuple[Ranked, ...] = ranked(rows, chosen, 0)
    config = config_of(next(each for each in chosen if each.name == table[0].candidate), BASE)
    by_name = {name: [row for row in rows if row.candidate == name] for name in spreads}
    check = compared(by_name[RECORDED], by_name.get("plan", by_name[RECORDED]), "plan")
    facts: dict[str, Any] = {"begin": "", "end": "", "interval_s": 60.0, "window_s": 3600.0, "skipped": {}}
    facts |= {"objective": {}, "gap_cost": {}, "gap_source": "", "seed": 0, "windows": len(rows) // len(spreads)}
    return ReplayResult(**facts, ranked=table, rows=rows, config=config, verdict=verdict(table, config), fidelity=check)


def _row(hour: int, candidate: str, spread: float) -> WindowRow:
    return WindowRow(
        f"2026-01-01T{hour:02d}:00:00Z",
        candidate,
        broke="",
        bound=0.0,
        objective=spread,
        overload=0.0,
        imbalance=spread,
        moved_an_hour=0.1,
        gap_s_an_hour=0.1,
        max_over_mean=1 + spread,
        std=0.0,
        above_percent=100.0 * (spread > 0.3),
        moves=1,
        moved=0.1,
        gap_s=0.1,
    )


def noisy(level: float, count: int = 12) -> list[float]:
    return [level + 0.02 * ((number * 5) % 3 - 1) for number in range(count)]


def changes(advice: Advice | str) -> tuple[SettingChange, ...]:
    assert isinstance(advice, Advice), advice
    assert isinstance(advice.change, ChangeSettings)
    return advice.change.changes


TIGHTER = "plan:balancing_tolerance=0.05"


def test_the_candidate_that_surely_beats_what_happened_is_advised_with_its_numbers() -> None:
    found = replayed({RECORDED: noisy(0.5), "plan": noisy(0.5), TIGHTER: noisy(0.2), "transfer": noisy(0.6)})
    advice = advised(found, BASE, ORIGIN)
    assert changes(advice) == (SettingChange("balancing_tolerance", "default", 0.05),)
    assert isinstance(advice, Advice)
    expected = advice.expected
    assert (expected.measure, expected.before, expected.after) == (
        Measure.SPREAD,
        pytest.approx(0.5, abs=0.01),
        pytest.approx(0.2, abs=0.01),
    )
    assert 0.28 < expected.low <= 0.3 + 1e-9 <= expected.high + 2e-9 < 0.32
    assert "50.0% → 20.0%" in advice.reason
    assert dict(advice.provenance.tables) == {"broker_load": 3, "decision": 7}
    check(advice, "test", NOW_MS + HOUR_MS)
    assert msgspec.json.decode(msgspec.json.encode(advice), type=Advice) == advice
    check_seal(advice)
    assert advised(found, BASE, ORIGIN) == advice


def test_what_is_promised_is_what_it_gains_on_the_present_settings_where_the_replay_is_kinder_than_life() -> None:
    advice = advised(replayed({RECORDED: noisy(0.5), "plan": noisy(0.4), TIGHTER: noisy(0.2)}), BASE, ORIGIN)
    assert isinstance(advice, Advice)
    assert (advice.expected.before, advice.expected.after) == (pytest.approx(0.4), pytest.approx(0.2))


@pytest.mark.parametrize("present", [0.1, 1.2])
def test_a_replay_that_is_not_what_happened_advises_nothing(present: float) -> None:
    """The present settings cost in it a fifth of what the cluster had, or more than twice as much."""
    found = replayed({RECORDED: noisy(0.5), "plan": noisy(present), TIGHTER: noisy(0.05)})
    advice = advised(found, BASE, ORIGIN)
    assert isinstance(advice, str)
    assert f"the cluster's own settings (plan) cost {present:g} in it, and the cluster had 0.5" in advice


def test_a_result_without_that_check_advises_nothing() -> None:
    found = replayed({RECORDED: noisy(0.5), TIGHTER: noisy(0.2)})
    assert "replay again" in str(advised(msgspec.structs.replace(found, fidelity=None), BASE, ORIGIN))


def test_another_strategy_may_be_advised() -> None:
    advice = advised(replayed({RECORDED: noisy(0.5), "transfer": noisy(0.3)}), BASE, ORIGIN)
    assert changes(advice) == (SettingChange("balancing_strategy", "plan", "transfer"),)


@pytest.mark.parametrize(
    ("spreads", "says"),
    [
        ({RECORDED: noisy(0.2), TIGHTER: noisy(0.5)}, "may be no better"),
        ({RECORDED: [0.5, 0.1] * 6, TIGHTER: [0.1, 0.5] * 5 + [0.1, 0.4]}, "may be no better"),
        ({RECORDED: noisy(0.5, 4), TIGHTER: noisy(0.2, 4)}, "certain to fall"),
        ({RECORDED: noisy(0.5), "plan:balancing_tolerance=0.01": noisy(0.1)}, "no single step leads there"),
        ({RECORDED: noisy(0.5), "plan:bundle_rest_s=18000": noisy(0.1)}, "no single step leads there"),
        (
            {RECORDED: noisy(0.5), "plan": [0.5, 0.4] * 6, TIGHTER: [0.4, 0.5] * 5 + [0.4, 0.49]},
            "may be no better than the present settings",
        ),
        ({RECORDED: noisy(0.5)}, "no other candidate"),
    ],
)
def test_what_is_not_sure_or_out_of_bounds_is_not_advised(spreads: dict[str, list[float]], says: str) -> None:
    found = advised(replayed(spreads), BASE, ORIGIN)
    assert isinstance(found, str)
    assert says in found


def test_what_is_beyond_one_step_gives_way_to_the_next_best_within() -> None:
    found = replayed({RECORDED: noisy(0.5), "plan:balancing_tolerance=0.01": noisy(0.1), TIGHTER: noisy(0.2)})
    assert changes(advised(found, BASE, ORIGIN))[0].to == 0.05


def test_all_candidates_of_its_own_are_one_step_away() -> None:
    for text in candidates(BASE):
        [*found] = parsed([text], BASE)
        for each in found:
            wanted = tuple(SettingChange(name, None, to) for name, to in each.changes(BASE).items())
            check_steps(ChangeSettings(wanted), BASE)


def test_an_interval_covers_the_mean_and_needs_enough_blocks() -> None:
    found = mean([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert found is not None
    assert found.low < found.mean == 3.5 < found.high
    assert mean([1.0, 2.0]) is None


def test_the_weight_of_messages_is_what_they_cost_of_what_is_declared() -> None:
    kind = Kind(cores=4.0, declared_msg_s=100_000.0, cost=1e-4, error=1e-6, r2=0.9, minutes=100)
    found = weight_of([kind])
    assert found is not None
    assert (found.low, found.value, found.high) == (pytest.approx(2.451), pytest.approx(2.5), pytest.approx(2.549))
    assert weight_of([]) is None
    assert weight_of([Kind(4.0, 0.0, 1e-4, 0.0, 0.9, 100), Kind(4.0, 1.0, 1e-4, 0.0, 0.1, 100)]) is None


def test_no_more_bundles_are_cut_than_may_be() -> None:
    large = {f"t/n/0x{number:08x}_0x{number + 1:08x}": 0.5 - 0.01 * number for number in range(8)}
    cuts = cuts_of(Namespace("t/n", 10, 0.1, large), BASE)
    assert [cut.parts for cut in cuts] == [5, 5, 3]
    assert sum(cut.parts - 1 for cut in cuts) == 10
    assert cuts_of(Namespace("t/n", 128, 0.1, large), BASE) == ()


def made(predicted: list[list[float]], deviation: float = 0.1) -> Ahead:
    load = np.array(predicted)
    return Ahead(
        load, np.full(load.shape, deviation), np.zeros(len(load), np.int64), np.array([10.0, 10.0]), np.zeros(2)
    )


def test_moves_ahead_even_out_the_peak() -> None:
    found = relief(made([[1.0, 4.0], [1.0, 3.0], [1.0, 2.0], [1.0, 1.0]]), 0.1, 10)
    assert found is not None
    assert found.hour == 1
    assert found.before == pytest.approx(1.0, abs=0.05)
    assert found.after < 0.1
    assert 0 < found.gain.low <= found.gain.mean <= found.gain.high
    moved = sum([4.0, 3.0, 2.0, 1.0][bundle] for bundle, to in found.moves if to == 1)
    assert moved == 5.0


def test_nothing_is_moved_for_a_forecast_that_knows_nothing_or_where_all_is_even() -> None:
    assert relief(made([[1.0, 1.0], [1.0, 1.0]], deviation=40.0), 0.1, 10) is None
    even = made([[1.0, 4.0], [1.0, 4.0]])
    even.holder[1] = 1
    assert relief(even, 0.1, 10) is None
    assert relief(made([[5.0, 5.0]]), 0.1, 10) is None
