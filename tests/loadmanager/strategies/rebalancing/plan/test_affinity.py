"""Counts of a group's other namespaces follow the plan's moves, also for the namespace that was asked for last."""

from __future__ import annotations

import pytest

from loadmanager.strategies.rebalancing.plan.eligibility import Affinity
from tests.loadmanager.strategies.rebalancing.cluster_models import Host, Hot, model


def spread(domains: bool) -> Affinity:
    """Namespaces x and y of a group on a, z of it on b; c has none."""
    hosts = {name: Host(domain=f"zone-{name}" if domains else "") for name in "abc"}
    bundles = {"a": [Hot(namespace="t/x", group="g"), Hot(namespace="t/y", group="g")]}
    return Affinity(model(hosts, {**bundles, "b": [Hot(namespace="t/z", group="g")]}))


@pytest.mark.parametrize("domains", [True, False])
def test_counts_follow_a_move_of_the_same_and_of_another_namespace(domains: bool):
    affinity = spread(domains)
    x, y, _ = range(3)
    a, b, c = range(3)
    assert affinity.others(x)[1].tolist() == [1, 1, 0]
    affinity.move(y, a, c)
    assert affinity.others(x)[1].tolist() == [0, 1, 1]
    assert affinity.others(x)[0].tolist() == ([0, 1, 1] if domains else [0, 0, 0])
    affinity.move(x, a, b)
    assert affinity.others(x)[1].tolist() == [0, 1, 1], "it does not count itself"
    assert affinity.others(y)[1].tolist() == [0, 2, 0]
    assert affinity.held_by(x).tolist() == [0, 1, 0]
