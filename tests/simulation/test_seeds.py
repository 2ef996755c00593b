"""The whole cluster under every fault, from many seeds: no seed may break a rule of `tests.simulator.checks`.

The fast tests run 20 seeds, the slow ones 200, the release tests 1,000. `SIM_SEEDS` sets how many the last run,
`SIM_FIRST_SEED` where all begin.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadmanager.settings import Settings
from tests.simulation.protocol_bugs import BUGS
from tests.simulator import cluster
from tests.simulator.__main__ import sim
from tests.simulator.run import Report, run_seed, run_seeds
from tests.simulator.simulated_log import Step

SEEDS = int(os.environ.get("SIM_SEEDS", "1000"))
FIRST_SEED = int(os.environ.get("SIM_FIRST_SEED", "1"))
QUICK_SEEDS, MORE_SEEDS = 20, 200
SHARDS = 4
JOBS = os.cpu_count() or 1
ROOT = Path(__file__).parents[2]


def told(report: Report) -> str:
    return "\n".join([report.line(), *report.history[-200:]])


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + QUICK_SEEDS))
def test_no_seed_breaks_a_rule(seed: int) -> None:
    _none_breaks_a_rule(range(seed, seed + 1))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_nor_does_any_of_more(shard: int) -> None:
    _none_breaks_a_rule(range(FIRST_SEED + QUICK_SEEDS + shard, FIRST_SEED + MORE_SEEDS, SHARDS))


@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_nor_does_any_of_many_more(shard: int) -> None:
    _none_breaks_a_rule(range(FIRST_SEED + MORE_SEEDS + shard, FIRST_SEED + SEEDS, SHARDS))


def _none_breaks_a_rule(share: range) -> None:
    jobs = 1 if "PYTEST_XDIST_WORKER" in os.environ else JOBS
    broken = [report for report in run_seeds(share, jobs=jobs) if report.violation is not None]
    assert not broken, told(broken[0])


@pytest.mark.slow
def test_a_run_does_what_it_is_for() -> None:
    """Faults happen, requests are answered, bundles move: else the absence of violations would say nothing."""
    fault_profile = {"lookup": 4, "write": 4, "transfer": 2, "crash": 1}
    counts: Counter[str] = Counter()
    reports = [run_seed(seed, fault_profile=fault_profile) for seed in range(5)]
    for report in reports:
        assert report.violation is None, told(report)
        assert report.accepted > 50
        counts.update(report.counts)
    assert max(report.recovery_s for report in reports) > 0
    assert min(counts[what] for what in ("lookup", "write", "transfer")) > 5 * len(reports)
    assert counts["rounds"] > len(reports)


@pytest.mark.slow
def test_snapshots_are_written_met_in_the_middle_and_needed() -> None:
    """The log is trimmed, owners are struck at every step of their work, and brokers are loaded anew."""
    fault_profile = {
        "lookup": 4,
        "transfer": 4,
        "split": 2,
        "merge": 2,
        "snapshot": 5,
        "pause": 1,
        "cut": 1,
        "crash": 1,
    }
    counts: Counter[str] = Counter()
    for seed in range(12):
        report = run_seed(seed, fault_profile=fault_profile)
        assert report.violation is None, told(report)
        counts.update(report.counts)
    assert min(counts[what] for what in ("snapshots", "trims", "loads", "split", "merge")) > 20
    assert counts["reloads"] > 0
    assert all(counts[f"struck: {step}"] > 0 for step in Step)


@pytest.mark.slow
def test_roots_are_lost_and_agreements_replaced_under_traffic() -> None:
    """Whoever serves meanwhile, serves alone; in the end everything is served under the new agreement."""
    fault_profile = {
        "lookup": 4,
        "write": 4,
        "transfer": 3,
        "lose root": 2,
        "amend": 2,
        "crash": 1,
        "pause": 1,
        "cut": 1,
    }
    counts: Counter[str] = Counter()
    for seed in range(8):
        report = run_seed(seed, fault_profile=fault_profile)
        assert report.violation is None, told(report)
        counts.update(report.counts)
    assert min(counts[what] for what in ("roots lost", "agreements replaced", "write")) > 20


def digest_of(seed: int, hash_seed: str) -> str:
    program = f"from tests.simulator.run import run_seed; r = run_seed({seed}); print(r.digest, r.steps, r.counts)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_one_seed_has_one_history_whatever_the_hash_seed(seed: int) -> None:
    assert len({digest_of(seed, hash_seed) for hash_seed in ("0", "1", "4711")}) == 1


@pytest.mark.slow
def test_a_seed_has_the_same_history_after_other_runs_in_the_same_process() -> None:
    first = run_seed(7)
    run_seed(8)
    assert run_seed(7).digest == first.digest != run_seed(8).digest


def test_the_settings_of_the_simulation_are_settings_that_a_broker_takes() -> None:
    given = cluster.SETTINGS.model_dump()
    assert Settings(**given).model_dump() == given


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="no such fault or request: rain"):
        run_seed(1, fault_profile={"rain": 1})


def test_the_command_prints_a_line_for_each_seed() -> None:
    result = CliRunner().invoke(sim, ["--seed", "3", "--count", "2", "--jobs", "1", "--seconds", "3"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines] == ["seed 3", "seed 4", "2 of 2 seeds passed"]


def test_the_command_prints_the_history_of_a_failing_seed_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS["the_agent_serves_until_it_has_released"](monkeypatch)
    result = CliRunner().invoke(sim, ["--seed", "1", "--count", "2", "--jobs", "1"])
    assert result.exit_code == 1
    failed = re.search(r"The history of seed (\d+)", result.output)
    assert failed is not None, result.output
    assert "accepts" in result.output
    assert f"python -m tests.simulator --seed {failed[1]}" in result.output
