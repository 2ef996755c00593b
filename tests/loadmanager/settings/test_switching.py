"""What changed settings do to two running brokers: strategy and placement are switched, rounds stop, reports change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from loadmanager import Broker, Bundle
from loadmanager.errors import Invalid, LoadManagerError, NotFound
from loadmanager.leader.rebalancing.rounds import Rebalancer
from loadmanager.model.load import BrokerLoadData
from loadmanager.settings import Settings, descriptions
from loadmanager.settings.catalogue import PLACEMENT_CLASSES, STRATEGY_CLASSES
from loadmanager.strategies.placement.rendezvous import rendezvous
from loadmanager.strategies.registry import SwitchedPlacement
from statechannel.law.record import BrokerId as Member
from tests.loadmanager.embedded import Host, bundles_of, cluster, embedded, until

OTHER = "shop/orders"


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncGenerator[list[Broker]]:
    """Two, with a round every tenth of a second, and as many reports if loads change."""
    async with cluster(tmp_path, Host(), Host(), balancing_interval_s=0.1, load_window_s=0.6) as both:
        yield both


async def set_(broker: Broker, name: str, value: object, author: str = "ann") -> None:
    await broker.ask(lambda node: node.live.set(name, value, seen=None, author=author, reason=""))


def settings_of(broker: Broker) -> Settings:
    return broker.node.settings


def rebalancer_of(brokers: list[Broker]) -> Rebalancer | None:
    """The leader's, once it has begun a term."""
    return next((b.node.current.rebalancer for b in brokers if b.node.current.rebalancer.running is not None), None)


async def until_rounds(brokers: list[Broker], says: Any) -> None:
    """Until the leader's newest round began after this call, and `says` holds of it."""
    rebalancer = rebalancer_of(brokers)
    seen = None if rebalancer is None or rebalancer.last is None else rebalancer.last.id

    def held() -> bool:
        now = rebalancer_of(brokers)
        return now is not None and now.last is not None and now.last.id != seen and says(now.last)

    await until(held)


async def test_the_placement_is_switched_at_every_broker_and_back(brokers: list[Broker]) -> None:
    await set_(brokers[0], "placement", "rendezvous")
    for broker in brokers:
        await until(lambda b=broker: settings_of(b).placement == "rendezvous")
    await brokers[0].ensure_namespace(OTHER, 32)
    await until(lambda: brokers[1].node.channel.table.namespace(OTHER) is not None)
    ids = [broker.node.current.me for broker in brokers]
    for number in range(64):
        located = await brokers[number % 2].locate(f"{OTHER}/{number}")
        assert located.owner == min(ids, key=lambda each: rendezvous(located.bundle, each))
    await brokers[1].ask(lambda node: node.live.unset("placement", seen=None, author="ann", reason=""))
    await until(lambda: settings_of(brokers[0]).placement == "least-loaded")


@pytest.mark.parametrize("strategy", ["transfer", "threshold", "plan"])
async def test_the_strategy_is_switched_while_rounds_go_on(brokers: list[Broker], strategy: str) -> None:
    await set_(brokers[1], "balancing_strategy", strategy)
    await until_rounds(brokers, lambda this: this.settings.balancing_strategy == strategy)
    rebalancer = rebalancer_of(brokers)
    assert rebalancer is not None
    assert rebalancer.counts.rounds_failed == 0
    with pytest.raises(Invalid, match="set it to one of: "):
        await set_(brokers[0], "balancing_strategy", "guess")


async def test_the_master_switch_stops_rounds_from_deciding(brokers: list[Broker]) -> None:
    await until_rounds(brokers, lambda this: this.model is not None)
    await set_(brokers[0], "balancing", False)
    await until_rounds(brokers, lambda this: this.model is None and "off" in this.decision.reason)
    await set_(brokers[1], "balancing", True)
    await until_rounds(brokers, lambda this: this.model is not None)


async def test_reports_follow(brokers: list[Broker]) -> None:
    """By default the next report of a load that does not change comes after 15 minutes."""
    one, other = brokers

    def reported_ms() -> int:
        load = other.node.views.brokers.get(one.name)
        return -1 if load is None else load.sampled_ms

    await until(lambda: reported_ms() > 0)
    await set_(other, "load_report_max_interval_s", 10)
    await set_(other, "loadBalancerReportUpdateMaxIntervalMinutes", 0.01)
    seen = reported_ms()
    for _ in range(3):
        await until(lambda seen=seen: reported_ms() > seen)
        seen = reported_ms()


async def test_a_hook_that_begins_now_has_the_time_that_the_settings_say_now(tmp_path: Path) -> None:
    class Slow(Host):
        async def prepare(self, bundle: Bundle) -> None:
            await asyncio.Event().wait()

    async with cluster(tmp_path, Host(), Slow(), host_acquire_timeout_s=100.0) as (one, other):
        await set_(one, "host_acquire_timeout_s", 0.1)
        await until(lambda: settings_of(other).host_prepare_timeout_s == 0.1)
        moved = bundles_of(one)[0]
        async with asyncio.timeout(60):
            with pytest.raises(LoadManagerError):
                await one.transfer(moved, other.name)
        assert any("prepare" in note.text for note in other.node.notes)


async def test_load_data_live_as_long_as_the_settings_say_now(brokers: list[Broker]) -> None:
    """A broker that died leaves its report behind."""
    one, other = brokers
    ghost = BrokerLoadData(Member("ghost:1", 1), 0)
    await one.ask(lambda node: node.views.brokers.put("ghost:1", ghost))
    await until(lambda: "ghost:1" in other.node.views.brokers)
    await set_(one, "load_report_max_interval_s", 0.25)
    await until(lambda: "ghost:1" not in other.node.views.brokers)
    await until(lambda: one.name in other.node.views.brokers)
    with pytest.raises(NotFound, match="load_ttl_s cannot be set: twice load_report_max_interval_s"):
        await set_(other, "load_ttl_s", 0.3)


async def test_a_broker_that_joins_goes_by_them_from_its_first_moment(tmp_path: Path) -> None:
    async with cluster(tmp_path, Host()) as (one,):
        await set_(one, "lookup_timeout_s", 3)
    again = embedded(tmp_path)
    await again.start()
    try:
        assert settings_of(again).lookup_timeout_s == 3
    finally:
        await again.stop(0)


def test_pulsars_words_mean_what_is_installed() -> None:
    from loadmanager.strategies.registry import PLACEMENTS, STRATEGIES

    assert set(STRATEGY_CLASSES.values()) <= set(STRATEGIES.names())
    assert set(PLACEMENT_CLASSES.values()) <= set(PLACEMENTS.names())
    assert descriptions()["balancing_strategy"].default in STRATEGIES.names()
    assert SwitchedPlacement(Settings).name == descriptions()["placement"].default
