"""A firewall that rejects connections between brokers takes few healthy ones, and strands no bundle.

`run_seed` proves the recovery. Nothing else fails here, so each broker remembers whom it suspected.
"""

from __future__ import annotations

import pytest

from loadmanager.cluster import membership
from tests.simulator.run import Report, run_seed

PROFILE = {"reject": 1, "lookup": 2, "write": 2, "transfer": 1}
QUICK, MORE, WHOLE = range(4, 7), range(7, 60), range(60, 1_000)


def rejected(seed: int, fault_phase_s: float = 25.0) -> Report:
    report = run_seed(seed, fault_phase_s=fault_phase_s, fault_profile=PROFILE)
    assert report.violation is None, report.history[-100:]
    return report


def share(report: Report) -> int:
    return max(1, (report.counts["brokers"] + 1) // 3)


def evicted(report: Report) -> int:
    return report.counts.get("evicted alive", 0)


@pytest.mark.parametrize("seed", QUICK)
def test_a_third_of_the_healthy_brokers_at_most_is_evicted(seed: int) -> None:
    report = rejected(seed, 8.0)
    assert evicted(report) <= share(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_more_clusters_too() -> None:
    reports = [rejected(seed) for seed in MORE]
    assert [(each.seed, evicted(each)) for each in reports if evicted(each) > share(each)] == []


@pytest.mark.release
@pytest.mark.timeout(7200)
def test_of_a_thousand_clusters_too() -> None:
    reports = [rejected(seed) for seed in WHOLE]
    assert [(each.seed, evicted(each)) for each in reports if evicted(each) > share(each)] == []


@pytest.mark.slow
def test_this_test_would_see_it_without_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "WINDOW_S", 0.0)
    assert any(evicted(report) > share(report) for report in map(rejected, range(8, 20)))
