"""The placement `least-resource-usage` chooses what Pulsar's own tests of LeastResourceUsageWithWeight demand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from loadmanager.settings import Settings
from loadmanager.strategies.placement.baselines import LeastResourceUsage
from loadmanager.strategies.placement.placement import Candidate, Given, Placed
from loadmanager.strategies.rebalancing.pulsar.shedder import Average, Averages, folded
from statechannel.law.bundle import Bundle
from tests.loadmanager.strategies.rebalancing.cluster_models import BYTES_IN, BYTES_OUT, MEMORY, Host, broker, model

Case = Mapping[str, Any]
CASES: list[Case] = json.loads(
    (Path(__file__).parents[3] / "vectors" / "pulsar" / "shedding.json").read_text(encoding="utf-8")
)["least_resource_usage"]
BUNDLES = [Bundle("my-tenant/my-namespace", number * 16, number * 16 + 16) for number in range(20)]


def settings_of(case: Case) -> Settings:
    config = case["config"]
    return Settings(
        weight_cpu=config["cpu_weight"],
        weight_bandwidth=max(config["bandwidth_in_weight"], config["bandwidth_out_weight"]),
    )


def sampled(averages: Averages, percents: Mapping[str, float], case: Case, *, anew: bool) -> Averages:
    """The averages with these samples of all resources. Memory weighs least there, and nothing here."""
    hosts = {
        name: Host(part := percent / 100, used=dict.fromkeys((MEMORY, BYTES_IN, BYTES_OUT), part * 8),
                   capacity=dict.fromkeys((MEMORY, BYTES_IN, BYTES_OUT), 8.0))
        for name, percent in percents.items()
    }  # fmt: skip
    before = {} if anew else averages
    return {**averages, **folded(before, model(hosts), settings_of(case), case["config"]["history_percentage"])}


def questions(case: Case) -> Iterator[tuple[Averages, str]]:
    """The averages at each moment, and who is to be chosen then."""
    if "ema" in case:
        yield {str(broker(name)): Average(value, 0.0) for name, value in case["ema"].items()}, case["expected"]
        return
    averages = sampled({}, case["initial_put"], case, anew=True)
    for step in case["steps"]:
        averages = sampled(averages, step.get("sample", {}), case, anew=False)
        averages = sampled(averages, step.get("put", {}), case, anew=True)
        yield averages, step["expected"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["test"])
def test_it_chooses_as_pulsar(case: Case) -> None:
    given = Given(margin=case["config"]["average_usage_difference_threshold_percent"] / 100)
    asked = list(questions(case))
    assert asked
    for averages, expected in asked:
        known = {str(broker(name)): broker(name) for name in case["candidates"]}
        usages = {name: average.usage for name, average in averages.items()}
        candidates = [Candidate(each, usage=usages.get(name)) for name, each in known.items()]
        for bundle in BUNDLES:
            outcome = LeastResourceUsage().choose(bundle, candidates, given)
            assert isinstance(outcome, Placed)
            assert outcome.broker == broker(expected)
