"""The leader's balancing rounds: begun with their reason, none in safe mode, and none that a silent log could end."""

from __future__ import annotations

import asyncio

from loadmanager.sim.coordination_server import COORDINATION_SERVER
from loadmanager.sim.world import World
from statechannel.record import Action, Record
from statechannel.verdict import Change
from tests.loadmanager.small_world import QUICK, Nodes, Started, virtually

BRISK = QUICK.model_copy(update={"balancing_interval_s": 5.0, "bundle_rest_s": 1.0})


async def lopsided(world: World) -> tuple[Nodes, Started, list[Record]]:
    """Two brokers, one of which has everything; and the transfers that are seen from now on."""
    nodes = Nodes(world, BRISK)
    a, b = await nodes.ready("a:1", "b:1")
    a.service.cpu_percent_each = b.service.cpu_percent_each = 7.0
    await nodes.own_all(12, a)
    moves: list[Record] = []

    def note(change: Change) -> None:
        if change.record.action is Action.TRANSFER:
            moves.append(change.record)

    a.node.channel.listen(note)
    return nodes, a, moves


@virtually
async def test_each_move_of_a_round_carries_its_reason_and_the_round_that_decided_it(world: World):
    nodes, _a, moves = await lopsided(world)
    await world.until(lambda: len(moves) >= 2, 30, "it is balanced")
    leader = nodes.leader()
    assert leader is not None
    governor = leader.node.current.governor
    assert governor.last is not None
    assert all(move.reason for move in moves)
    assert {move.cause.split(".")[0] for move in moves} == {str(leader.node.channel.table.lead(0).epoch)}


@virtually
async def test_a_dry_run_moves_nothing(world: World):
    nodes, a, moves = await lopsided(world)
    leader = nodes.leader()
    assert leader is not None
    end = a.node.channel.table.next_offset(0)
    leader.process.run(leader.node.current.governor.decide)
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
