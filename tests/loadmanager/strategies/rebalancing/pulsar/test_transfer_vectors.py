"""The strategy `transfer` decides what Pulsar's own tests of its TransferShedder demand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Move
from loadmanager.strategies.rebalancing.pulsar.shedder import Average, Tuning
from loadmanager.strategies.rebalancing.pulsar.transfer import Transfer, TransferMemory, may_shed
from statechannel.law.bundle import Bundle
from tests.loadmanager.strategies.rebalancing.cluster_models import BYTES_IN, BYTES_OUT, Host, Hot, broker, model

Case = Mapping[str, Any]
VECTORS: Mapping[str, Any] = json.loads(
    (Path(__file__).parents[4] / "vectors" / "pulsar" / "shedding.json").read_text(encoding="utf-8")
)
CASES: list[Case] = VECTORS["transfer_shedder"]
NOW_MS = 1_700_000_000_000
TOLERANCE = 1e-6


def settings_of(case: Case) -> Settings:
    config = case["config"]
    return Settings(
        shedder_hit_count=config["hit_count_threshold"],
        overloaded_percent=config["overloaded_threshold_percent"],
        shedder_delay_s=config["shedding_delay_seconds"],
        load_report_max_interval_s=config["load_data_ttl_seconds"] / 2,
    )


def tuning_of(case: Case) -> Tuning:
    config = case["config"]
    return Tuning(
        target_std=config["target_std"],
        transfer=config["transfer_enabled"],
        max_brokers=config["max_brokers_per_cycle"],
        policy_bundles=config["shed_bundles_with_policies"],
    )


def model_of(case: Case) -> ClusterModel:
    names = case["available_brokers"]
    loads, stale = case["broker_load"], case.get("all_load_data_stale", False)
    hosts = {name: host_of(loads.get(name), stale) for name in names}
    resting = set(case.get("recently_unloaded_bundles", ()))
    bundles = {
        name: [hot_of(each, resting, case.get("isolation_policy"), names) for each in listed]
        for name, listed in case["top_bundles"].items()
    }
    ages = [np.inf if name not in loads else 1e9 if stale else 0.0 for name in sorted(names)]
    return model(hosts, bundles, report_age_s=np.array(ages), at_ms=NOW_MS)


def host_of(load: Case | None, stale: bool) -> Host:
    if load is None:
        return Host(known=False)
    bytes_in, bytes_out = load.get("throughput_in", 0), load.get("throughput_out", 0)
    used = {BYTES_IN: bytes_in, BYTES_OUT: bytes_out}
    return Host(load["cpu_percent"] / 100, used=used, throughput_bytes_s=bytes_in + bytes_out, known=not stale)


def hot_of(listed: Case, resting: set[str], isolation: Case | None, names: list[str]) -> Hot:
    policy = isolation if isolation and listed["bundle"].startswith(isolation["namespace"] + "/") else None
    allowed = {*policy["primary"], *policy["secondary"]} if policy else set(names)
    return Hot(
        in_bytes_s=listed.get("throughput_in", 0),
        out_bytes_s=listed.get("throughput_out", 0),
        name=listed["bundle"],
        moved_s=0.0 if listed["bundle"] in resting else np.inf,
        isolated=policy is not None,
        forbidden={name: "isolation policy 'e'" for name in names if name not in allowed},
    )


def memory_of(case: Case, kept: float) -> TransferMemory:
    """The history that gives the averages of the case together with its samples, and what was unloaded just now."""
    averages: dict[str, Average] = {}
    for name, load in case["broker_load"].items():
        if "throughput_ema" in load:
            bytes_s = load["throughput_in"] + load["throughput_out"]
            before = (load["throughput_ema"] - (1 - kept) * bytes_s) / kept
            averages[str(broker(name))] = Average(load["cpu_percent"] / 100, before)
    unloaded = {str(broker(name)): NOW_MS for name in case.get("recently_unloaded_brokers", ())}
    return TransferMemory(averages=averages, brokers_ms=unloaded)


def decide(case: Case, **changes: Any) -> Decision:
    tuning = msgspec.structs.replace(tuning_of(case), **changes)
    return Transfer(tuning).decide(model_of(case), settings_of(case), memory_of(case, tuning.history))


def as_unload(move: Move) -> tuple[str, Bundle, str | None, str]:
    destination = move.destination.name if move.destination else None
    return move.source.name, move.bundle, destination, move.reason.partition(":")[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["test"])
def test_it_decides_as_pulsar(case: Case) -> None:
    decision, expected = decide(case), case["expected"]
    assert isinstance(decision.memory, TransferMemory)
    outcome = decision.memory.outcome
    unloads = {as_unload(move) for move in decision.moves}
    assert len(unloads) == len(decision.moves)
    if "unloads" in expected:
        assert unloads == {
            (each["source"], Bundle.parse(each["bundle"]), each["destination"], each["reason"])
            for each in expected["unloads"]
        }
    if "unload_count" in expected:
        assert len(unloads) == expected["unload_count"]
    if "counter" in expected:
        assert (outcome.label, outcome.cause) == (expected["counter"]["label"], expected["counter"]["reason"])
        assert decision.reason.startswith(f"{outcome.label}/{outcome.cause}: ")
    for name in {"load_avg", "load_std", "std_after"} & expected.keys():
        assert getattr(outcome, name) == pytest.approx(expected[name], abs=TOLERANCE)
    assert {"unloads", "unload_count"} & expected.keys(), "a case that demands nothing"


@pytest.mark.parametrize("case", [case for case in CASES if case["expected"].get("unloads")], ids=lambda c: c["test"])
def test_without_transfer_the_same_bundles_leave_the_same_brokers(case: Case) -> None:
    there, nowhere = decide(case), decide(case, transfer=False)
    assert [(m.source, m.bundle, None) for m in there.moves] == [
        (m.source, m.bundle, m.destination) for m in nowhere.moves
    ]


@pytest.mark.parametrize("case", VECTORS["policy_gate"])
def test_bundles_under_policies_stay_unless_it_is_set(case: Case) -> None:
    tuning = Tuning(policy_bundles=case["shed_bundles_with_policies"])
    isolated, grouped = case["has_isolation_policy"], case["has_anti_affinity_group"]
    assert may_shed(tuning, isolated=isolated, grouped=grouped) == case["expected_may_shed"]
