"""Placements beside the default: Pulsar's, two choices, and rendezvous hashing."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given as property_test
from hypothesis import settings
from hypothesis import strategies as st

from loadmanager.strategies.placement.baselines import LeastResourceUsage, PowerOfTwo
from loadmanager.strategies.placement.placement import Candidate, Given, NoPlace, Placed, Placement
from loadmanager.strategies.placement.rendezvous import Rendezvous
from loadmanager.strategies.registry import PLACEMENTS
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import BrokerId
from tests.loadmanager.strategies.placement.test_least_loaded import candidate_lists

BUNDLES = tile("public/default", even_boundaries(1024))
MANY = [BrokerId(f"broker-{number}:6650", 1) for number in range(8)]
NAMES = ("least-resource-usage", "power-of-two", "rendezvous")
NOTHING_GIVEN = Given()


def choose(placement: Placement, bundle: Bundle, candidates: list[Candidate], given: Given = NOTHING_GIVEN) -> BrokerId:
    outcome = placement.choose(bundle, candidates, given)
    assert isinstance(outcome, Placed)
    return outcome.broker


def with_usages(*usages: float | None) -> list[Candidate]:
    return [Candidate(broker, usage=usage) for broker, usage in zip(MANY, usages, strict=False)]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@property_test(candidate_lists, st.sampled_from(BUNDLES), st.permutations(range(6)))
def test_the_answer_is_eligible_and_the_same_for_every_asker(name: str, cs, bundle: Bundle, order) -> None:
    placement = PLACEMENTS.make(name)
    assert placement.name == name
    outcome = placement.choose(bundle, cs, NOTHING_GIVEN)
    again = placement.choose(bundle, [cs[at] for at in order if at < len(cs)], NOTHING_GIVEN)
    eligible = {c.broker for c in cs if not c.draining and (c.max_bundles is None or c.bundles < c.max_bundles)}
    if isinstance(outcome, NoPlace):
        assert not eligible
        return
    assert isinstance(again, Placed)
    assert outcome.broker == again.broker
    assert outcome.broker in eligible
    assert {each.broker for each in outcome.refused} == {c.broker for c in cs} - eligible
    assert outcome.reason


@pytest.mark.parametrize("name", NAMES)
def test_who_declined_is_asked_again_only_if_there_is_nobody_else(name: str) -> None:
    placement = PLACEMENTS.make(name)
    for bundle in BUNDLES[:20]:
        first = choose(placement, bundle, with_usages(0.1, 0.1))
        assert choose(placement, bundle, with_usages(0.1, 0.1), Given(declined_by=first)) != first
        assert choose(placement, bundle, with_usages(0.1), Given(declined_by=MANY[0])) == MANY[0]


def test_least_resource_usage_chooses_among_those_a_margin_below_the_mean() -> None:
    """10, 60, 70, 80, 80: the mean is 60."""
    five = with_usages(0.1, 0.6, 0.7, 0.8, 0.8)
    assert {choose(LeastResourceUsage(), b, five) for b in BUNDLES} == {MANY[0]}
    assert {choose(LeastResourceUsage(), b, five, Given(margin=0.0)) for b in BUNDLES} == set(MANY[:2])


def test_least_resource_usage_takes_any_broker_if_none_is_well_below_full() -> None:
    six = with_usages(0.40, 0.40, 0.40, 0.40, 0.69, 0.70, None)
    assert {choose(LeastResourceUsage(), b, six) for b in BUNDLES} == set(MANY[:7])


def test_least_resource_usage_does_not_count_what_it_just_gave() -> None:
    two = with_usages(0.1, 0.9)
    assert choose(LeastResourceUsage(), BUNDLES[0], two, Given({MANY[0]: 1000})) == MANY[0]


def test_who_had_it_before_gets_it_back_if_it_is_among_the_best() -> None:
    given = Given(preferred=MANY[1].name)
    assert {choose(LeastResourceUsage(), b, with_usages(0.1, 0.1, 0.9), given) for b in BUNDLES} == {MANY[1]}
    assert {choose(LeastResourceUsage(), b, with_usages(0.1, 0.9, 0.9), given) for b in BUNDLES} == {MANY[0]}


def test_two_choices_never_pick_the_fullest_or_bury_one_on_old_data() -> None:
    old = with_usages(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    placed = Counter(choose(PowerOfTwo(), bundle, old) for bundle in BUNDLES)
    assert placed[MANY[7]] == 0
    assert placed[MANY[0]] < 1024 * 2 / 8 * 1.25, "in a quarter of the pairs"
    counts: list[int] = [placed[broker] for broker in MANY]
    assert counts == sorted(counts, reverse=True)


def test_two_choices_count_what_was_given_and_what_nobody_measured() -> None:
    placed: Counter[BrokerId] = Counter()
    for bundle in BUNDLES:
        placed[choose(PowerOfTwo(), bundle, [Candidate(each) for each in MANY], Given(placed))] += 1
    assert max(placed.values()) - min(placed.values()) <= 8
    given = Given(preferred=MANY[3].name)
    assert {choose(PowerOfTwo(), b, with_usages(*[0.3] * 3, 0.1), given) for b in BUNDLES[:50]} == {MANY[3]}
    assert MANY[3] not in {choose(PowerOfTwo(), b, with_usages(*[0.3] * 3, 0.9), given) for b in BUNDLES[:50]}


def test_rendezvous_is_even_and_a_broker_that_goes_moves_its_own_only() -> None:
    everybody = [Candidate(each, usage=0.9) for each in MANY]
    before = {bundle: choose(Rendezvous(), bundle, everybody) for bundle in BUNDLES}
    assert max(Counter(before.values()).values()) < 128 * 1.3
    after = {bundle: choose(Rendezvous(), bundle, everybody[1:]) for bundle in BUNDLES}
    assert {bundle for bundle in BUNDLES if before[bundle] != after[bundle]} == {
        bundle for bundle, broker in before.items() if broker == MANY[0]
    }
    assert max(Counter(after.values()).values()) < 1024 / 7 * 1.3
