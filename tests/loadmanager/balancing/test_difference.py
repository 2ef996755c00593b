"""The difference strategy: which bundle it takes, whom it leaves alone, what it says, and that it comes to rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loadmanager.balancing.difference import Difference
from loadmanager.balancing.model import BrokerState, BundleState, ClusterModel, Decision
from loadmanager.balancing.registry import STRATEGIES
from loadmanager.load.usage import Usage
from loadmanager.settings import Settings
from statechannel.bundle import Bundle, even_boundaries, tile
from statechannel.record import Broker

STRATEGY = Difference()
SETTINGS = Settings(balancing_tolerance=0.1, balancing_moves_per_round=3, bundle_rest_s=1800)
A, B, C = (Broker(f"{name}:6650", 1) for name in "abc")
BUNDLES = tile("public/default", even_boundaries(64))


def cpu(fraction: float) -> Usage:
    return Usage((fraction, 0.0, 0.0, 0.0, 0.0))


def brokers(usages: Mapping[Broker, float | None]) -> tuple[BrokerState, ...]:
    return tuple(BrokerState(each, None if used is None else cpu(used)) for each, used in usages.items())


def bundles(owner: Broker, *usages: float, first: int = 0) -> tuple[BundleState, ...]:
    return tuple(BundleState(BUNDLES[first + i], owner, cpu(used)) for i, used in enumerate(usages))


def decide(states: Sequence[BrokerState], hot: Sequence[BundleState], settings: Settings = SETTINGS) -> Decision:
    return STRATEGY.decide(ClusterModel(tuple(states), tuple(hot)), settings)


def test_a_balanced_cluster_is_left_alone_and_it_says_so() -> None:
    decision = decide(brokers({A: 0.5, B: 0.41}), bundles(A, 0.05, 0.04))
    assert decision.moves == ()
    assert decision.reason == "nothing moved: balanced, a:6650 50%, b:6650 41%, 9 points apart (tolerance 10)"


def test_the_bundle_that_narrows_most_goes_from_the_fullest_to_the_emptiest() -> None:
    decision = decide(brokers({A: 0.9, B: 0.5, C: 0.3}), bundles(A, 0.6, 0.28, 0.1), SETTINGS)
    first = decision.moves[0]
    assert (first.bundle, first.source, first.destination) == (BUNDLES[1], A, C)
    assert first.reason == (
        "a:6650 90% to 62%, c:6650 30% to 58%: the difference falls from 60 to 4 points (tolerance 10) "
        "by a bundle of 28.0% cpu"
    )
    assert first.gain == pytest.approx(0.56)


def test_moves_of_one_round_count_each_other() -> None:
    decision = decide(brokers({A: 0.9, B: 0.1, C: 0.2}), bundles(A, 0.2, 0.2, 0.2, 0.2))
    assert [(move.source, move.destination) for move in decision.moves] == [(A, B), (A, C)]
    assert (decision.spread_before, decision.spread_after) == (pytest.approx(0.8), pytest.approx(0.2))
    assert decision.reason == "2 move(s): the spread falls from 80 to 20 points (tolerance 10)"


def test_it_moves_no_more_in_a_round_than_it_may() -> None:
    rules = Settings(balancing_moves_per_round=2)
    decision = decide(brokers({A: 0.9, B: 0.0}), bundles(A, *[0.02] * 20), rules)
    assert len(decision.moves) == 2


def test_one_bundle_that_is_the_whole_load_stays() -> None:
    decision = decide(brokers({A: 0.8, B: 0.0}), bundles(A, 0.8))
    assert decision.moves == ()
    assert "nothing moved although a:6650 80%, b:6650 0%, 80 points apart" in decision.reason
    assert "each of 1 bundles (up to 80.0%) is too large" in decision.reason


def test_the_difference_may_turn_around_only_to_within_the_tolerance() -> None:
    assert len(decide(brokers({A: 0.5, B: 0.0}), bundles(A, 0.3)).moves) == 1
    assert decide(brokers({A: 0.5, B: 0.0}), bundles(A, 0.31)).moves == ()


def test_what_rests_or_is_in_flight_is_not_moved_and_named() -> None:
    resting, flying, free = bundles(A, 0.3, 0.3, 0.1)
    hot = [
        msgspec.structs.replace(resting, moved_s=60.0),
        msgspec.structs.replace(flying, in_flight=True),
        msgspec.structs.replace(free, moved_s=1800.0),
    ]
    decision = decide(brokers({A: 0.9, B: 0.1}), hot)
    assert [move.bundle for move in decision.moves] == [free.bundle]
    assert [(each.subject, each.rule) for each in decision.refused][:2] == [
        (str(resting.bundle), "resting"),
        (str(flying.bundle), "in flight"),
    ]


def test_brokers_that_drain_or_say_nothing_take_no_part() -> None:
    draining = BrokerState(B, cpu(0.0), draining=True)
    silent = BrokerState(Broker("silent:6650", 1), None)
    states = [*brokers({A: 0.9, C: 0.5}), draining, silent]
    decision = decide(states, bundles(A, 0.2))
    assert [move.destination for move in decision.moves] == [C]
    assert {(each.subject, each.rule) for each in decision.refused} >= {
        ("b:6650", "draining"),
        ("silent:6650", "no fresh load data"),
    }


def test_with_fewer_than_two_brokers_it_says_what_is_missing() -> None:
    decision = decide(brokers({A: 0.9, B: None}), bundles(A, 0.2))
    assert decision.moves == ()
    assert decision.reason == ("nothing moved: 1 broker(s) can take part, two are needed (b:6650: no fresh load data)")


def test_a_broker_with_nothing_to_give_holds_nobody_up() -> None:
    decision = decide(brokers({A: 0.95, B: 0.7, C: 0.1}), bundles(B, 0.2))
    assert [(move.source, move.destination) for move in decision.moves] == [(B, C)]
    assert ("a:6650", "nothing to give") in {(each.subject, each.rule) for each in decision.refused}


def test_a_bundle_does_not_go_back_to_where_it_came_from() -> None:
    (hot,) = bundles(A, 0.2)
    back = msgspec.structs.replace(hot, left=frozenset({B.name}), moved_s=9999.0)
    assert decide(brokers({A: 0.9, B: 0.1}), [back]).moves == ()
    assert [move.destination for move in decide(brokers({A: 0.9, B: 0.1, C: 0.2}), [back]).moves] == [C]


def test_a_larger_broker_takes_more_work_for_the_same_usage() -> None:
    small, large = BrokerState(A, cpu(0.9), {"cpu": 2}), BrokerState(B, cpu(0.3), {"cpu": 8})
    decision = decide([small, large], bundles(A, 0.5, 0.3))
    assert decision.moves[0].bundle == BUNDLES[0]
    assert "b:6650 30% to 42%" in decision.moves[0].reason


def test_a_bundle_heavy_in_bytes_relieves_a_broker_that_is_full_in_bytes() -> None:
    full_in_bytes = BrokerState(A, Usage((0.2, 0.0, 0.9, 0.0, 0.0)))
    heavy_cpu = BundleState(BUNDLES[0], A, Usage((0.19, 0.0, 0.0, 0.0, 0.0)))
    heavy_bytes = BundleState(BUNDLES[1], A, Usage((0.01, 0.0, 0.4, 0.0, 0.0)))
    decision = decide([full_in_bytes, BrokerState(B, cpu(0.1))], [heavy_cpu, heavy_bytes])
    assert [move.bundle for move in decision.moves] == [BUNDLES[1]]
    assert "40.0% bandwidth in" in decision.moves[0].reason


def test_a_bundle_that_would_not_relieve_its_broker_stays_even_if_it_would_fill_the_other() -> None:
    full_in_bytes = BrokerState(A, Usage((0.5, 0.0, 0.9, 0.0, 0.0)))
    only_cpu = BundleState(BUNDLES[0], A, Usage((0.5, 0.0, 0.0, 0.0, 0.0)))
    assert decide([full_in_bytes, BrokerState(B, cpu(0.1))], [only_cpu]).moves == ()


def test_tiny_bundles_are_not_worth_a_hand_over() -> None:
    assert decide(brokers({A: 0.9, B: 0.1}), bundles(A, *[0.004] * 10)).moves == ()


# --- it comes to rest


class World:
    """Constant loads, all reported; moves happen at once. Each round is one rest time after the last."""

    def __init__(
        self, load: Mapping[Bundle, float], owner: Mapping[Bundle, Broker], cores: Mapping[Broker, float]
    ) -> None:
        self.load, self.owner, self.cores = load, dict(owner), cores
        self.left: dict[Bundle, frozenset[str]] = {}

    def usage(self, broker: Broker) -> float:
        return sum(self.load[b] for b, owner in self.owner.items() if owner == broker) / self.cores[broker]

    def model(self) -> ClusterModel:
        states = [BrokerState(each, cpu(self.usage(each)), {"cpu": self.cores[each]}) for each in self.cores]
        hot = [
            BundleState(b, owner, cpu(self.load[b] / self.cores[owner]), 9999.0 if b in self.left else None,
                        self.left.get(b, frozenset()))
            for b, owner in self.owner.items()
        ]  # fmt: skip
        return ClusterModel(tuple(states), tuple(hot))

    def peaks(self) -> list[float]:
        return sorted((self.usage(each) for each in self.cores), reverse=True)

    def step(self, settings: Settings, *, remember: bool = True) -> Decision:
        decision = STRATEGY.decide(self.model(), settings)
        for move in decision.moves:
            assert self.owner[move.bundle] == move.source
            self.owner[move.bundle] = move.destination
            if remember:
                self.left[move.bundle] = self.left.get(move.bundle, frozenset()) | {move.source.name}
        return decision


names = [Broker(f"b{i}:6650", 1) for i in range(5)]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    members = names[: draw(st.integers(2, 5))]
    cores = {each: draw(st.sampled_from([1.0, 2.0, 4.0])) for each in members}
    loads = draw(st.lists(st.floats(0, 0.5), min_size=1, max_size=24))
    owner = {BUNDLES[i]: draw(st.sampled_from(members)) for i in range(len(loads))}
    return World({BUNDLES[i]: used for i, used in enumerate(loads)}, owner, cores)


@settings(deadline=None)
@given(worlds(), st.integers(1, 5), st.booleans())
def test_with_constant_loads_it_comes_to_rest_and_each_move_lowers_the_fullest(
    world: World, at_most: int, remember: bool
) -> None:
    """Even if nobody remembers where bundles came from."""
    rules = Settings(balancing_moves_per_round=1, bundle_rest_s=0)
    for _ in range(500):
        before = world.peaks()
        if not world.step(rules, remember=remember).moves:
            break
        assert [round(p, 9) for p in world.peaks()] < [round(p, 9) for p in before]
    else:
        pytest.fail("it is still moving after 500 rounds")
    assert world.step(Settings(balancing_moves_per_round=at_most, bundle_rest_s=0)).moves == ()


@settings(deadline=None)
@given(worlds(), st.integers(1, 5))
def test_no_bundle_ever_goes_back(world: World, at_most: int) -> None:
    rules = Settings(balancing_moves_per_round=at_most)
    visited = {bundle: [owner] for bundle, owner in world.owner.items()}
    while moves := world.step(rules).moves:
        for move in moves:
            assert move.destination not in visited[move.bundle]
            visited[move.bundle].append(move.destination)


@settings(deadline=None)
@given(worlds(), st.integers(1, 5))
def test_what_it_expects_is_what_comes(world: World, at_most: int) -> None:
    decision = world.step(Settings(balancing_moves_per_round=at_most))
    assume(decision.moves)
    peaks = world.peaks()
    assert decision.spread_after == pytest.approx(peaks[0] - peaks[-1], abs=1e-9)


@settings(deadline=None)
@given(worlds())
def test_many_small_bundles_end_up_within_the_tolerance(world: World) -> None:
    small = World(dict.fromkeys(BUNDLES, 0.03), {bundle: next(iter(world.cores)) for bundle in BUNDLES}, world.cores)
    while small.step(SETTINGS).moves:
        pass
    assert small.peaks()[0] - small.peaks()[-1] <= SETTINGS.balancing_tolerance + 1e-9


def test_strategies_go_by_name() -> None:
    assert isinstance(STRATEGIES.make("difference"), Difference)
    assert "difference" in STRATEGIES.names()
    with pytest.raises(ValueError, match=r"'magic' is no balancing_strategy.*difference"):
        STRATEGIES.make("magic")
