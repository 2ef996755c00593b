"""What an agent learns of its service's keys, from services that tell much, little, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from loadmanager.broker.hooks import POSITIONS_LOOKED_AT, Hooks, HookTimeouts, HostRunner, busiest
from loadmanager.model.boundaries import NoCuts
from loadmanager.model.host import BundleLoad, Destination, KeyRate
from loadmanager.settings.choices import Algorithm
from statechannel.law.bundle import FULL_UPPER, Bundle, position_of
from tests.loadmanager.small_world import Service

WHOLE = Bundle("t/n", 0, FULL_UPPER)
LOAD = BundleLoad(keys=3, in_rate_msg_s=100, hottest_keys=(("alice", 80.0),))


class WithPositions(Service):
    async def positions(self, bundle: Bundle) -> list[int]:
        return [bundle.lo + 5, bundle.lo + 9]


class WithRates(Service):
    def rates(self, bundle: Bundle) -> Any:
        return [(bundle.lo + 5, 10.0, 100.0), KeyRate(bundle.lo + 9, 20.0)]


class WithBoth(WithPositions, WithRates):
    pass


class Breaking(Service):
    def rates(self, bundle: Bundle) -> Iterator[KeyRate]:
        yield KeyRate(bundle.lo)
        raise OSError("no statistics")


async def told(service: Service, algorithm: Algorithm, load: BundleLoad = LOAD) -> list[KeyRate] | NoCuts:
    runner = HostRunner()
    times = HookTimeouts(5.0, 5.0, 5.0)
    hooks = Hooks(service, runner, times, lambda to: Destination(to.name, {}), lambda text: None)
    try:
        return await hooks.keys(WHOLE, algorithm, load)
    finally:
        runner.close()


@pytest.mark.parametrize("service", [WithRates, WithBoth])
async def test_a_service_that_knows_rates_is_asked_for_them(service: type[Service]):
    found = await told(service(), Algorithm.LOAD)
    assert not isinstance(found, NoCuts)
    assert sorted(found, key=lambda key: key.position) == [KeyRate(5, 10.0, 100.0), KeyRate(9, 20.0)]


async def test_of_the_number_of_keys_positions_tell_more_than_rates():
    assert await told(WithBoth(), Algorithm.TOPIC_COUNT) == [KeyRate(5), KeyRate(9)]
    found = await told(WithRates(), Algorithm.TOPIC_COUNT)
    assert not isinstance(found, NoCuts)
    assert {key.position for key in found} == {5, 9}


async def test_where_rates_are_not_told_they_are_estimated():
    by_position = await told(WithPositions(), Algorithm.HOT_KEY)
    assert not isinstance(by_position, NoCuts)
    assert {key.position: key.rate_msg_s for key in by_position} == {5: 10.0, 9: 10.0, position_of("alice"): 80.0}
    hottest = await told(Service(), Algorithm.HOT_KEY)
    assert hottest == [KeyRate(position_of("alice"), 80.0, 0.0)]


async def test_silent_or_failing_service_is_a_reason_not_to_cut_by_keys():
    found = await told(Service(), Algorithm.LOAD, BundleLoad())
    assert isinstance(found, NoCuts)
    assert "no `positions`" in found.reason
    for algorithm in (Algorithm.LOAD, Algorithm.TOPIC_COUNT):
        broken = await told(Breaking(), algorithm)
        assert isinstance(broken, NoCuts)
        assert "OSError: no statistics" in broken.reason


def test_of_very_many_keys_the_busiest_are_kept():
    found = busiest(KeyRate(i, float(i)) for i in range(POSITIONS_LOOKED_AT + 100))
    assert len(found) == POSITIONS_LOOKED_AT
    assert min(key.rate_msg_s for key in found) == 100.0
