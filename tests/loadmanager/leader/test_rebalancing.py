"""The leader's balancing rounds: begun with their reason, none in safe mode, and none that a silent log could end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadmanager.leader.plans.plan import Plan
from loadmanager.leader.rebalancing.actions import Subject, pause, resume
from loadmanager.leader.rebalancing.limits import Rule
from loadmanager.leader.rebalancing.rounds import Rebalancer, Round
from loadmanager.strategies.rebalancing.decision import Decision
from statechannel.errors import LogUnavailable
from statechannel.law.record import Action, Record
from statechannel.law.verdict import Change
from tests.installed import install
from tests.loadmanager.small_world import QUICK, Nodes, Started, virtually
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.world import World

BRISK = QUICK.model_copy(update={"balancing_interval_s": 5.0, "bundle_rest_s": 1.0})


async def lopsided(world: World, **settings: Any) -> tuple[Nodes, Started, list[Record]]:
    """Two brokers, one of which has everything; and the transfers that are seen from now on."""
    nodes = Nodes(world, BRISK.model_copy(update=settings))
    a, b = await nodes.ready("a:1", "b:1")
    a.service.cpu_percent_each = b.service.cpu_percent_each = 7.0
    await nodes.own_all(12, a)
    moves: list[Record] = []

    def note(change: Change) -> None:
        if change.record.action is Action.TRANSFER:
            moves.append(change.record)

    a.node.channel.listen(note)
    return nodes, a, moves


def rebalancer(nodes: Nodes) -> Rebalancer:
    leader = nodes.leader()
    assert leader is not None
    return leader.node.current.rebalancer


def last(nodes: Nodes) -> Round:
    found = rebalancer(nodes).last
    assert found is not None
    return found


@virtually
async def test_each_move_of_a_round_carries_its_reason_and_its_round(world: World):
    nodes, _a, moves = await lopsided(world)
    await world.until(lambda: len(moves) >= 2, 30, "it is balanced")
    leader = nodes.leader()
    assert leader is not None
    rebalancer = leader.node.current.rebalancer
    assert rebalancer.last is not None
    assert all(move.reason for move in moves)
    assert {move.cause.split(".")[0] for move in moves} == {str(leader.node.channel.table.lead(0).epoch)}


@virtually
async def test_a_dry_run_moves_nothing(world: World):
    nodes, a, moves = await lopsided(world)
    leader = nodes.leader()
    assert leader is not None
    end = a.node.channel.table.next_offset(0)
    await leader.ask(leader.node.current.rebalancer.decide)
    await asyncio.sleep(1)
    assert a.node.channel.table.next_offset(0) == end
    assert moves == []


@virtually
async def test_nothing_is_balanced_in_safe_mode(world: World):
    nodes, _a, moves = await lopsided(world)
    world.set_down(COORDINATION_SERVER, True)
    await world.until(lambda: all(not s.node.membership.connected for s in nodes.by_name.values()), 5, "noticed")
    moves.clear()
    await asyncio.sleep(20)
    assert moves == []


@virtually
async def test_a_log_that_is_silent_ends_no_broker_and_balancing_goes_on_after_it(world: World):
    nodes, a, moves = await lopsided(world)
    world.set_down("log", True)
    await asyncio.sleep(12)
    world.set_down("log", False)
    await world.until(lambda: len(moves) >= 1, 40, "it balances again")
    assert not a.process.dead
    assert nodes.leader() is not None


@virtually
async def test_what_the_limits_hold_back_begins_within_the_round_as_room_appears(world: World):
    nodes, a, moves = await lopsided(
        world, balancing_interval_s=30.0, balancing_budget=1.0, balancing_moves_per_round=10
    )
    most = 0

    def count(_: Change) -> None:
        nonlocal most
        most = max(most, sum(1 for _ in a.node.channel.table.in_flight()))

    a.node.channel.listen(count)
    await world.until(lambda: rebalancer(nodes).last is not None, 40, "the first round")
    await world.until(lambda: bool(last(nodes).held), 1, "what it could not begin at once is known")
    decided = len(last(nodes).decision.moves)
    assert decided >= 4
    assert [held.rule for held in last(nodes).held] == [Rule.BROKER] * (decided - 1)
    await world.until(lambda: len(moves) == decided, 25, "the whole round has begun")
    assert last(nodes).id == "1.1"
    assert {each.outcome for each in last(nodes).outcomes.values()} == {"begun"}
    assert most == 1


@virtually
async def test_a_pause_stops_at_once_what_still_waits_and_its_end_lets_it_go_on(world: World):
    nodes, a, moves = await lopsided(
        world, balancing_interval_s=60.0, balancing_budget=1.0, balancing_moves_per_round=10
    )
    await world.until(lambda: len(moves) == 1, 70, "the round begins")
    await a.ask(lambda: pause(a.node.policies, Subject(), "ann", "upgrade"))
    await asyncio.sleep(0.1)
    begun = len(moves)
    await asyncio.sleep(8)
    assert len(moves) == begun
    assert {held.rule for held in last(nodes).held} == {Rule.CLUSTER_PAUSED}
    await a.ask(lambda: resume(a.node.policies, Subject(), "ann", ""))
    await world.until(lambda: len(moves) > begun, 5, "the same round goes on")


@virtually
async def test_a_paused_cluster_decides_nothing_and_says_why(world: World):
    nodes, a, moves = await lopsided(world)
    await a.ask(lambda: pause(a.node.policies, Subject(), "ann", "upgrade"))
    await world.until(lambda: rebalancer(nodes).last is not None, 20, "a round")
    assert last(nodes).decision.reason == "the cluster is paused: upgrade"
    assert moves == []


@virtually
async def test_a_broker_that_is_paused_gives_nothing(world: World):
    nodes, a, moves = await lopsided(world)
    await a.ask(lambda: pause(a.node.policies, Subject(broker="a:1"), "ann", ""))
    await world.until(lambda: rebalancer(nodes).counts.rounds >= 2, 30, "two rounds")
    assert moves == []


class Raising:
    """A foreign strategy with a bug."""

    name = "raising"

    def decide(self, model: object, settings: object, memory: object = None) -> Decision:
        raise ZeroDivisionError("oh")


def test_a_strategy_that_raises_does_nothing_and_never_ends_the_term(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    install(monkeypatch, tmp_path, {"raising": Raising})

    @virtually
    async def story(world: World) -> None:
        nodes, _a, moves = await lopsided(world, balancing_strategy="raising")
        await world.until(lambda: rebalancer(nodes).counts.rounds_failed >= 2, 40, "two rounds have failed")
        leader = nodes.leader()
        assert leader is not None
        assert leader.told("ZeroDivisionError")
        assert last(nodes).decision.reason == "the strategy raising failed: ZeroDivisionError('oh')"
        assert last(nodes).model is not None
        assert leader.node.channel.table.lead(0).epoch == 1
        assert moves == []

    story()


def test_the_strategy_changes_between_two_rounds_and_its_memory_is_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    given: list[tuple[str, object]] = []

    class Counting:
        def __init__(self, name: str) -> None:
            self.name = name

        def decide(self, model: object, settings: object, memory: object = None) -> Decision:
            given.append((self.name, memory))
            return Decision((), "", memory=f"{self.name} {len(given)}")

    install(monkeypatch, tmp_path, {"one": lambda: Counting("one"), "two": lambda: Counting("two")})

    @virtually
    async def story(world: World) -> None:
        nodes, _a, _moves = await lopsided(world)
        deciding = rebalancer(nodes).deciding
        deciding.settings = lambda: BRISK.model_copy(update={"balancing_strategy": "one"})
        await world.until(lambda: len(given) == 2, 30, "two rounds")
        deciding.settings = lambda: BRISK.model_copy(update={"balancing_strategy": "two"})
        await world.until(lambda: len(given) == 4, 30, "two more")

    story()
    assert given == [("one", None), ("one", "one 1"), ("two", None), ("two", "two 3")]


@virtually
async def test_a_round_that_cannot_be_recorded_is_counted_and_balancing_goes_on(world: World):
    nodes, _a, moves = await lopsided(world)
    leader = nodes.leader()
    assert leader is not None

    async def fail(record: object) -> None:
        raise LogUnavailable("no answer")

    leader.node.decisions.append = fail
    await world.until(lambda: len(moves) >= 2, 30, "it is balanced")
    await world.until(lambda: rebalancer(nodes).counts.records_failed >= 2, 30, "two rounds are not recorded")
    assert leader.told("was not recorded: LogUnavailable")


@virtually
async def test_each_round_is_recorded_with_what_became_of_its_moves(world: World):
    nodes, _a, moves = await lopsided(world)
    await world.until(lambda: len(moves) >= 2, 30, "it is balanced")
    leader = nodes.leader()
    assert leader is not None
    found = await leader.ask(lambda: leader.node.decisions.newest(10))
    round_ids = [summary.id for summary in found]
    assert round_ids == [f"1.{number}" for number in range(len(round_ids), 0, -1)]
    assert sum(summary.begun for summary in found) == len(moves)
    assert {move.cause for move in moves} <= set(round_ids)


@virtually
async def test_with_balancing_off_a_round_says_so(world: World):
    nodes, _a, moves = await lopsided(world, balancing=False)
    await world.until(lambda: rebalancer(nodes).last is not None, 20, "a round")
    assert last(nodes).decision.reason == "the setting balancing is off"
    assert moves == []


@virtually
async def test_who_pauses_here_can_resume_there_at_once(world: World):
    nodes, a, _moves = await lopsided(world, balancing=False)
    b = nodes.by_name["b:1"]
    subject = Subject(namespace="shop/orders")
    for _ in range(3):
        assert await a.ask(lambda: pause(a.node.policies, subject, "ann", ""))
        assert await b.ask(lambda: resume(b.node.policies, subject, "ann", ""))
        assert not await a.ask(lambda: resume(a.node.policies, subject, "ann", ""))


@virtually
async def test_a_bug_of_our_own_is_noted_and_ends_no_term(world: World):
    nodes, _a, moves = await lopsided(world)
    leader = nodes.leader()
    assert leader is not None
    whole = leader.node.plans.all

    def break_down() -> list[Plan]:
        raise IndexError("oh")

    leader.node.plans.all = break_down
    await world.until(lambda: leader.told("a look at the plans failed: IndexError('oh')"), 5, "it is noted")
    assert rebalancer(nodes).counts.rounds_failed > 0
    leader.node.plans.all = whole
    await world.until(lambda: len(moves) >= 2, 30, "it is balanced")
    assert leader.node.channel.table.lead(0).epoch == 1
