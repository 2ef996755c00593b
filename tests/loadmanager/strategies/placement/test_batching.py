"""Placing many bundles at one instant has the outcome of placing one after the other."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given as property_test
from hypothesis import settings
from hypothesis import strategies as st

from loadmanager.strategies.placement.baselines import PowerOfTwo
from loadmanager.strategies.placement.least_loaded import LeastLoaded, LeastLoadedBatch
from loadmanager.strategies.placement.placement import Candidate, Given, OneByOne, Placed, begin
from loadmanager.strategies.placement.rendezvous import ranks, rendezvous, seeds
from loadmanager.strategies.registry import PLACEMENTS
from statechannel.law.bundle import even_boundaries, tile
from statechannel.law.record import BrokerId

BUNDLES = tile("public/default", even_boundaries(1024))
BROKERS = [BrokerId(f"b{number}:1", 1) for number in range(7)]

usages = st.none() | st.sampled_from([0.0, 0.05, 0.12, 0.5, 0.9]) | st.floats(0, 1.5)
clusters = st.lists(
    st.builds(
        Candidate,
        broker=st.sampled_from(BROKERS),
        bundles=st.integers(0, 60),
        usage=usages,
        reported_bundles=st.integers(0, 60),
        traffic=st.booleans(),
        draining=st.sampled_from([False, False, False, True]),
        max_bundles=st.none() | st.none() | st.integers(0, 70),
    ),
    max_size=7,
    unique_by=lambda each: each.broker,
)
brokers = st.none() | st.none() | st.sampled_from(BROKERS)
questions = st.lists(
    st.tuples(st.sampled_from(BUNDLES), brokers, brokers.map(lambda each: each and each.name), st.booleans()),
    max_size=60,
)
"""Bundle, who declined it, who is preferred, and whether others were given one and lost one meanwhile."""


@pytest.mark.parametrize("name", PLACEMENTS.names())
@settings(deadline=None)
@property_test(clusters, st.dictionaries(st.sampled_from(BROKERS), st.integers(0, 5)), questions, st.integers(0, 8))
def test_the_outcome_is_that_of_one_after_the_other(name: str, cs, already, asked, foreseen) -> None:
    placement = PLACEMENTS.make(name)
    pending = Counter(already)
    batch = begin(placement, cs, Given(already))
    for turn, (bundle, declined, preferred, others) in enumerate(asked):
        if foreseen and turn % foreseen == 0:
            batch.foresee([each[0] for each in asked[turn : turn + foreseen]])
        outcome = placement.choose(bundle, cs, Given(pending, declined, preferred))
        expected = outcome.broker if isinstance(outcome, Placed) else None
        assert batch.choose(bundle, declined, preferred) == expected
        changes = [(expected, 1)] if expected else []
        for broker, change in [*changes, *([(BROKERS[0], 1), (BROKERS[1], -1)] if others else [])]:
            if pending[broker] + change >= 0:
                pending[broker] += change
                batch.gave(broker, change)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("limited", [False, True])
@settings(deadline=None, max_examples=25)
@property_test(st.randoms(use_true_random=False))
def test_close_competitors_are_told_apart_through_a_long_sitting(loaded: bool, limited: bool, dice: Random) -> None:
    """Counts that pass each other, usages around the margin, limits that are reached, bundles that are taken back."""
    base = dice.choice([0, 40])  # where counts are large, ranks weigh more than one bundle
    cs = [
        Candidate(
            each,
            held := base + dice.randint(0, 12),
            dice.uniform(0.1, 0.35) if loaded and dice.random() < 0.9 else None,
            max(0, held - dice.randint(0, 3)),
            max_bundles=held + dice.randint(1, 25) if limited and dice.random() < 0.6 else None,
        )
        for each in BROKERS
    ]
    pending: Counter[BrokerId] = Counter()
    batch = begin(LeastLoaded(), cs, Given(pending))
    for bundle in dice.sample(BUNDLES, 100):
        outcome = LeastLoaded().choose(bundle, cs, Given(pending))
        expected = outcome.broker if isinstance(outcome, Placed) else None
        assert batch.choose(bundle) == expected
        if expected is not None:
            pending[expected] += 1
            batch.gave(expected)
        other = dice.choice(BROKERS)
        if dice.random() < 0.1 and pending[other]:
            pending[other] -= 1
            batch.gave(other, -1)


def test_the_batch_does_not_change_what_the_asker_has_counted() -> None:
    counted = {BROKERS[0]: 1}
    batch = begin(LeastLoaded(), [Candidate(each) for each in BROKERS], Given(counted))
    batch.gave(BROKERS[0])
    assert counted == {BROKERS[0]: 1}


def test_least_loaded_has_a_way_of_its_own_and_others_are_asked_one_by_one() -> None:
    assert isinstance(begin(LeastLoaded(), [], Given()), LeastLoadedBatch)
    assert isinstance(begin(PowerOfTwo(), [], Given()), OneByOne)


@property_test(st.lists(st.sampled_from(BUNDLES), min_size=1, max_size=5), st.lists(st.text(), min_size=1, max_size=5))
def test_ranks_in_columns_are_those_of_single_questions(bundles, names) -> None:
    named = [BrokerId(name, 1) for name in names]
    expected = [[rendezvous(bundle, broker) for broker in named] for bundle in bundles]
    assert np.array_equal(ranks(bundles, seeds(named)), expected)


def test_large_batch_is_even_and_reads_a_usage_only_after_it_changed(monkeypatch) -> None:
    """Counted, not timed: 1,024 bundles for 100 brokers."""
    asked = 0
    from loadmanager.strategies.placement import least_loaded as module

    estimate = module.estimate

    def counting(*arguments):
        nonlocal asked
        asked += 1
        return estimate(*arguments)

    monkeypatch.setattr(module, "estimate", counting)
    many = [Candidate(BrokerId(f"b{number}:1", 1), 5, 0.3, 5) for number in range(100)]
    batch = begin(LeastLoaded(), many, Given())
    placed: Counter[BrokerId] = Counter()
    for bundle in BUNDLES:
        broker = batch.choose(bundle)
        assert broker is not None
        batch.gave(broker)
        placed[broker] += 1
    assert max(placed.values()) - min(placed.values()) <= 2
    assert asked <= 100 + len(BUNDLES)
