"""The counter service: served over HTTP by real brokers, counted once whatever moves, its state handed over."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from loadmanager import Broker, Bundle, Key
from loadmanager.broker.node import Node
from loadmanager.channel.operations import Operations
from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.ledger import Ledger
from loadmanager.demo.counter.load import Acknowledged, Load, audit
from loadmanager.demo.counter.service import Counters, served
from loadmanager.demo.counter.traffic import Traffic
from loadmanager.settings.choices import Algorithm
from loadmanager_api.server import attach
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from tests.loadmanager.embedded import PATIENT, until

T = TypeVar("T")

NAMESPACE = "demo/counters"
APPLES = f"persistent://{NAMESPACE}/apples"
PATIENCE_S = 60.0
"""What a request may take: a failure is one that nobody answers, not one that a busy machine answers late."""


@asynccontextmanager
async def counting(directory: Path, brokers: int = 2) -> AsyncGenerator[tuple[list[Broker], HttpRouter]]:
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(_member(directory)) for _ in range(brokers)]
        await running[0].ensure_namespace(NAMESPACE, 8)
        for broker in running:
            await until(lambda b=broker: len(b.node.peers()) == brokers and len(b.node.channel.table) == 8)
        http = await stack.enter_async_context(HttpRouter(Router(f"http://{b.name}" for b in running)))
        yield running, http


@asynccontextmanager
async def _member(directory: Path) -> AsyncGenerator[Broker]:
    async with Ledger(directory / "counters.db") as ledger:
        counters = Counters(ledger)
        async with served(counters) as url:
            log = f"sqlite:{directory}/cluster.db"
            counters.broker = Broker(
                counters, log=log, urls={"http": url}, endpoint=attach, in_flight_timeout_s=PATIENCE_S, **PATIENT
            )
            async with counters.broker as broker:
                ledger.broker = broker.name
                yield broker


async def _count(http: HttpRouter, request_id: str) -> dict[str, object]:
    answer = await http.post(APPLES, "/v1/counters", {"topic": APPLES, "id": request_id})
    assert answer.status == 200, answer.body
    counted: dict[str, object] = answer.json()
    return counted


async def test_an_increment_is_answered_with_value_broker_and_token_and_only_once(tmp_path: Path):
    async with counting(tmp_path) as (_, http):
        first = await _count(http, "r1")
        assert set(first) == {"value", "broker", "token"}
        assert first["value"] == 1
        assert await _count(http, "r1") == first
        assert (await _count(http, "r2"))["value"] == 2
        read = await http.get(APPLES, f"/v1/counters?topic={APPLES}")
        assert read.json()["value"] == 2


async def test_repeated_request_after_a_move_is_believed_despite_its_old_answer(tmp_path: Path):
    async with counting(tmp_path) as (brokers, http):
        first = await _count(http, "r1")
        await _move(brokers, http)
        assert await _count(http, "r1") == first
        second = await _count(http, "r2")
        assert second["value"] == 2
        assert second["broker"] != first["broker"]
        assert str(second["token"]) > str(first["token"])


async def _move(brokers: list[Broker], http: HttpRouter) -> None:
    known = await http.router.route(APPLES)
    other = next(broker for broker in brokers if broker.name != known.broker)
    await brokers[0].transfer(known.bundle, other.name)


async def test_the_state_goes_with_the_hand_off_not_through_the_file(tmp_path: Path):
    async with counting(tmp_path) as (brokers, http):
        await _count(http, "r1")
        bundle = (await http.router.route(APPLES)).bundle
        await _move(brokers, http)
        entry = brokers[0].node.channel.table.get(bundle)
        assert entry is not None
        loaded = [b.node.host._held[bundle] for b in brokers if bundle in b.node.host._held]  # type: ignore[attr-defined]
        assert [held.values for held in loaded] == [{APPLES: 1}]


@pytest.mark.slow
async def test_nothing_fails_and_nothing_is_lost_or_doubled_while_bundles_wander(tmp_path: Path):
    async with counting(tmp_path) as (brokers, http):
        load = Load(http, Traffic(NAMESPACE, rate_s=150, topics=40), PATIENCE_S)
        bundles = list(brokers[0].node.channel.table)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(load.run())
            await until(lambda: len(load.acknowledged) > 50)
            for entry in bundles:
                owner = brokers[0].node.channel.table.get(entry.bundle)
                assert owner is not None
                if owner.holder is not None:
                    to = next(b for b in brokers if b.name != owner.holder.name)
                    await brokers[0].transfer(entry.bundle, to.name)
            await brokers[1].stop()
            done = len(load.acknowledged)
            await until(lambda: len(load.acknowledged) > done + 50)
            load.stop()
            await running
        found = load.settle(tmp_path / "counters.db")
        assert (found.failed, found.lost, found.doubled, found.examples) == (0, 0, 0, ())
        assert found.stored == found.ok > 100


@pytest.mark.slow
async def test_splits_and_merges_fail_lose_and_double_nothing(tmp_path: Path):
    async with counting(tmp_path) as (brokers, http):
        load = Load(http, Traffic(NAMESPACE, rate_s=150, topics=60), PATIENCE_S)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(load.run())
            await until(lambda: len(load.acknowledged) > 50)
            for whole in await _owned(brokers):
                children = await _reshape(brokers, lambda o, b=whole: o.split(b, parts=4))
                assert len(children) == 4
                await _there_and_back(brokers, random.choice(children))
                assert await _reshape(brokers, lambda o, c=children: o.merge(c)) == whole
            for whole in await _owned(brokers):
                await _reshape(brokers, lambda o, b=whole: o.split(b, parts=2, algorithm=_algorithm_for(b, load)))
            done = len(load.acknowledged)
            await until(lambda: len(load.acknowledged) > done + 50)
            load.stop()
            await running
        found = load.settle(tmp_path / "counters.db")
        assert (found.failed, found.lost, found.doubled, found.examples) == (0, 0, 0, ())
        assert found.stored == found.ok > 100
        assert len(brokers[0].node.channel.table) == 16
        assert _tokens_that_went_back(tmp_path / "counters.db") == []


async def _there_and_back(brokers: list[Broker], bundle: Bundle) -> None:
    """To the other broker, where it no longer touches its neighbours, and home again."""
    entry = await brokers[0].ask(lambda node: _entry(node, bundle))
    home = next(broker for broker in brokers if entry.holder is not None and broker.name == entry.holder.name)
    away = next(broker for broker in brokers if broker is not home)
    await home.transfer(bundle, away.name)
    await away.transfer(bundle, home.name)


async def _entry(node: Node, bundle: Bundle) -> Ownership:
    await node.channel.catch_up(PATIENCE_S)
    return node.current.operations.bundle(bundle)


def _algorithm_for(bundle: Bundle, load: Load) -> Algorithm:
    """By the number of keys where there are enough for it."""
    positions = {Key.parse(answer.topic).position for answer in load.acknowledged}
    return Algorithm.TOPIC_COUNT if sum(p in bundle for p in positions) > 1 else Algorithm.RANGE


async def _owned(brokers: list[Broker]) -> list[Bundle]:
    """All bundles, when each has an owner and every broker knows them."""
    for broker in brokers:
        await broker.ask(lambda node: node.channel.read_back(_partition(node), node.current.me))
    table = brokers[0].node.channel.table
    await until(lambda: all(entry.state is State.ASSIGNED for entry in table))
    return sorted(entry.bundle for entry in table)


def _partition(node: Node) -> int:
    return node.channel.table.partition_of(NAMESPACE)


async def _reshape(brokers: list[Broker], do: Callable[[Operations], Coroutine[Any, Any, T]]) -> T:
    """Asked of either broker: it need not be the owner."""
    asked = random.choice(brokers)
    return await asked.ask(lambda node: do(node.current.operations))


def _tokens_that_went_back(path: Path) -> list[tuple[str, int]]:
    """Increments that were stored under an older token than an earlier one of the same key, with their values."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT topic, value, token FROM increment ORDER BY topic, value").fetchall()
    pairs = itertools.pairwise(rows)
    return [(topic, value) for (before, _, old), (topic, value, new) in pairs if before == topic and new < old]


