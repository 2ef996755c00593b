"""Means, intervals and order of candidates, and the picture of them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from loadmanager.history.replay.candidates import Candidate
from loadmanager.history.replay.pictures import draw
from loadmanager.history.replay.ranking import ReplayResult, WindowRow, config_of, ranked, verdict
from loadmanager.settings import Settings

CANDIDATES = (Candidate("recorded"), Candidate("plan"), Candidate("avg"))
WINDOWS = 40


def rows(**costs) -> list[WindowRow]:
    """Of each candidate its cost by window; None where it broke a rule."""
    return [
        WindowRow(f"2026-11-02T{at:02}", name, "broke it" if cost is None else "", 0.1, *_figures(cost))
        for name, of in costs.items()
        for at, cost in enumerate(of)
    ]


def _figures(cost: float | None) -> list[Any]:
    return [None] * 11 if cost is None else [float(cost), 0.0, 0.1, 0.0, 0.0, 1.0, 0.1, 0.0, 3, 0.1, 0.2]


def hard_days() -> np.ndarray:
    return np.random.default_rng(1).exponential(1.0, WINDOWS)


def test_differences_are_taken_window_by_window():
    """Days differ by far more than candidates do; who is a little better on every day is better for sure."""
    days = hard_days() + 0.2
    table = ranked(rows(recorded=days + 0.02, plan=days, avg=days + 0.01), CANDIDATES, 0)
    assert [each.candidate for each in table] == ["plan", "avg", "recorded"]
    plan, avg, record = table
    assert plan.objective.high > record.objective.low, "taken alone, the intervals lie over each other"
    assert record.is_worse
    assert avg.is_worse
    assert avg.against_best.mean == pytest.approx(0.01)
    assert plan.against_recorded is not None
    assert plan.against_recorded.high < 0
    assert plan.regret.mean == pytest.approx(days.mean() - 0.1)
    config = config_of(CANDIDATES[1], Settings(balancing_strategy="avg"))
    assert verdict(table, config) == "plan would have cost 0.0200 brokers less than what the cluster did"
    assert verdict(table, config_of(CANDIDATES[1], Settings())).startswith("leave the settings as they are")


def test_what_is_not_sure_is_not_said_to_be():
    days, luck = hard_days() + 1.0, np.random.default_rng(2).normal(0, 0.3, WINDOWS)
    table = ranked(rows(recorded=days, plan=days + luck - luck.mean() - 0.01, avg=days + 2), CANDIDATES, 0)
    assert table[0].candidate == "plan"
    assert not table[1].is_worse
    assert "may be no better" in verdict(table, config_of(CANDIDATES[1], Settings(balancing_strategy="avg")))


def test_a_few_windows_say_too_little_however_much_they_agree():
    table = ranked(rows(recorded=[0.5] * 4, plan=[0.1] * 4), CANDIDATES[:2], 0)
    assert table[0].against_recorded is not None
    assert table[0].against_recorded.high < 0
    assert "4 windows say too little" in verdict(table, config_of(CANDIDATES[1], Settings(balancing_strategy="avg")))


def test_an_interval_has_the_mean_of_the_true_law_as_often_as_it_says():
    rng, held = np.random.default_rng(3), 0
    for seed in range(200):
        values = rng.exponential(1.0, WINDOWS)
        [found] = ranked(rows(plan=values), CANDIDATES[1:2], seed)
        held += found.objective.low <= 1.0 <= found.objective.high
    assert 176 <= held <= 198, "95 % in the limit, somewhat less with forty windows of a skewed law"


def test_who_broke_a_rule_comes_after_all_who_did_not():
    plan = [None, *[0.1] * (WINDOWS - 1)]
    table = ranked(rows(recorded=[0.5] * WINDOWS, plan=plan, avg=[None] * WINDOWS), CANDIDATES, 0)
    assert [(each.candidate, each.violations, each.windows) for each in table] == [
        ("recorded", 0, WINDOWS),
        ("plan", 1, WINDOWS - 1),
        ("avg", WINDOWS, 0),
    ]
    assert table[1].broke == "broke it"
    assert "leave the settings" in verdict(table, config_of(CANDIDATES[0], Settings()))


@pytest.mark.slow
def test_a_picture_and_json_of_it(tmp_path):
    days = hard_days()
    given = rows(recorded=days + 0.1, plan=days, avg=[None] * WINDOWS)
    table = ranked(given, CANDIDATES, 0)
    config = config_of(CANDIDATES[1], Settings(balancing_strategy="avg"))
    weights = {"overload": 4.0, "imbalance": 1.0, "moved": 0.1, "gap": 0.01}
    result = ReplayResult(
        "2026-11-02", "2026-11-03", 60.0, 3600.0, WINDOWS, {}, table, tuple(given), config, verdict(table, config),
        weights, {"transfer_s": 0.03, "unload_s": 1.0}, "constants", 0,
    )  # fmt: skip
    read = msgspec.json.decode(msgspec.json.encode(result))
    assert read["ranked"][0]["candidate"] == "plan"
    assert read["ranked"][2]["objective"] == {"mean": None, "low": None, "high": None}
    png, page = draw(result, tmp_path / "pictures")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "plan would have cost 0.1000" in page.read_text()
