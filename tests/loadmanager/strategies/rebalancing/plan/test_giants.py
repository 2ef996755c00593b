"""Bundles that no broker can hold within its limit."""

from __future__ import annotations

from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.draft import Draft
from tests.loadmanager.strategies.rebalancing.cluster_models import Host, model

AT_ONCE = Settings(balancing_budget=1.0)


def test_a_giant_goes_first_to_where_it_does_least_harm():
    small = {"large": [0.006] * 100, "other": [0.006] * 100}
    given = model(
        {"small": Host(cpu=1.7, cores=1.0), "large": Host(cpu=0.3, cores=2.0), "other": Host(cpu=0.3, cores=2.0)},
        {"small": [1.5, 0.1, 0.1], **small},
    )
    decision = Plan().decide(given, AT_ONCE)
    first = decision.moves[0]
    giant = given.bundles.ids[int(given.bundles.load[:, 0].argmax())]
    assert first.bundle == giant
    assert first.destination is not None
    assert not [move for move in decision.moves if move.destination == first.destination and move.bundle != giant]


def test_a_giant_stays_where_every_other_place_is_as_bad():
    given = model({"a": 0.9, "b": 0.3, "c": 0.3}, {"a": [0.8, 0.1], "b": [0.1] * 3, "c": [0.1] * 3})
    giant = given.bundles.ids[int(given.bundles.load[:, 0].argmax())]
    assert giant not in [move.bundle for move in Plan().decide(given, AT_ONCE).moves]


def test_two_giants_share_no_broker():
    given = model(
        {"a": 1.6, "b": 0.2, "c": 0.2},
        {"a": [0.8, 0.8], "b": [0.1, 0.1], "c": [0.1, 0.1]},
    )
    decision = Plan().decide(given, AT_ONCE)
    large = {given.bundles.ids[row] for row in Draft(given, AT_ONCE).size.argsort()[-2:]}
    owners = {bundle: given.brokers.ids[given.bundles.owner[row]] for row, bundle in enumerate(given.bundles.ids)}
    owners.update((move.bundle, move.destination) for move in decision.moves if move.destination is not None)
    assert len({owners[bundle] for bundle in large}) == 2