@pytest.mark.parametrize(
    ("problem", "took_s", "expected"),
    [
        ("", 0.05, {"ok": 1, "late": 0, "failed": 0}),
        ("", 9.9, {"ok": 1, "late": 1, "failed": 0}),
        ("", 11.0, {"ok": 0, "late": 0, "failed": 1}),
        ("503", 0.05, {"ok": 0, "late": 0, "failed": 1}),
    ],
)
async def test_a_request_is_ok_late_or_failed_by_when_it_was_due(problem: str, took_s: float, expected: dict[str, int]):
    async with HttpRouter(Router(["http://127.0.0.1:1"])) as http:
        load = Load(http, Traffic(NAMESPACE, rate_s=1))
        load._count(problem, now_s=100.0 + took_s, due_s=100.0)
    assert {name: getattr(load.snapshot(), name) for name in expected} == expected


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"no json", 400),
        (b'{"topic": 1}', 400),
        (b'{"topic": "nonsense", "id": "1"}', 400),
        (b'{"topic": "no/such/namespace", "id": "1"}', 404),
    ],
)
async def test_what_makes_no_sense_is_refused_by_the_service(tmp_path: Path, body: bytes, status: int):
    async with counting(tmp_path, 1) as (_, http):
        answer = await http.request("POST", APPLES, "/v1/counters", body)
        assert answer.status == status
    assert audit(tmp_path / "counters.db", list[Acknowledged]()).stored == 0
