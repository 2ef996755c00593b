"""Whatever the strategy: drained brokers and misplaced bundles are emptied first, and then it decides as by itself."""

from __future__ import annotations

import pytest

from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.pulsar.transfer import Transfer
from loadmanager.strategies.registry import STRATEGIES
from tests.loadmanager.strategies.rebalancing.cluster_models import Host, Hot, model

UNEVEN = {"a": 0.95, "b": 0.1, "c": 0.1}
AT_ONCE = Settings(shedder_hit_count=0)


@pytest.mark.parametrize("name", STRATEGIES.names())
def test_a_drained_broker_is_emptied(name: str):
    drained = model({"a": Host(0.2, draining=True), "b": 0.2, "c": 0.2}, {"a": [Hot(0.1), Hot(0.1)]})
    decision = STRATEGIES.make(name).decide(drained, Settings())
    assert [(move.source.name, move.stage) for move in decision.moves] == [("a:6650", Stage.DRAIN)] * 2


@pytest.mark.parametrize("name", STRATEGIES.names())
def test_a_misplaced_bundle_goes_where_it_may(name: str):
    rules = {"a": "isolation policy 'pay'", "b": "isolation policy 'pay'"}
    misplaced = model({"a": 0.2, "b": 0.2, "c": 0.2}, {"a": [Hot(0.1, forbidden=rules), Hot(0.1)]})
    decision = STRATEGIES.make(name).decide(misplaced, Settings())
    assert [(m.bundle, m.stage, m.destination.name) for m in decision.moves if m.destination] == [
        (misplaced.bundles.ids[0], Stage.POLICY, "c:6650")
    ]


def test_where_nothing_must_go_it_is_the_strategys_own_decision_and_memory():
    uneven = model(UNEVEN, {"a": [Hot(0.4, out_bytes_s=4e6), Hot(0.3, out_bytes_s=3e6)], "b": [0.1], "c": [0.1]})
    assert STRATEGIES.make("transfer").decide(uneven, AT_ONCE) == Transfer().decide(uneven, AT_ONCE)
    assert STRATEGIES.make("transfer").name == "transfer"


def test_while_it_evacuates_the_strategys_memory_stays():
    drained = model({"a": Host(0.2, draining=True), "b": 0.2}, {"a": [Hot(0.1)]})
    assert STRATEGIES.make("avg").decide(drained, Settings(), "kept").memory == "kept"
