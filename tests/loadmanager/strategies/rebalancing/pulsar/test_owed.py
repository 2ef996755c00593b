"""What every strategy owes, of Pulsar's: no forbidden move, the same decision for the same question, a reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmanager.model.cluster import ALLOWED, FREE, ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.pulsar.avg import Avg
from loadmanager.strategies.rebalancing.pulsar.shedder import Tuning
from loadmanager.strategies.rebalancing.pulsar.shedding import Overload, Threshold, Uniform
from loadmanager.strategies.rebalancing.pulsar.transfer import Transfer
from loadmanager.strategies.rebalancing.strategy import Strategy
from tests.loadmanager.strategies.rebalancing.cluster_models import BYTES_OUT, MESSAGES, Host, Hot, model

EAGER = Settings(shedder_hit_count=0, overloaded_percent=50, weight_message_rate=0)
TUNED = Tuning(
    target_std=0.05,
    policy_bundles=True,
    min_throughput_bytes_s=0,
    unload_min_rate_msg_s=0,
    unload_min_throughput_bytes_s=0,
    unload_fraction=0.5,
    high_hits=1,
    low_hits=1,
    lower_boundary=True,
)
OURS: dict[str, Callable[[], Strategy]] = {
    Overload.name: Overload,
    **{each.name: partial(each, TUNED) for each in (Transfer, Threshold, Uniform, Avg)},
}
NAMES = tuple(OURS)

mostly_not = st.sampled_from([False, False, False, True])
hosts = st.builds(
    Host,
    cpu=st.floats(0, 1.2),
    known=mostly_not.map(lambda flag: not flag),
    draining=mostly_not,
    paused=mostly_not,
    max_bundles=st.sampled_from([2, 4, 1000]),
    domain=st.sampled_from(["", "r1", "r2"]),
)
bundles = st.builds(
    Hot,
    cpu=st.floats(0, 0.3),
    out_bytes_s=st.sampled_from([0.0, 1e5, 3e6, 5e7]),
    rate_msg_s=st.sampled_from([0.0, 10.0, 5e3]),
    namespace=st.sampled_from(["public/default", "t/a", "t/b"]),
    in_flight=mostly_not,
    moved_s=st.sampled_from([np.inf, np.inf, 10.0]),
    fixed=st.sampled_from(["", "", "pinned"]),
    forbidden=st.dictionaries(st.sampled_from("abcd"), st.just("isolation policy 'x'"), max_size=2),
)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterModel:
    names = "abcd"[: draw(st.integers(2, 4))]
    owned = {name: draw(st.lists(bundles, max_size=5)) for name in names}
    clipped = {
        owner: [
            Hot(**{**_fields(hot), "forbidden": {n: r for n, r in hot.forbidden.items() if n in names}}) for hot in hots
        ]
        for owner, hots in owned.items()
    }
    return model({name: draw(hosts) for name in names}, clipped, at_ms=draw(st.integers(0, 10)) * 60_000)


def _fields(hot: Hot) -> dict[str, Any]:
    return {name: getattr(hot, name) for name in Hot.__struct_fields__}


def decide(name: str, cluster: ClusterModel, memory: object = None) -> Decision:
    return OURS[name]().decide(cluster, EAGER, memory)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_no_hard_rule_is_broken(name: str, cluster: ClusterModel) -> None:
    brokers, rules = cluster.brokers, cluster.constraints
    closed = brokers.draining | brokers.paused | ~brokers.known
    rows = {bundle: row for row, bundle in enumerate(cluster.bundles.ids)}
    held = brokers.bundles.copy()
    decision = decide(name, cluster)
    assert len({move.bundle for move in decision.moves}) == len(decision.moves)
    for move in decision.moves:
        row, source = rows[move.bundle], brokers.rows[move.source]
        assert cluster.bundles.owner[row] == source
        assert rules.fixed[row] == FREE
        assert not cluster.bundles.in_flight[row]
        assert not closed[source]
        held[source] -= 1
        may = ~closed & (rules.forbidden[rules.kind[row]] == ALLOWED)
        may[source] = False
        if move.destination is None:
            assert may.any(), "nobody else may take it"
            continue
        destination = brokers.rows[move.destination]
        assert may[destination]
        held[destination] += 1
        assert held[destination] <= brokers.max_bundles[destination]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(clusters(), st.integers(1, 3))
def test_the_same_question_gets_the_same_answer(name: str, cluster: ClusterModel, rounds: int) -> None:
    memory: object = None
    for _ in range(rounds):
        digest = cluster.digest
        first, second = (decide(name, cluster, memory) for _ in range(2))
        assert first == second
        assert cluster.digest == digest, "the model was changed"
        memory = first.memory
        hash(first.reason)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_each_decision_says_in_pulsars_words_how_it_ended(name: str, cluster: ClusterModel) -> None:
    decision = decide(name, cluster)
    label, _, rest = decision.reason.partition("/")
    assert label == ("Success" if decision.moves else "Skip")
    cause, _, sentence = rest.partition(": ")
    assert cause.isalpha()
    assert sentence
    assert all(move.reason.startswith(("Overloaded: ", "Underloaded: ")) for move in decision.moves)
    assert all(count > 0 for count in decision.counts.values())


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.floats(0, 0.4), st.integers(0, 4))
def test_a_cluster_of_equals_is_left_alone(name: str, brokers: int, cpu: float, each: int) -> None:
    names = "abcdef"[:brokers]
    used = {BYTES_OUT: 1e6 * each, MESSAGES: 2e3 * each}
    loads = {n: Host(cpu, used=used) for n in names}
    owned = {n: [Hot(cpu / 4, out_bytes_s=1e6, rate_msg_s=2e3)] * each for n in names}
    strategy, memory = OURS[name](), None
    for turn in range(3):
        decision = strategy.decide(model(loads, owned, at_ms=turn * 60_000), EAGER, memory)
        assert not decision.moves
        memory = decision.memory


@pytest.mark.parametrize("name", NAMES)
def test_a_memory_of_another_strategy_is_as_none(name: str) -> None:
    cluster = model({"a": 0.9, "b": 0.1}, {"a": [0.4, 0.4], "b": [0.1]})
    assert decide(name, cluster, object()) == decide(name, cluster)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_cluster_is_no_error(name: str) -> None:
    decision = decide(name, model({}))
    assert not decision.moves
    assert decision.reason.startswith("Skip/NoBrokers: ")
