"""A drained broker ends with nothing: what it holds leaves, what is on its way is turned back, nothing spins."""

from __future__ import annotations

import asyncio

import pytest

from loadmanager.errors import Conflict
from statechannel.law.record import Action
from statechannel.law.transitions import State
from tests.loadmanager.small_world import Nodes, virtually
from tests.simulator.network import Faults
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.world import World


async def never() -> None:
    await asyncio.Event().wait()


async def declines() -> None:
    raise LookupError("no room")


@virtually
async def test_everything_leaves_by_planned_moves_and_progress_says_so(world: World):
    nodes = Nodes(world)
    a, _b, _c = await nodes.ready("a:1", "b:1", "c:1")
    bundles = await nodes.own_all(12, a)
    progress = await a.ask(lambda: a.node.drain(5.0))
    assert (progress.draining, progress.total, progress.left, progress.done) == (True, 12, 0, True)
    assert str(progress) == "of 12 bundles 12 moved to other brokers, 0 unloaded without a new owner, 0 left here"
    await world.until(lambda: all(nodes.serving(bundle) for bundle in bundles), 0.1, "all have arrived")
    owners = [nodes.serving(bundle) for bundle in bundles]
    assert sorted({tuple(owner) for owner in owners}) == [("b:1",), ("c:1",)], "shared among the others"
    assert a.service.calls.count("release") == 12
    assert "abandon" not in a.service.calls


@virtually
async def test_it_ends_at_its_deadline_with_what_is_left(world: World):
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    await nodes.own_all(3, a)
    b.service.behave["prepare"] = never
    began_s = world.now_s
    progress = await a.ask(lambda: a.node.drain(1.0))
    assert 1.0 <= world.now_s - began_s < 1.3
    assert (progress.total, progress.left, progress.done) == (3, 3, False)
    assert not a.node.channel.replica._watchers


@virtually
async def test_with_no_time_at_all_nothing_is_begun(world: World):
    nodes = Nodes(world)
    a, _b = await nodes.ready("a:1", "b:1")
    bundles = await nodes.own_all(3, a)
    revisions = [a.node.channel.table.get(bundle) for bundle in bundles]
    progress = await a.ask(lambda: a.node.drain(0))
    assert (progress.total, progress.left, progress.draining) == (3, 3, True)
    await a.node.channel.catch_up(5)
    assert [a.node.channel.table.get(bundle) for bundle in bundles] == revisions


@virtually
async def test_with_nobody_else_there_its_bundles_are_given_up(world: World):
    nodes = Nodes(world)
    (a,) = await nodes.ready("a:1")
    bundles = await nodes.own_all(2, a)
    progress = await a.ask(lambda: a.node.drain(2.0))
    assert progress.done
    entries = [a.node.channel.table.get(bundle) for bundle in bundles]
    assert {entry.state for entry in entries if entry} == {State.UNASSIGNED}
    assert (progress.total, progress.left, progress.unloaded) == (2, 0, 2)
    assert str(progress) == "of 2 bundles 0 moved to other brokers, 2 unloaded without a new owner, 0 left here"


@virtually
async def test_a_bundle_on_its_way_to_a_draining_broker_is_turned_back(world: World):
    """It would arrive after the broker had left."""
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    (bundle,) = await nodes.own_all(1, b)
    a.service.behave["prepare"] = never
    moving = b.ask(lambda: b.node.current.operations.transfer(bundle, "a:1"))
    await world.until(lambda: a.service.calls == ["prepare"], 1, "it is on its way")
    await a.ask(lambda: a.node.drain(1.5))
    entry = a.node.channel.table.get(bundle)
    assert entry is not None
    assert (entry.state, entry.holder, entry.action) == (State.ASSIGNED, b.node.current.me, Action.CANCEL)
    with pytest.raises(Conflict, match="did not arrive"):
        await moving


@virtually
async def test_what_arrives_during_a_drain_is_moved_on(world: World):
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    (bundle,) = await nodes.own_all(1, b)
    a.service.behave["acquire"] = lambda: asyncio.sleep(0.5)
    b.ask(lambda: b.node.current.operations.transfer(bundle, "a:1"))
    await world.until(lambda: "acquire" in a.service.calls, 1, "it is arriving")
    progress = await a.ask(lambda: a.node.drain(4.0))
    assert progress.done
    assert nodes.serving(bundle) == ["b:1"]


@virtually
async def test_destination_that_keeps_declining_is_asked_ever_more_rarely(world: World):
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    await nodes.own_all(1, a)
    b.service.behave["prepare"] = declines
    before = a.node.channel.table.next_offset(0)
    await a.ask(lambda: a.node.drain(20.0))
    assert 5 <= b.service.calls.count("prepare") <= 12
    assert a.node.channel.table.next_offset(0) - before < 40


@virtually
async def test_a_destination_that_declined_is_passed_over_the_next_time(world: World):
    nodes = Nodes(world)
    a, b, c = await nodes.ready("a:1", "b:1", "c:1")
    await nodes.own_all(6, a)
    b.service.behave["prepare"] = declines
    progress = await a.ask(lambda: a.node.drain(3.0))
    assert progress.done
    await world.until(lambda: len(c.serving.claims()) == 6, 0.1, "c has them all")


@virtually
async def test_a_drain_that_is_called_off_stops_moving(world: World):
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    bundles = await nodes.own_all(4, a)
    b.service.behave["prepare"] = declines
    draining = a.ask(lambda: a.node.drain(60.0))
    await asyncio.sleep(1)
    await a.ask(a.node.undrain)
    b.service.behave.clear()
    await asyncio.wait_for(draining, 2)
    await asyncio.sleep(10)
    assert [nodes.serving(bundle) for bundle in bundles] == [["a:1"]] * 4
    assert not b.node.peers()["a:1"].registration.draining


@virtually
async def test_the_others_learn_of_a_drain_that_began_while_coordination_was_away(world: World):
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    world.network.faults = Faults(late=0.0)  # what was asked for during the outage never arrives
    world.set_down(COORDINATION_SERVER, True)
    await a.ask(lambda: a.node.drain(1.0))
    world.set_down(COORDINATION_SERVER, False)
    await world.until(lambda: b.node.peers()["a:1"].registration.draining, 5, "b knows that a drains")
