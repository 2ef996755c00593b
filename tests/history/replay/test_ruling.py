"""What policies and earlier moves forbade in life, they forbid in a replay: read from the record, strategies see it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from pyspark.sql import SparkSession

from loadmanager.decisions.codec import encode
from loadmanager.decisions.record import record_of
from loadmanager.history.lake import Lake
from loadmanager.history.replay import Options, replay
from loadmanager.history.replay.cost import Gaps
from loadmanager.history.replay.game import Recorded, RecordedGame, Rest, recorded, sliced
from loadmanager.history.replay.play import played_out
from loadmanager.history.replay.ruling import ruling
from loadmanager.model.cluster import ALLOWED, FREE, ClusterModel, Constraints, unconstrained
from loadmanager.settings import Settings
from loadmanager.strategies.playground.cluster import Conditions, SimulatedCluster, observe
from loadmanager.strategies.playground.scenario import broker_names
from loadmanager.strategies.rebalancing.decision import Decision
from statechannel.law.bundle import Bundle
from tests.history.replay.games import game, lopsided
from tests.history.replay.written import BEGIN_US, SECOND, History, frame, written
from tests.installed import install
from tests.simulation.balance.strategies import Scripted, move

BASE = Settings(load_report_max_interval_s=60)
RULES = ("pinned to a", "isolation policy 'pay'")


def seen(scenario: Recorded, top: int = 4) -> ClusterModel:
    """What a leader would have seen in the first round: a few bundles of each broker."""
    cluster = SimulatedCluster(scenario, BASE)
    return observe(cluster, BASE, Conditions(top_bundles=top), np.random.default_rng(0)).model


def laid_down(model: ClusterModel, **changes: object) -> bytes:
    """The record of a decision made under these rules."""
    brokers, bundles = len(model.brokers), len(model.bundles)
    free = unconstrained(brokers, bundles, BASE.bundle_rest_s)
    ruled = ClusterModel(
        model.brokers, model.bundles, msgspec.structs.replace(free, rules=RULES, **changes), model.at_ms
    )
    leader = model.brokers.ids[0]
    record = record_of("1.1", leader, 1, Decision((), "nothing"), strategy="plan", settings=BASE, model=ruled)
    return encode(record)


def recorded_of(history: History, rounds: int) -> RecordedGame:
    made = recorded(sliced(history.table(), frame(rounds)), 0.9)
    assert isinstance(made, RecordedGame), made
    return made


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scripted:
    """A strategy that looks and does nothing."""
    looking = Scripted(lambda model, at: [], "still")
    install(monkeypatch, tmp_path, {"still": lambda: looking})
    return looking


def test_bundles_that_are_fixed_or_forbidden_somewhere_are_so_for_every_candidate(watching: Scripted) -> None:
    history = written(lopsided(6))
    model = seen(recorded_of(history, 6).scenario)
    fixed = np.full(len(model.bundles), FREE, np.int16)
    fixed[0] = 0
    forbidden = np.full((2, 4), ALLOWED, np.int16)
    forbidden[1, 3] = 1
    kind = np.zeros(len(model.bundles), np.int64)
    kind[5] = 1
    rest_s = np.full(len(model.bundles), BASE.bundle_rest_s)
    rest_s[7] = 5.0
    history.decisions = [(BEGIN_US, laid_down(model, fixed=fixed, forbidden=forbidden, kind=kind, rest_s=rest_s))]
    scenario = recorded_of(history, 6).scenario
    played_out(scenario, "still", BASE.model_copy(update={"bundle_rest_s": 77.0}))
    found = watching.models[3]
    rows = {bundle: row for row, bundle in enumerate(found.bundles.ids)}
    pinned, isolated, brief = (rows[model.bundles.ids[row]] for row in (0, 5, 7))
    constraints = found.constraints
    assert constraints.rules == RULES
    assert constraints.fixed[pinned] == 0
    assert constraints.forbidden[constraints.kind[isolated]].tolist() == [ALLOWED, ALLOWED, ALLOWED, 1]
    others = [row for row in range(len(rows)) if row not in (pinned, isolated)]
    assert (constraints.fixed[others] == FREE).all()
    assert (constraints.forbidden[constraints.kind[others]] == ALLOWED).all()
    assert constraints.rest_s[brief] == 5.0, "a policy says so"
    looked_at = [rows[bundle] for bundle in model.bundles.ids]
    assert set(constraints.rest_s[[row for row in looked_at if row != brief]]) == {77.0}


def test_a_strategy_that_moves_what_is_fixed_breaks_a_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    history = written(lopsided(3))
    model = seen(recorded_of(history, 3).scenario, top=100)
    history.decisions = [(BEGIN_US, laid_down(model, fixed=np.zeros(len(model.bundles), np.int16)))]
    scenario = recorded_of(history, 3).scenario
    install(monkeypatch, tmp_path, {"careless": lambda: Scripted(lambda model, at: [move(model, 0, 1)], "careless")})
    with pytest.raises(AssertionError, match="fixed: pinned to a"):
        played_out(scenario, "careless", BASE)
    assert not played_out(scenario, "plan", BASE).steps, "everything is pinned"


def test_what_a_decision_did_not_look_at_goes_by_its_namespace_and_its_part_of_the_ring() -> None:
    whole = Bundle("a/b", 0, 2**31)
    history = written(lopsided(3))
    model = seen(recorded_of(history, 3).scenario)
    few = msgspec.structs.replace(model.bundles, ids=[whole, *model.bundles.ids[1:]])
    kind = np.zeros(len(few), np.int64)
    kind[0] = 1
    forbidden = np.full((2, 4), ALLOWED, np.int16)
    forbidden[1, 2] = 1
    data = laid_down(msgspec.structs.replace(model, bundles=few), kind=kind, forbidden=forbidden)
    bundles = (Bundle("a/b", 0, 2**30), Bundle("a/b", 2**31, 2**32 - 1), Bundle("new/one", 0, 2**32 - 1))
    found = ruling(data, [*broker_names(4), "later:1"], bundles)
    assert found is not None
    told = [found.allowed(row).tolist() for row in range(3)]
    assert told == [[True, True, False, True, True], [True, True, False, True, True], [True] * 5]
    assert ruling(b"DR damaged", broker_names(4), bundles) is None


def test_groups_are_counted_by_the_placement_of_the_game(watching: Scripted) -> None:
    history = written(lopsided(4))
    scenario = recorded_of(history, 4).scenario
    model = seen(scenario)
    group = np.where(model.bundles.namespace <= 1, 0, FREE)
    presence, here = np.zeros((1, 4), np.int64), np.zeros((len(model.bundles.namespaces), 4), np.int64)
    data = laid_down(model, group=group, groups=("g",), presence=presence, namespace_here=here)
    history.decisions = [(BEGIN_US, data)]
    scenario = recorded_of(history, 4).scenario
    played_out(scenario, "still", BASE)
    constraints: Constraints = watching.models[0].constraints
    assert constraints.presence is not None
    assert constraints.namespace_here is not None
    for broker in range(4):
        there = scenario.namespace[scenario.home == broker].tolist()
        assert constraints.namespace_here[0, broker] == there.count(0)
        assert constraints.presence[0, broker] == len({0, 1} & set(there))
    assert not constraints.namespace_here[2:].any()


def test_a_bundle_that_was_moved_before_the_game_rests_in_it(watching: Scripted) -> None:
    loads = np.full((4, 3), 3.0)
    free = game(loads, [0, 0, 0], brokers=2)
    resting = msgspec.structs.replace(free, rests=tuple(Rest(-2, row, 1, free.load[0, row]) for row in range(3)))
    settings = Settings(bundle_rest_s=3600)
    played_out(resting, "still", settings)
    assert watching.models[1].bundles.moved_s.tolist() == [180.0] * 3
    assert dict(watching.models[1].bundles.left) == {0: (1,), 1: (1,), 2: (1,)}
    assert played_out(free, "plan", settings).steps
    assert not played_out(resting, "plan", settings).steps


def test_policies_of_the_record_hold_in_the_job(spark: SparkSession, lake: Lake) -> None:
    """The same past, once with a decision that says that everything is pinned; in the second window nobody knows."""
    history = written(lopsided(usage=0.33))
    model = seen(recorded_of(history, 60).scenario, top=100)
    history.decisions = [(BEGIN_US + 30 * SECOND, laid_down(model, fixed=np.zeros(len(model.bundles), np.int16)))]
    history.save(lake)
    options = Options(window_s=2400.0, settings=BASE, gaps=Gaps(), parallelism=1)
    result = replay(lake, candidates=["plan"], options=options)
    assert [(row.ruled, row.moves == 0) for row in result.rows] == [(True, True), (False, False)]
    assert (result.windows, result.ruled) == (2, 1)
