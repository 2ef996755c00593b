"""Terms: elected, barrier, deposed, silent, evicted; duties beside each other; what the leader does in safe mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from statechannel.errors import LogUnavailable
from statechannel.law.record import Action, Record, Role
from statechannel.law.transitions import State
from tests.loadmanager.small_world import NAMESPACE, QUICK, Nodes, Started, virtually
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.simulated_log import LOG_SERVER
from tests.simulator.world import World


async def follower_and_leader(nodes: Nodes) -> tuple[Started, Started]:
    await nodes.ready("a:1", "b:1", "c:1")
    leader = nodes.leader()
    assert leader is not None
    follower = next(s for s in nodes.by_name.values() if s is not leader)
    return follower, leader


def epoch(started: Started) -> int:
    return started.node.channel.table.lead(0).epoch


@virtually
async def test_one_leads_and_its_barrier_is_in_every_partition(world: World):
    nodes = Nodes(world)
    follower, leader = await follower_and_leader(nodes)
    leading = [s for s in nodes.by_name.values() if s.node.current.leader.leading]
    assert leading == [leader]
    assert follower.node.channel.table.lead(0).leader == leader.node.current.me


@virtually
async def test_a_leader_whose_epoch_was_overtaken_on_the_channel_resigns(world: World):
    nodes = Nodes(world)
    follower, leader = await follower_and_leader(nodes)
    before = epoch(leader)
    root, seen = follower.node.agreeing.root, follower.node.channel.table.agreed(0).revision
    intruder = Record(
        "", Action.LEAD, follower.node.current.me, Role.LEADER, epoch=before + 1, root=root, seen_agreement=seen
    )
    await follower.ask(lambda: follower.node.channel.publish(intruder, 0))
    (bundle,) = await nodes.own_all(1, follower)
    world.crash(follower.name)
    await world.until(lambda: leader.told("ended: ") or nodes.leader() is not leader, 5, "its revoke was refused")
    await world.until(lambda: len(nodes.serving(bundle)) == 1, 15, "a leader of a greater epoch repairs it")


@virtually
async def test_a_leader_that_gets_no_verdicts_resigns_and_another_leads(world: World):
    nodes = Nodes(world)
    follower, leader = await follower_and_leader(nodes)
    (bundle,) = await nodes.own_all(1, follower)
    world.cut(leader.name, LOG_SERVER)
    world.crash(follower.name)
    await world.until(lambda: nodes.leader() not in (None, leader), 20, "another leads")
    await world.until(lambda: len(nodes.serving(bundle)) == 1, 25, "and repairs")


@virtually
async def test_a_leader_that_lost_the_log_stands_back_for_others(world: World):
    nodes = Nodes(world)
    (a,) = await nodes.ready("a:1")
    world.cut("a:1", LOG_SERVER)
    await world.until(lambda: a.told("ended: the channel gives no verdicts"), 20, "it gives up")
    await asyncio.sleep(QUICK.lead_timeout_s - 0.1)
    assert world.coordination._epoch == 1
    world.heal("a:1", LOG_SERVER)
    await world.until(lambda: nodes.leader() is a, 3, "nobody else came: it leads again")


@pytest.mark.parametrize("seed", range(6))
def test_a_leader_that_lost_the_log_does_not_win_the_next_election(seed: int):
    async def story(world: World) -> None:
        nodes = Nodes(world)
        _, leader = await follower_and_leader(nodes)
        world.cut(leader.name, LOG_SERVER)
        await world.until(lambda: leader.told("ended: the channel gives no verdicts"), 20, "it gives up")
        await world.until(lambda: world.coordination._epoch > 1, 3, "there is another election")
        elected = world.coordination._leadership
        assert elected is not None
        assert elected[0].leader != leader.node.current.me

    with World(seed) as world:
        world.run(story(world))


def takes_no_record(started: Started) -> Callable[[], None]:
    """From now on the log takes nothing from this broker, though it can be read; returns what ends that."""
    log = started.node.world.log
    takes = log.append

    async def refuse(*_: object) -> int:
        raise LogUnavailable("too few replicas; try again")

    def take_again() -> None:
        log.append = takes  # type: ignore[method-assign]

    log.append = refuse  # type: ignore[method-assign]
    return take_again


@virtually
async def test_a_leader_that_lost_the_log_makes_room_at_once_for_who_reads_it(world: World):
    nodes = Nodes(world, QUICK.model_copy(update={"lead_timeout_s": 60.0}))
    follower, leader = await follower_and_leader(nodes)
    (bundle,) = await nodes.own_all(1, follower)
    cut_s = world.now_s
    world.cut(leader.name, LOG_SERVER)
    world.crash(follower.name)
    await world.until(lambda: nodes.leader() not in (None, leader), 3, "another leads")
    assert world.now_s - cut_s < QUICK.publish_timeout_s + 1.5
    await world.until(lambda: len(nodes.serving(bundle)) == 1, 8, "and repairs, without the one that is cut off")
    await world.until(lambda: leader.node.registration.behind, 10, "the first one knows that it is behind")
    others = nodes.leader()
    assert others is not None
    others.process.run(others.node.current.leader._end, "to see who comes")
    await asyncio.sleep(QUICK.lead_timeout_s)
    assert nodes.leader() is others, "whoever does not get at the log leaves it to those who do"


@virtually
async def test_leader_survives_a_short_log_outage_when_nobody_could_do_better(world: World):
    nodes = Nodes(world)
    (a,) = await nodes.ready("a:1")
    world.cut("a:1", LOG_SERVER)
    await asyncio.sleep(QUICK.lead_timeout_s - 1)
    world.heal("a:1", LOG_SERVER)
    await asyncio.sleep(QUICK.lead_timeout_s)
    assert epoch(a) == 1


@pytest.mark.parametrize("outage_s", [1.5, 4.0, 9.0, 30.0])
def test_after_an_outage_of_the_log_for_all_somebody_leads_and_repairs(outage_s: float):
    async def story(world: World) -> None:
        nodes = Nodes(world)
        follower, _ = await follower_and_leader(nodes)
        (bundle,) = await nodes.own_all(1, follower)
        world.set_down(LOG_SERVER, True)
        world.crash(follower.name)
        await asyncio.sleep(outage_s)
        world.set_down(LOG_SERVER, False)
        await world.until(lambda: len(nodes.serving(bundle)) == 1, 8, "somebody repairs")

    virtually(story)()


@virtually
async def test_a_channel_that_was_silent_for_a_moment_does_not_cost_the_lead_later(world: World):
    """The duty that had no verdict is done by somebody else: nothing is left to publish, and nothing to resign for."""
    nodes = Nodes(world)
    follower, leader = await follower_and_leader(nodes)
    hands_epoch = epoch(leader)
    (bundle,) = await nodes.own_all(1, follower)
    follower.service.behave["prepare"] = lambda: asyncio.sleep(100)
    heals = takes_no_record(leader)
    follower.refuses_connections = True
    await asyncio.sleep(2.2)
    assert leader.node.current.leader.leading is not None
    follower.refuses_connections = False
    heals()
    await asyncio.sleep(20)
    assert epoch(leader) == hands_epoch
    assert leader.node.current.leader.leading is not None
    assert len(nodes.serving(bundle)) == 1


@virtually
async def test_in_safe_mode_nothing_is_concluded_and_after_it_all_is_repaired(world: World):
    nodes = Nodes(world)
    follower, leader = await follower_and_leader(nodes)
    (bundle,) = await nodes.own_all(1, follower)
    world.set_down(COORDINATION_SERVER, True)
    await world.until(lambda: not leader.node.membership.connected, 5, "the leader has noticed")
    world.crash(follower.name)
    await asyncio.sleep(10)
    entry = leader.node.channel.table.get(bundle)
    assert entry is not None
    assert entry.state is State.ASSIGNED
    world.set_down(COORDINATION_SERVER, False)
    await world.until(lambda: len(nodes.serving(bundle)) == 1, 12, "somebody else serves it")


@virtually
async def test_leader_lost_in_a_coordination_outage_is_replaced_afterwards(world: World):
    nodes = Nodes(world)
    _, leader = await follower_and_leader(nodes)
    (bundle,) = await nodes.own_all(1, leader)
    world.set_down(COORDINATION_SERVER, True)
    await asyncio.sleep(1)
    world.crash(leader.name)
    await asyncio.sleep(5)
    world.set_down(COORDINATION_SERVER, False)
    await world.until(lambda: len(nodes.serving(bundle)) == 1, 15, "the next leader repairs")


@virtually
async def test_healthy_owners_keep_everything_when_an_outage_ends_sessions(world: World):
    nodes = Nodes(world)
    follower, _leader = await follower_and_leader(nodes)
    bundles = await nodes.own_all(8, follower)
    tokens = [follower.node.channel.table.get(bundle) for bundle in bundles]
    world.set_down(COORDINATION_SERVER, True)
    await asyncio.sleep(12)
    for name in nodes.by_name:
        world.expire_session(name)
    world.set_down(COORDINATION_SERVER, False)
    await asyncio.sleep(20)
    now = [follower.node.channel.table.get(bundle) for bundle in bundles]
    assert now == tokens, "not one record was written about them"


@virtually
async def test_broker_cut_off_from_coordination_serves_on_and_is_then_emptied(world: World):
    nodes = Nodes(world)
    follower, _leader = await follower_and_leader(nodes)
    bundles = await nodes.own_all(4, follower)
    world.cut(follower.name, COORDINATION_SERVER)
    for _ in range(30):
        await asyncio.sleep(0.1)
        assert all(nodes.serving(bundle) == [follower.name] for bundle in bundles)
    await world.until(
        lambda: all(len(nodes.serving(b)) == 1 and nodes.serving(b) != [follower.name] for b in bundles), 15, "emptied"
    )
    assert "abandon" not in follower.service.calls


@virtually
async def test_a_bundle_whose_owner_hangs_does_not_hold_up_the_repair_of_another(world: World):
    nodes = Nodes(world)
    follower, _leader = await follower_and_leader(nodes)
    third = next(s for s in nodes.by_name.values() if s is not follower and nodes.leader() is not s)
    (stuck,) = await nodes.own_all(1, third)
    (orphan,) = await nodes.own_all(1, follower, "shop/carts")
    world.pause(third.name)
    world.crash(follower.name)
    await world.until(lambda: len(nodes.serving(orphan)) == 1, 8, "the orphan is served")
    await world.until(lambda: third.name not in nodes.serving(stuck) and len(nodes.serving(stuck)) == 1, 10, "so is it")


@virtually
async def test_a_wrong_suspicion_costs_a_move_never_two_owners(world: World):
    nodes = Nodes(world)
    follower, _leader = await follower_and_leader(nodes)
    (bundle,) = await nodes.own_all(1, follower)
    most: list[int] = []
    world.loop.after_callback = lambda _: most.append(len(nodes.serving(bundle)))
    follower.refuses_connections = True
    await world.until(lambda: follower.told("was fenced"), 5, "it was believed dead")
    follower.refuses_connections = False
    await world.until(lambda: len(nodes.serving(bundle)) == 1, 10, "somebody serves it")
    world.loop.after_callback = None
    assert max(most) == 1


@virtually
async def test_a_namespace_is_left_alone_by_a_leader_with_nothing_to_do(world: World):
    nodes = Nodes(world)
    follower, leader = await follower_and_leader(nodes)
    await nodes.own_all(4, follower)
    await asyncio.sleep(1)
    end = leader.node.channel.table.next_offset(0)
    await asyncio.sleep(QUICK.balancing_interval_s - 5)
    assert leader.node.channel.table.next_offset(0) == end
    assert follower.node.channel.table.namespaces() == [NAMESPACE]
