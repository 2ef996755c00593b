"""The counter service while its bundles are split, spread and merged by load: nothing fails, nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadmanager import Broker
from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.ledger import Ledger
from loadmanager.demo.counter.load import Load
from loadmanager.demo.counter.service import Counters, served
from loadmanager.demo.counter.traffic import Traffic
from loadmanager.leader.splitting.owner import Journal, What
from loadmanager.settings import Settings
from loadmanager_api.server import attach
from statechannel.law.bundle import Key
from statechannel.law.transitions import State
from tests.loadmanager.embedded import until

NAMESPACE = "demo/counters"
PATIENCE_S = 60.0
QUICK: dict[str, Any] = {
    "drain_timeout_s": 5.0,
    "load_window_s": 2.0,
    "split_interval_s": 0.3,
    "split_hits": 1,
    "split_max_rate_msg_s": 100.0,
    "split_max_sessions": 0,
    "namespace_min_bundles": 2,
    "merge_rest_s": 3600.0,
    "weight_cpu": 0.0,  # brokers of one process share it
    "capacity": {"rate_msg_s": 1000.0},
    "balancing_interval_s": 3600.0,  # only what splits ask for moves
}


@asynccontextmanager
async def counting(
    directory: Path, brokers: int, bundles: int, **settings: Any
) -> AsyncGenerator[tuple[list[Broker], HttpRouter]]:
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(_member(directory, QUICK | settings)) for _ in range(brokers)]
        await running[0].ensure_namespace(NAMESPACE, bundles)
        for broker in running:
            await until(lambda b=broker: len(b.node.peers()) == brokers and len(b.node.channel.table) == bundles)
        http = await stack.enter_async_context(HttpRouter(Router(f"http://{b.name}" for b in running)))
        yield running, http


@asynccontextmanager
async def _member(directory: Path, settings: dict[str, Any]) -> AsyncGenerator[Broker]:
    async with Ledger(directory / "counters.db") as ledger:
        counters = Counters(ledger)
        async with served(counters) as url:
            chosen = Settings(log=f"sqlite:{directory}/cluster.db", **settings)
            counters.broker = Broker(counters, chosen, urls={"http": url}, endpoint=attach)
            async with counters.broker as broker:
                ledger.broker = broker.name
                yield broker


def owners(brokers: list[Broker]) -> Counter[str]:
    table = brokers[0].node.channel.table
    return Counter(entry.holder.name for entry in table if entry.holder is not None and entry.state is State.ASSIGNED)


def journals(brokers: list[Broker]) -> list[Journal]:
    return [broker.node.current.splitting.journal for broker in brokers]


def happened(brokers: list[Broker], what: What) -> int:
    return sum(journal.counts[what] for journal in journals(brokers))


@asynccontextmanager
async def traffic(http: HttpRouter, store: Path, of: Traffic) -> AsyncGenerator[Load]:
    """Requests all the while; at the end none of them has failed, and each was counted once."""
    load = Load(http, of, PATIENCE_S)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(load.run())
        yield load
        load.stop()
        await running
    found = load.settle(store)
    assert (found.failed, found.lost, found.doubled, found.examples) == (0, 0, 0, ())
    assert found.stored == found.ok > 50


@pytest.mark.slow
async def test_hot_bundle_splits_by_itself_and_spreads_without_a_failed_request(tmp_path: Path):
    async with counting(tmp_path, 3, 1, split_algorithm="load_equally_divide") as (brokers, http):
        even = Traffic(NAMESPACE, rate_s=150, topics=40, skew=0.0)
        async with traffic(http, tmp_path / "counters.db", even) as load:
            await until(lambda: happened(brokers, What.SPLIT) >= 1)
            await until(lambda: len(owners(brokers)) == 3)
            done = len(load.acknowledged)
            await until(lambda: len(load.acknowledged) > done + 100)
            # before the brokers end: a split that is under way then fails
            splits = sum((journal.splits for journal in journals(brokers)), Counter[tuple[str, str]]())
    assert splits["Success", "MsgRate"] >= 1
    assert not [key for key in splits if key[0] == "Failure"]
    assert len(brokers[0].node.channel.table) >= 3, "n parts, not two"
    first = next(e for j in journals(brokers) for e in j.events if e.what is What.SPLIT)
    assert "messages/s of 100" in first.why
    assert "by load_equally_divide" in first.why


async def test_a_single_hot_key_gets_a_bundle_of_its_own(tmp_path: Path):
    async with counting(tmp_path, 2, 1) as (brokers, http):
        skewed = Traffic(NAMESPACE, rate_s=120, topics=20, skew=4.0, drift_s=3600.0)
        async with traffic(http, tmp_path / "counters.db", skewed):
            position = Key.parse(skewed.names[0]).position
            await until(lambda: any(e.bundle.hi - e.bundle.lo == 1 for e in brokers[0].node.channel.table))
        alone = next(entry.bundle for entry in brokers[0].node.channel.table if entry.bundle.hi - entry.bundle.lo == 1)
        assert alone.lo == position
        assert len(brokers[0].node.channel.table) == 3, "nobody chased it through equal halves"


async def test_cold_neighbours_are_merged_down_to_the_least_number_under_traffic(tmp_path: Path):
    calm = {"split_max_rate_msg_s": 10_000.0, "merge": True, "merge_rest_s": 1.0}
    async with counting(tmp_path, 1, 8, **calm) as (brokers, http):
        async with traffic(http, tmp_path / "counters.db", Traffic(NAMESPACE, rate_s=60, topics=40)):
            await until(lambda: len(brokers[0].node.channel.table) == 2)
        assert happened(brokers, What.MERGED) >= 1
        assert happened(brokers, What.SPLIT) == 0


async def test_with_the_master_switch_off_nothing_is_split_and_it_is_said_why(tmp_path: Path):
    async with counting(tmp_path, 1, 1, balancing=False) as (brokers, http):
        async with traffic(http, tmp_path / "counters.db", Traffic(NAMESPACE, rate_s=150, topics=40)) as load:
            await until(lambda: journals(brokers)[0].looked_ms > 0 and len(load.acknowledged) > 100)
        assert journals(brokers)[0].idle == "the setting balancing is off"
        assert len(brokers[0].node.channel.table) == 1
